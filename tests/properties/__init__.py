"""What holds of any memory, with hypothesis looking for the one of which it does not."""
