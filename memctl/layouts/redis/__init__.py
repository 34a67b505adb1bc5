"""The common parts of Redis layouts: recognition by keys, and memories that are read whole."""
