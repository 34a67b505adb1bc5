"""Codex CLI: the rollouts in its folder."""
