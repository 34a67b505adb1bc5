"""LangChain: vector stores and history files."""
