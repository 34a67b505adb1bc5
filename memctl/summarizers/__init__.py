"""Summarizers: one module for each kind, and shared modules for prompts and replies."""
