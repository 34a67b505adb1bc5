"""The undo of recorded runs."""
