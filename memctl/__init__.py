"""memctl: looks after the memory of AgentScope agents."""

__version__ = "0.1.0"
