"""The tests of the store contract, by subject, and the suite of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memctl.testing import samples
from memctl.testing.backend import Backend, Place, new_place
from memctl.testing.suite.catalog import CatalogTests
from memctl.testing.suite.edit import EditTests
from memctl.testing.suite.erase import EraseTests
from memctl.testing.suite.facts import FactTests
from memctl.testing.suite.lock import LockTests
from memctl.testing.suite.outlines import OutlineTests
from memctl.testing.suite.place import PlaceTests
from memctl.testing.suite.roundtrip import RoundtripTests
from memctl.testing.suite.search import SearchTests, ServiceSearchTests
from memctl.testing.suite.selection import SelectionTests
from memctl.testing.suite.version import VersionTests
from memctl.testing.suite.write import WriteTests


class Suite:
    """The fixtures of a suite; it takes a fixture ``backend``, which gives a ``Backend``."""

    @pytest.fixture(autouse=True)
    def _style(self, backend: Backend) -> Iterator[None]:
        samples.use(backend.style)
        yield
        samples.use(samples.Style())

    @pytest.fixture
    def make_place(self, backend: Backend, tmp_path: Path) -> Callable[[], Place]:
        """Make new and empty places of the store."""
        return lambda: new_place(backend, tmp_path)

    @pytest.fixture
    def place(self, make_place: Callable[[], Place]) -> Place:
        """A new and empty place of the store."""
        return make_place()

    @pytest.fixture
    def many_place(self, place: Place) -> Place:
        """The same, of stores that hold more than one memory."""
        if place.backend.only:
            pytest.skip("holds one memory")
        return place


@pytest.mark.asyncio
class StoreSuite(
    Suite,
    PlaceTests,
    RoundtripTests,
    CatalogTests,
    SelectionTests,
    OutlineTests,
    WriteTests,
    EditTests,
    EraseTests,
    VersionTests,
    LockTests,
    SearchTests,
    ServiceSearchTests,
):
    """All that a store of conversations must promise."""


@pytest.mark.asyncio
class FactSuite(Suite, PlaceTests, FactTests, LockTests, SearchTests, ServiceSearchTests):
    """All that a store of facts must promise; the style of its ``Backend`` is one of facts."""
