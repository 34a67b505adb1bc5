"""Embedders: models behind an address, and models in a file."""
