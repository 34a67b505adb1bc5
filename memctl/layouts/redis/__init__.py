"""What the layouts of Redis share: recognition by keys, and memories that are read whole."""
