"""The sessions of AgentScope Java."""
