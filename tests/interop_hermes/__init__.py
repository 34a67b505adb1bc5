"""Hermes with memctl: its SessionDB writes, reads and imports the sessions."""
