"""LangGraph: checkpoints in SQL, only read."""
