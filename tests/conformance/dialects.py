"""A store of each dialect, for tests of operations, which know stores only by their contract."""

from __future__ import annotations

import pytest

from memctl.testing import Backend
from memctl.testing.suite import Suite
from tests.support.backends import BACKENDS, FACT_BACKENDS
from tests.support.servers.pool import Servers

STORES = {
    "agentscope1": "sqlite",
    "agentscope2": "sqlite-agentscope2",
    "agentscope-java": "sqlite-java",
    "role-content": "sqlite-table",
    "adk": "sqlite-adk",
    "agno": "sqlite-agno",
    "langchain": "langchain-files",
    "openai-agents": "redis-openai-agents",
    "fact": "reme-0.2",
}
"""The name of a backend for each dialect."""


@pytest.mark.asyncio
class OnEachDialect(Suite):
    """The fixtures of the suite, for a store of each dialect."""

    @pytest.fixture(params=STORES)
    def backend(self, request: pytest.FixtureRequest, servers: Servers) -> Backend:
        """Each store in turn."""
        backend = (BACKENDS | FACT_BACKENDS)[STORES[request.param]](servers)
        assert backend.style.dialect == request.param
        return backend
