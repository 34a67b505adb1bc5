"""Claude Code: the sessions in its folder."""
