"""Sessions that a server ends because they are idle for long: one line with a hint, exit code 3."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.backends import database_of, in_style, new_place
from tests.support.cli import Run, contents, fails, fill
from tests.support.places import held, put
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

MEMORIES = {
    MemoryKey("ada", f"s{number}"): [
        samples.entry(f"m{number}-{at}", at, content="x" * 20_000) for at in range(100)
    ]
    for number in range(4)
}
SLOW = "--rate-limit", "1MB", "--retries", "0"
"""Options of a copy that waits for a second or two between two memories."""
IDLE = "the server closed an idle connection, or is gone"
SETTINGS = "idle_session_timeout", "idle_in_transaction_session_timeout"


def limited(servers: Servers, url: str, *settings: str) -> None:
    """Give the login limits of 0.15 seconds in a database."""
    role = f"ALTER ROLE memctl IN DATABASE {url.rpartition('/')[2]}"
    sql = f"{role} RESET ALL; " + "; ".join(f"{role} SET {one} = '150ms'" for one in settings)
    servers.postgresql.execute(servers.postgresql.admin_url(url), sql)


@pytest.fixture
def limits(servers: Servers, postgresql_url: str) -> Iterator[str]:
    """The URL of a database; its limits end with the test."""
    yield postgresql_url
    limited(servers, postgresql_url)


def test_idle_session_of_postgresql(
    run: Run, servers: Servers, limits: str, tmp_path: Path
) -> None:
    source = str(tmp_path / "source.ndjson")
    asyncio.run(fill(source, MEMORIES))
    asyncio.run(fill(limits, {MemoryKey("bob", "osaka"): samples.entries(3)}))
    limited(servers, limits, "idle_session_timeout")
    fails(run("migrate", source, limits, *SLOW), 3, IDLE, "hint: ", "idle_session_timeout")
    limited(servers, limits)
    assert run("migrate", source, limits).exit_code == 0
    assert contents(limits).keys() == {MemoryKey("bob", "osaka"), *MEMORIES}


def test_idle_transaction_of_postgresql(
    run: Run, servers: Servers, limits: str, tmp_path: Path
) -> None:
    asyncio.run(fill(limits, MEMORIES))
    limited(servers, limits, "idle_in_transaction_session_timeout")
    done = run("migrate", limits, tmp_path / "copy.db", *SLOW)
    fails(done, 3, IDLE, "hint: ", "idle_in_transaction_session_timeout")


def test_idle_session_of_mem0(run: Run, servers: Servers, tmp_path: Path) -> None:
    place = new_place("mem0-pgvector", tmp_path, servers)
    with in_style(place):
        put(place, samples.several(place.keys(4), 60))
    limited(servers, database_of(place.text), *SETTINGS)
    try:
        done = run(
            "migrate", place.text, tmp_path / "copy.ndjson", "--rate-limit", "5kB", *SLOW[2:]
        )
        fails(done, 3, IDLE, "hint: ", *SETTINGS)
    finally:
        limited(servers, database_of(place.text))
    assert len(held(place)) == 4


@pytest.mark.parametrize("way", ["from", "to"])
def test_idle_session_of_mariadb(run: Run, servers: Servers, tmp_path: Path, way: str) -> None:
    url, other = servers.mariadb_with("idle", "--wait-timeout=1").fresh(), tmp_path / "other.ndjson"
    asyncio.run(fill(url if way == "from" else str(other), MEMORIES))
    if way == "to":
        asyncio.run(fill(url, {MemoryKey("bob", "osaka"): samples.entries(3)}))
    places = (url, tmp_path / "copy.db") if way == "from" else (other, url)
    fails(run("migrate", *places, *SLOW), 3, IDLE, "hint: ", "wait_timeout")


def test_long_statement_of_mariadb(run: Run, servers: Servers, tmp_path: Path) -> None:
    source = str(tmp_path / "source.ndjson")
    asyncio.run(fill(source, MEMORIES))
    mariadb = servers.mariadb
    url = mariadb.fresh()
    mariadb.execute(
        "CREATE OR REPLACE USER short@'%' IDENTIFIED BY 'short' WITH MAX_STATEMENT_TIME 0.0001"
    )
    mariadb.execute("GRANT ALL ON *.* TO short@'%'")
    limited_url = mariadb.url(urlsplit(url).path[1:], user="short", password="short")
    done = run("import", source, limited_url, "--retries", 0)
    fails(done, 3, "max_statement_time exceeded", "hint: raise max_statement_time")
