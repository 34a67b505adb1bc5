"""Embedders: models on a server, and models in a file."""
