"""Redaction: values are taken out of stores, undo runs and offloaded contents."""
