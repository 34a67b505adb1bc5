"""The sessions of OpenCode."""
