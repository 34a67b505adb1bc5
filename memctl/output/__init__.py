"""Everything that memctl prints: data to stdout; progress, warnings and errors to stderr."""
