"""Stores made of stores."""
