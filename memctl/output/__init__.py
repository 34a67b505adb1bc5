"""The output of memctl: data on stdout; progress, warnings and errors on stderr."""
