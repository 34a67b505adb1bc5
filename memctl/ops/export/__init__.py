"""Exports: memories into a file or folder, as an archive or in a form for readers."""
