"""Every store of facts of memctl passes the suite that such stores of plugins pass."""

from __future__ import annotations

import pytest

from memctl.testing import Backend, FactSuite
from tests.support.backends import FACT_BACKENDS, params
from tests.support.servers.pool import Servers


class TestFacts(FactSuite):
    """The suite, once for each line of ``FACT_BACKENDS``."""

    @pytest.fixture(params=params(FACT_BACKENDS))
    def backend(self, request: pytest.FixtureRequest, servers: Servers) -> Backend:
        """Each store in turn."""
        return FACT_BACKENDS[request.param](servers)
