"""Checks for data that is broken or risky, its effect on agents, and its repair."""
