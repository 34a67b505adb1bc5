"""Places of every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.backends import BACKENDS, Backend, Place, new_place
from tests.conftest import Servers


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each store in turn."""
    found: Backend = request.param
    return found


@pytest.fixture
def make_place(backend: Backend, tmp_path: Path, servers: Servers) -> Callable[[], Place]:
    """Makes new and empty places of the store."""
    return lambda: new_place(backend, tmp_path, servers)


@pytest.fixture
def place(make_place: Callable[[], Place]) -> Place:
    """A new and empty place of the store."""
    return make_place()


@pytest.fixture
def many_place(place: Place) -> Place:
    """The same, of stores that hold more than one memory."""
    if place.backend.only:
        pytest.skip("holds one memory")
    return place
