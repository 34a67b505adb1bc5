"""memctl in parts on a real Ray cluster: ``make interop``."""
