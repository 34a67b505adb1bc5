"""The layouts that a server or a database holds."""
