"""AgentScope's Redis memory."""
