"""The stores of the example plugin pass the suites that memctl's own stores pass."""

from __future__ import annotations

import pytest

from memctl.testing import Backend, FactSuite, StoreSuite, Style

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("plugin")
class TestLines(StoreSuite):
    """The suite of conversations, for the plugin."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return a backend with files of the plugin's store."""
        return Backend("lines", lambda folder: f"{folder}/m.lines")


@pytest.mark.usefixtures("plugin")
class TestNotes(FactSuite):
    """The suite of facts, for the plugin."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return a backend with files of the plugin's store."""
        style = Style("fact", frozenset(), dimensions=8)
        return Backend("notes", lambda folder: f"{folder}/m.notes", style=style)


@pytest.mark.usefixtures("plugin")
class TestChats(StoreSuite):
    """The suite of conversations, for the plugin's layout of SQL tables."""

    @pytest.fixture
    def backend(self) -> Backend:
        """Return a backend with SQLite files."""
        return Backend(
            "chats",
            lambda folder: f"sqlite:///{folder}/m.db?layout=chats",
            refuses_names=True,
            large=300,
        )
