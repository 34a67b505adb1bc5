"""Shards of SQL databases: the database selects them, and never fewer memories than memctl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
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
LAYOUTS = ["?layout=memory"]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agents.db"
    return str(getattr(servers, request.param).fresh())


def fill_names(url: str) -> set[MemoryKey]:
    """Fill a database with a memory for each of ``NAMES``; return the memories."""
    keys = [MemoryKey("ada", name) for name in NAMES]
    asyncio.run(fill(url, dict.fromkeys(keys, samples.entries(MESSAGES))))
    return set(keys)


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_database_hashes_names_as_memctl_does(url: str, layout: str) -> None:
    fill_names(url + layout)
    table = "session" if "memory" in layout else "sessions" if "2" in layout else "agent_sessions"
    column = "session_id" if table == "agent_sessions" else "id"

    async def hashes() -> list[tuple[str, str]]:
        store = make_store(parse(url + layout))
        assert isinstance(store, SqlStore)
        async with store, store.database.snapshot(Shard(0, OF)) as connection:
            assert store.database.syntax.selects_shards
            sql = f"SELECT {column}, {store.database.syntax.shard_hash(column)} FROM {table}"
            return [
                (name, found) for name, found in await store.database.fetch_all(connection, sql, {})
            ]

    found = dict(asyncio.run(hashes()))
    assert found == {name: shard_hash(name) for name in NAMES}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_database_returns_only_the_rows_of_a_shard(url: str, layout: str) -> None:
    keys = fill_names(url + layout)

    async def read(shard: Shard | None) -> tuple[set[MemoryKey], int]:
        store = make_store(parse(url + layout))
        assert isinstance(store, SqlStore)
        async with store:
            with counted_rows(store) as numbers:
                found = {page.memory.key async for page in store.read(Selection(shard=shard))}
                assert {key async for key in store.list_keys(Selection(shard=shard))} == found
                headers = store.headers(Selection(shard=shard))
                assert {memory.key async for memory in headers} == found
                assert {
                    info.key async for info in store.list_memories(Selection(shard=shard))
                } == found
        assert not store.details
        return found, sum(numbers)

    whole, rows = asyncio.run(read(None))
    parts = [asyncio.run(read(Shard(number, OF))) for number in range(OF)]
    assert whole == keys
    assert set().union(*(found for found, _ in parts)) == keys
    assert sum(len(found) for found, _ in parts) == len(keys)
    for found, read_rows in parts:
        assert read_rows < rows * (len(found) + 4) / len(keys)


@pytest.mark.parametrize(
    "body", ["SELECT 'lie'", "SELECT (1 / 0)::text", "SELECT CAST(NULL AS text)"]
)
def test_parts_of_a_database_with_another_md5_have_all(
    run: Run, servers: Servers, tmp_path: Path, body: str
) -> None:
    url = servers.postgresql.fresh()
    keys = fill_names(url)
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_target_is_empty_until_its_shard_has_memories(url: str, layout: str) -> None:
    names = [name for name in NAMES if Shard(1, OF).has_name(name)]
    keys = [MemoryKey("ada", name) for name in names]
    asyncio.run(fill(url + layout, dict.fromkeys(keys, samples.entries(MESSAGES))))

    async def is_empty(shard: Shard | None) -> bool:
        store = make_store(parse(url + layout))
        store.shard = shard
        async with store:
            return await store.is_empty()

    empty = [asyncio.run(is_empty(Shard(number, OF))) for number in range(OF)]
    assert empty == [True, False, True]
    assert not asyncio.run(is_empty(None))
