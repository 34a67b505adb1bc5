"""The index for search: the words of a store's messages, in a file of the cache folder."""
