"""One worker with the real AgentScope for all tests of a process."""

from __future__ import annotations

from tests.support.agentscope import AgentScope
from tests.support.worker import for_the_session

agentscope = for_the_session(AgentScope)
