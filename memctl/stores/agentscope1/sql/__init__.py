"""AgentScope 1.x: the tables of AsyncSQLAlchemyMemory."""
