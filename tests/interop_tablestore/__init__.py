"""memctl and the real classes of AgentScope and agentscope-runtime, on one Tablestore.

The Tablestore is that of the tests: see ``tests/support/servers/tablestore.py``.
"""
