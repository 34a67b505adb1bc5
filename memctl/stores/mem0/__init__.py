"""Stores of mem0's open-source library and of the mem0 Platform."""
