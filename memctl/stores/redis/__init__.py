"""AgentScope's Redis memory: ``store`` has the store, the other modules its parts."""
