"""AgentScope 2.x: sessions in SQL, Redis and files."""
