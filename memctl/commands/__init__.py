"""One thin file a command: options in, one operation, one report out."""
