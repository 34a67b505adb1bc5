"""AgentScope 1.x: session states, documents in files, Redis and Tablestore."""
