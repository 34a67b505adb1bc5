"""Shards of SQL databases: the database selects them, and never fewer memories than memctl."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from memctl.engines.sql.store import SqlStore
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.shard import Shard, shard_hash
from memctl.testing import samples
from tests.support.cli import Run, contents, fill
from tests.support.servers.pool import Servers

NAMES = [
    *("a", "A", " a", "b ", "session 1", "session-1", "x" * 150, "0", "null", "a'b", 'a"b', "a\\b"),
    *(
        "ü",
        "u\u0308",
        "ß",
        "会话",
        "🙂",
        "👩\u200d🚀",
        "\u202e",
        "\u2028",
        "a\nb",
        "a\tb",
        "%s",
        ":a",
    ),
]
MESSAGES = 3
OF = 3


class Layout(NamedTuple):
    """A layout, a user that it can have, and the column with the names of sessions."""

    name: str
    dialect: str
    user: str
    table: str
    column: str


LAYOUTS = [
    Layout("memory", "agentscope1", "ada", "session", "id"),
    Layout("agentscope2", "agentscope2", "ada", "sessions", "id"),
    Layout("openai-agents", "openai-agents", "", "agent_messages", "session_id"),
]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agents.db"
    return str(getattr(servers, request.param).fresh())


@pytest.fixture(params=LAYOUTS, ids=[layout.name for layout in LAYOUTS])
def layout(request: pytest.FixtureRequest) -> Iterator[Layout]:
    """A layout, for whose dialect messages are made."""
    found: Layout = request.param
    samples.use(samples.Style(found.dialect, frozenset(), in_order=False))
    yield found
    samples.use(samples.Style())


def fill_names(url: str, user: str, names: Iterable[str] = NAMES) -> set[MemoryKey]:
    """Fill a database with a memory for each of the names; return the memories."""
    keys = [MemoryKey(user, name) for name in names]
    asyncio.run(fill(url, dict.fromkeys(keys, samples.entries(MESSAGES))))
    return set(keys)


def store_of(url: str) -> SqlStore:
    store = make_store(parse(url))
    assert isinstance(store, SqlStore)
    return store


@contextmanager
def counted_rows(store: SqlStore) -> Iterator[list[int]]:
    """Count the rows that the database returns."""
    numbers: list[int] = []
    rows = store.database.rows

    async def counting(*arguments: Any) -> AsyncGenerator[Sequence[Any]]:
        async for some in rows(*arguments):
            numbers.append(len(some))
            yield some

    with patch.object(store.database, "rows", counting):
        yield numbers


def test_database_hashes_names_as_memctl_does(url: str, layout: Layout) -> None:
    place = f"{url}?layout={layout.name}"
    fill_names(place, layout.user)

    async def hashes() -> dict[str, str]:
        store = store_of(place)
        async with store, store.database.snapshot(Shard(0, OF)) as connection:
            hashed = store.database.syntax.shard_hash(layout.column)
            sql = f"SELECT DISTINCT {layout.column}, {hashed} FROM {layout.table}"
            return dict(map(tuple, await store.database.fetch_all(connection, sql, {})))

    assert asyncio.run(hashes()) == {name: shard_hash(name) for name in NAMES}


@pytest.mark.slow
def test_database_returns_only_the_rows_of_a_shard(url: str, layout: Layout) -> None:
    place = f"{url}?layout={layout.name}"
    keys = fill_names(place, layout.user)

    async def read(shard: Shard | None) -> tuple[set[MemoryKey], int]:
        where = Selection(shard=shard)
        async with store_of(place) as store:
            with counted_rows(store) as numbers:
                found = {page.memory.key async for page in store.read(where)}
                assert {key async for key in store.list_keys(where)} == found
                assert {memory.key async for memory in store.headers(where)} == found
                assert {info.key async for info in store.list_memories(where)} == found
            assert all("time zone" in one for one in store.details)
        return found, sum(numbers)

    whole, rows = asyncio.run(read(None))
    parts = [asyncio.run(read(Shard(number, OF))) for number in range(OF)]
    assert whole == keys
    assert set().union(*(found for found, _ in parts)) == keys
    assert sum(len(found) for found, _ in parts) == len(keys)
    for found, read_rows in parts:
        assert read_rows <= rows * len(found) / len(keys) + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", ["SELECT 'lie'", "SELECT (1 / 0)::text", "SELECT CAST(NULL AS text)"]
)
def test_parts_of_a_database_with_another_md5_have_all(
    run: Run, servers: Servers, tmp_path: Path, body: str
) -> None:
    url = servers.postgresql.fresh()
    keys = fill_names(url, "ada")
    database = url.partition("?")[0].rpartition("/")[2]
    for sql in (
        f"CREATE FUNCTION md5(text) RETURNS text LANGUAGE SQL AS $$ {body} $$",
        f'ALTER DATABASE "{database}" SET search_path = public, pg_catalog',
    ):
        servers.postgresql.execute(servers.postgresql.admin_url(url), sql)
    for number in range(OF):
        words = ("export", url, "--shard", f"{number}/{OF}", "-o", tmp_path / "{shard}.ndjson")
        done = run("--verbose", *words)
        assert done.exit_code == 0, done.stderr
        assert done.stderr.count("memctl selects the memories of the shard itself") == 1
    files = [str(path) for path in tmp_path.glob("*.ndjson")]
    assert len(files) == OF
    assert set().union(*map(contents, files)) == keys


def test_target_is_empty_until_its_shard_has_memories(url: str, layout: Layout) -> None:
    place = f"{url}?layout={layout.name}"
    fill_names(place, layout.user, filter(Shard(1, OF).has_name, NAMES))

    async def is_empty(shard: Shard | None) -> bool:
        store = store_of(place)
        store.shard = shard
        async with store:
            return await store.is_empty()

    assert [asyncio.run(is_empty(Shard(number, OF))) for number in range(OF)] == [True, False, True]
    assert not asyncio.run(is_empty(None))


SESSIONS = [
    ("sqlite", "TEXT", "'a', '', NULL, 1, 1.5, x'ff', CAST(x'ff' AS TEXT), 'a' || char(0) || 'b'"),
    ("sqlite", "INTEGER", "1, 2, 'a', NULL"),
    ("postgresql", "text", "'a', '', NULL"),
    ("postgresql", "bigint", "1, -2, 12345678901, NULL"),
    ("postgresql", "uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', NULL"),
    *(("postgresql", type_, "'a', 'b', 'c', 'd', 'e', 'f'") for type_ in ("char(9)", "name")),
    ("mariadb", "BIGINT", "1, 2, 3, NULL"),
    *(("mariadb", type_, "'a', 'b', 'c', '', NULL") for type_ in ("CHAR(9)", "BINARY(9)")),
    ("mariadb", "VARBINARY(9)", "'a', x'c3bc', x'ff', x'e4'"),
    *(
        ("mariadb", f"VARCHAR(9) CHARACTER SET {charset}", "'ü', 'é', 'ä', 'a', 'b'")
        for charset in ("latin1", "ucs2", "utf8mb3")
    ),
]
"""The kind of a database, a type of the column of sessions, and values of the column."""


@pytest.mark.parametrize(("kind", "type_", "values"), SESSIONS)
def test_parts_have_sessions_of_every_type(
    servers: Servers, tmp_path: Path, kind: str, type_: str, values: str
) -> None:
    rows = ", ".join(f"({n}, {one}, 'user', 'hi')" for n, one in enumerate(values.split(", ")))
    create = f"CREATE TABLE talk (id INT PRIMARY KEY, s {type_}, role VARCHAR(9), content TEXT)"
    insert = f"INSERT INTO talk VALUES {rows}"
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/agents.db"
        with closing(sqlite3.connect(tmp_path / "agents.db")) as connection:
            connection.execute(create)
            connection.execute(insert)
            connection.commit()
    elif kind == "postgresql":
        url = servers.postgresql.fresh()
        servers.postgresql.execute(url, f"{create}; {insert}")
    else:
        url = servers.mariadb.fresh()
        servers.mariadb.execute(create, url)
        servers.mariadb.execute(insert, url)
    columns = "session:s,role:role,content:content,order:id"
    assert_parts_are_whole(f"{url}?layout=table&table=talk&columns={columns}")


@pytest.mark.parametrize("damage", ["", ", (7, 'ada')", ", (CAST(x'ff' AS TEXT), 'ada')"])
def test_parts_have_messages_without_a_session_row(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agents.db"
    fill_names(f"sqlite:///{path}", "ada", [*NAMES, ""])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM session WHERE length(id) < 4")
        connection.execute(f"INSERT INTO session VALUES ('empty', 'ada'){damage}")
        connection.commit()
    assert_parts_are_whole(f"sqlite:///{path}?layout=memory")


def assert_parts_are_whole(place: str) -> None:
    """Check that each memory is read, or reported as damaged, in exactly one part."""

    async def read(shard: Shard | None) -> list[str]:
        where = Selection(shard=shard)
        async with store_of(place) as store:
            memories = {page.memory.key: len(page.messages) async for page in store.read(where)}
            damaged = {key: why.message for key, why in store.left_out.failures.items()}
            listed = {key async for key in store.list_keys(where)}
            assert listed <= memories.keys() | damaged.keys()
        return [f"{key}: {about}" for found in (memories, damaged) for key, about in found.items()]

    whole = asyncio.run(read(None))
    parts = [one for number in range(OF) for one in asyncio.run(read(Shard(number, OF)))]
    assert sorted(parts) == sorted(whole)
    assert len(whole) > 1


@pytest.fixture(params=["SQL_ASCII", "LATIN1", "UTF-16"])
def other_encoding(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[str]:
    """An empty database that does not keep texts in UTF-8."""
    if request.param == "UTF-16":
        with closing(sqlite3.connect(tmp_path / "agents.db")) as connection:
            connection.execute("PRAGMA encoding = 'UTF-16'")
            connection.execute("CREATE TABLE other (id INTEGER)")
        yield f"sqlite:///{tmp_path}/agents.db"
        return
    options = f"TEMPLATE template0 ENCODING '{request.param}' LC_COLLATE 'C' LC_CTYPE 'C'"
    url = servers.postgresql.create(options)
    yield url
    servers.postgresql.drop(url)


@pytest.mark.slow
def test_parts_of_a_database_in_another_encoding_have_all(other_encoding: str) -> None:
    place = f"{other_encoding}?layout=memory"
    fill_names(place, "ada", ["a", "b", "c", "ü", "ä", "é", "ß"])
    assert_parts_are_whole(place)

    async def details() -> list[str]:
        async with store_of(place) as store:
            assert [key async for key in store.list_keys(Selection(shard=Shard(0, OF)))]
            return store.details

    assert "memctl selects the memories of the shard itself" in " ".join(asyncio.run(details()))
