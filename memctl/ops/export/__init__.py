"""Export memories to a file or folder, as an archive or in a format for readers."""
