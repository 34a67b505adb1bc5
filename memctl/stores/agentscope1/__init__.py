"""AgentScope 1.x: SQL memory, RedisMemory, TablestoreMemory."""
