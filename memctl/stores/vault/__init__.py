"""Vaults: facts as Markdown files in a folder."""
