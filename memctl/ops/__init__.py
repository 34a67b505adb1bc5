"""The operations of memctl, on any store: no terminal and no driver here."""
