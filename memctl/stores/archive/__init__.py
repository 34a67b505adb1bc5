"""memctl's archive: memories in one file."""
