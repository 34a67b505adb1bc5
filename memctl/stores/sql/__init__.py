"""AgentScope's SQL memory: one layout, one file a database."""
