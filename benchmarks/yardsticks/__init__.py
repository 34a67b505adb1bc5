"""What a user would use instead of memctl, each a script of its own."""
