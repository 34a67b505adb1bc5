"""ReMe's memory: the vault of 0.4, and the vector stores in files of 0.3 and 0.2."""
