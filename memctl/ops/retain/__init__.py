"""Retention: what policies select goes to an archive, and leaves the store only after that."""
