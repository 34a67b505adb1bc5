"""A run in parts: each part is a command line of memctl with ``--shard K/N``, run anywhere."""
