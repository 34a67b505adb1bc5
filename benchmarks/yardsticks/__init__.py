"""Scripts that a user would write instead of using memctl."""
