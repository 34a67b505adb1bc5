"""What memctl does, on any store: no terminal and no driver here."""
