"""Each of memctl's own stores in turn."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

from memctl.engines.redis import lock
from memctl.testing import Backend
from tests.support.backends import BACKENDS, FURTHER, LEASE
from tests.support.servers.pool import Servers


def params(names: Iterable[str]) -> list[ParameterSet]:
    """Return backends as parameters of a test; further ones are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in names]


@pytest.fixture(params=params(BACKENDS))
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each store in turn."""
    return BACKENDS[request.param](servers)


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", LEASE)
