"""The index for search: what is in a store, by its words, in a file of the cache folder."""
