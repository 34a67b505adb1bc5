"""Memories inside session states: JSON documents in files, folders and Redis."""
