"""The real AgentScope, in an environment of its own, writes what memctl reads and the reverse."""
