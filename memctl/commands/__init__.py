"""The commands, a thin module each: read the options, call one operation, write one report."""
