"""A server whose answer to a commit is lost, or does not come."""

from __future__ import annotations

import asyncio
import time

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fill, report
from tests.support.servers.pool import Servers
from tests.support.servers.proxy import Proxy

KYOTO, OSAKA = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
SERVERS = {
    "postgresql": (b"DELETE FROM message ", b"COMMIT"),
    "mysql": (b"DELETE", b"COMMIT"),
    "redis": (b"LREM", b"EXEC"),
}
"""For each server, a word of the deletion, and the word that commits it."""
Place = tuple[str, bytes, bytes]


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, servers: Servers) -> Place:
    """The URL of a store with two memories, and the words of ``SERVERS``."""
    make = {
        "postgresql": servers.postgresql.fresh,
        "mysql": servers.mariadb.fresh,
        "redis": servers.redis.fresh,
    }
    url = make[request.param]()
    asyncio.run(fill(url, {KYOTO: samples.entries(20), OSAKA: samples.entries(20)}))
    return url, *SERVERS[request.param]


def test_lost_answer_to_a_deletion(run: Run, place: Place) -> None:
    url, *words = place
    before = contents(url)
    with Proxy(url, *words) as proxy:
        done = run("delete", proxy.url, "--session", "kyoto", "--yes", "--json")
        assert proxy.lost == 1
    assert len(contents(url)[OSAKA]) == 20
    assert not contents(url).get(KYOTO)
    found = report(done)
    assert found["messages"]["deleted"] == 20
    assert "the change is stored" in done.stderr
    assert run("undo", found["run"], "--store", url, "--yes").exit_code == 0
    assert contents(url) == before


def test_answer_that_does_not_come(run: Run, place: Place) -> None:
    url, *words = place
    began = time.monotonic()
    with Proxy(url, *words, stalls=True) as proxy:
        done = run("delete", proxy.url, "--session", "kyoto", "--yes", "--json", "--timeout", "2")
        assert proxy.lost == 1
    assert time.monotonic() - began < 2 + 5
    assert report(done)["messages"]["deleted"] == 20
