"""The real AgentScope 2.x on both ends; run by ``make interop``."""
