"""Stores of mem0: its open-source library's, and its Platform."""
