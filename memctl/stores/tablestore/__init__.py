"""Alibaba Cloud Tablestore: what AgentScope 1.x and agentscope-runtime keep in its tables."""
