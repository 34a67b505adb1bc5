"""OpenAI: chat messages in files, branches of Agents SDK sessions."""
