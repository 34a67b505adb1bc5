"""Tests with the real programs of coding agents, offline, before a model server on the loopback."""
