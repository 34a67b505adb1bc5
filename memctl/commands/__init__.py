"""The commands.  Each module reads the options, calls an operation and writes the report."""
