"""The tests of the store contract, by subject, combined into suites."""

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
from memctl.testing.suite.interruption import InterruptionTests
from memctl.testing.suite.lock import LockTests
from memctl.testing.suite.outlines import OutlineTests
from memctl.testing.suite.place import PlaceTests
from memctl.testing.suite.rename import RenameTests
from memctl.testing.suite.rewrite import RewriteTests
from memctl.testing.suite.roundtrip import RoundtripTests
from memctl.testing.suite.search import SearchTests, ServiceSearchTests
from memctl.testing.suite.selection import SelectionTests
from memctl.testing.suite.shards import ShardTests
from memctl.testing.suite.shared import SharedTests
from memctl.testing.suite.version import VersionTests
from memctl.testing.suite.whole import WholeTests
from memctl.testing.suite.window import NameTests, WindowTests
from memctl.testing.suite.write import WriteTests


class Suite:
    """The fixtures of a conformance suite.

    The test module adds a fixture ``backend``, which returns a ``Backend``."""

    @pytest.fixture(autouse=True)
    def _style(self, backend: Backend) -> Iterator[None]:
        samples.use(backend.style)
        yield
        samples.use(samples.Style())

    @pytest.fixture
    def make_place(self, backend: Backend, tmp_path: Path) -> Callable[[], Place]:
        """A function that makes a new, empty store location (``Place``) at each call."""
        return lambda: new_place(backend, tmp_path)

    @pytest.fixture
    def place(self, make_place: Callable[[], Place]) -> Place:
        """A new, empty store location."""
        return make_place()

    @pytest.fixture
    def many_place(self, place: Place) -> Place:
        """A new, empty store location; skips the test if a location holds only one memory."""
        if place.backend.only:
            pytest.skip("holds one memory")
        return place


@pytest.mark.asyncio
class StoreSuite(
    Suite,
    PlaceTests,
    RenameTests,
    RoundtripTests,
    CatalogTests,
    SelectionTests,
    OutlineTests,
    ShardTests,
    NameTests,
    WindowTests,
    WriteTests,
    EditTests,
    InterruptionTests,
    EraseTests,
    RewriteTests,
    VersionTests,
    LockTests,
    SearchTests,
    ServiceSearchTests,
    SharedTests,
):
    """All tests of the contract of a store of conversations."""


@pytest.mark.asyncio
class FactSuite(
    Suite,
    PlaceTests,
    FactTests,
    RewriteTests,
    ShardTests,
    WindowTests,
    LockTests,
    SearchTests,
    ServiceSearchTests,
):
    """All tests of the contract of a store of facts; the ``Backend`` needs a style of facts."""


@pytest.mark.asyncio
class SessionSuite(
    Suite,
    PlaceTests,
    WholeTests,
    SelectionTests,
    OutlineTests,
    ShardTests,
    NameTests,
    WindowTests,
    InterruptionTests,
    LockTests,
):
    """All tests of the contract of a store with ``Features.whole_memories``."""
