"""The version of memctl."""

__version__ = "0.1.0"
