"""Memories in SQL as rows: the tables of a layout are data; one class reads and changes them."""
