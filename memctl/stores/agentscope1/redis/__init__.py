"""AgentScope 1.x: RedisMemory."""
