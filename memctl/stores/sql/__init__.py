"""AgentScope's SQL memory: a store and the database that it uses, a module per kind."""
