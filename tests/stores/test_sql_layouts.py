"""The layout of a SQL database is found by its tables, and named where there are several."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import BadData, UsageError
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import read, write_all
from memctl.testing.samples import sample
from tests.support.backends import SQL_PLACES
from tests.support.servers.pool import Servers

KEY = MemoryKey("ada", "trip")


@pytest.fixture(params=SQL_PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty database of each kind."""
    return SQL_PLACES[request.param](tmp_path, servers)


def layout(place: str, name: str) -> str:
    return f"{place}{'&' if '?' in place else '?'}layout={name}"


async def fill(place: str) -> None:
    async with make_store(parse(place), OpenMode.CREATE) as store:
        await write_all(store, [sample(KEY, samples.entries(3))])


@pytest.mark.parametrize(
    ("name", "dialect"), [("agentscope2", "agentscope2"), ("memory", "agentscope1")]
)
@pytest.mark.parametrize("mode", list(OpenMode))
async def test_layout_is_found(place: str, name: str, dialect: str, mode: OpenMode) -> None:
    async with make_store(parse(layout(place, name)), OpenMode.CREATE) as store:
        unmarked = [entry._replace(marks=()) for entry in samples.entries(3)]
        await write_all(store, [sample(KEY, unmarked)])
    async with make_store(parse(place), mode) as store:
        assert store.dialect.name == dialect
        assert set(await read(store)) == {KEY}


async def test_layout_of_an_empty_database_is_that_of_1x(place: str) -> None:
    await fill(place)
    async with make_store(parse(place)) as store:
        assert store.dialect.name == "agentscope1"


@pytest.mark.parametrize("mode", list(OpenMode))
async def test_layouts_both_are_to_be_chosen_from(place: str, mode: OpenMode) -> None:
    await fill(place)
    async with make_store(parse(layout(place, "agentscope2")), OpenMode.CREATE):
        pass
    with pytest.raises(UsageError, match="several layouts: agentscope2, memory") as error:
        async with make_store(parse(place), mode):
            pass
    assert "?layout=agentscope2" in error.value.hint
    async with make_store(parse(layout(place, "memory"))) as store:
        assert set(await read(store)) == {KEY}
    async with make_store(parse(layout(place, "agentscope2"))) as store:
        assert await read(store) == {}


@pytest.mark.parametrize(("name", "missing"), [("memory", "users"), ("agentscope2", "sessions")])
async def test_layout_that_is_not_there_is_an_error(
    tmp_path: Path, name: str, missing: str
) -> None:
    other = {"memory": "agentscope2", "agentscope2": "memory"}[name]
    place = f"sqlite:///{tmp_path}/m.db"
    async with make_store(parse(layout(place, other)), OpenMode.CREATE):
        pass
    with pytest.raises(BadData, match=f"no table {missing!r}"):
        async with make_store(parse(layout(place, name))):
            pass


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[[str], str]:
    """Make a database of other tables."""

    def make(sql: str) -> str:
        database = sqlite3.connect(tmp_path / "m.db")
        database.executescript(sql)
        database.close()
        return f"sqlite:///{tmp_path}/m.db"

    return make


async def test_layout_unknown_names_the_tables(foreign: Any) -> None:
    place = foreign("CREATE TABLE zebra (id INT); CREATE TABLE sessions (id INT, data TEXT)")
    with pytest.raises(BadData, match="the tables sessions, zebra") as error:
        async with make_store(parse(place)):
            pass
    assert "memctl stores detect" in (error.value.hint or "")


async def test_layout_of_another_application_is_not_taken_for_2x(foreign: Any) -> None:
    place = foreign(
        "CREATE TABLE messages (id INT); CREATE TABLE sessions (id INT); "
        "CREATE TABLE agents (id INT)"
    )
    with pytest.raises(BadData, match="'sessions' is not AgentScope 2's: it has no column"):
        async with make_store(parse(layout(place, "agentscope2"))):
            pass
