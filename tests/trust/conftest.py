"""The real AgentScope, for what it writes while memctl reads."""

from tests.interop.conftest import agentscope

__all__ = ["agentscope"]
