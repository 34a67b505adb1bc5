"""Wrappers: stores that modify the behaviour of a store inside."""
