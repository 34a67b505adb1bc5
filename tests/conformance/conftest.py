"""Each of memctl's own stores in turn."""

from __future__ import annotations

import pytest

from memctl.engines.redis import lock
from memctl.testing import Backend
from tests.support.backends import BACKENDS, LEASE, params
from tests.support.servers.pool import Servers


@pytest.fixture(params=params(BACKENDS))
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each store in turn."""
    return BACKENDS[request.param](servers)


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", LEASE)
