"""Checks for broken or risky data, the effects on agents, and repairs."""
