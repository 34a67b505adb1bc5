"""agentscope-runtime: histories and memories."""
