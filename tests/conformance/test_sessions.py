"""Every store of whole sessions of memctl passes the suite that such stores of plugins pass."""

from __future__ import annotations

import pytest

from memctl.testing import Backend, SessionSuite
from tests.support.backends import AGENT_BACKENDS, params
from tests.support.servers.pool import Servers


class TestSessions(SessionSuite):
    """The suite, once for each line of ``AGENT_BACKENDS``."""

    @pytest.fixture(params=params(AGENT_BACKENDS))
    def backend(self, request: pytest.FixtureRequest, servers: Servers) -> Backend:
        """Each store in turn."""
        return AGENT_BACKENDS[request.param](servers)
