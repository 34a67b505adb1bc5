"""What summarises: one file a kind."""
