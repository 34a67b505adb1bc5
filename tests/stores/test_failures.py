"""Servers that refuse, vanish or are full: said in memctl's words, and never half a memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from memctl.errors import BadData, MemctlError, NotFound, Unavailable
from memctl.model import MemoryKey, Page, WriteResult
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.testing import samples
from memctl.testing.drive import assert_same, pages, read, write, write_all
from memctl.testing.samples import Sample, sample
from tests.support.servers import free_port
from tests.support.servers.mariadb import Mariadb
from tests.support.servers.pool import Servers
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.servers.tls import Tls

SECRET = "sesame-0pen"


@dataclass(frozen=True)
class Served:
    """An empty database on a server."""

    server: Postgresql | Mariadb | Redis
    url: str

    def store(self) -> Store:
        """A store of it, not yet opened."""
        return make_store(parse(self.url), OpenMode.CREATE)

    def cut(self) -> None:
        """End every connection to it."""
        self.server.cut(self.url)


@pytest.fixture(params=["postgresql", "mariadb", "redis"])
def served(request: pytest.FixtureRequest, servers: Servers) -> Served:
    """A database on each server in turn."""
    server: Postgresql | Mariadb | Redis = getattr(servers, request.param)
    return Served(server, server.fresh())


async def refusal(url: str) -> MemctlError:
    """The error of opening the store."""
    with pytest.raises(MemctlError) as refused:
        async with make_store(parse(url)) as store:
            await read(store)
    for text in (refused.value.message, refused.value.hint or "", repr(refused.value)):
        assert SECRET not in text
    return refused.value


async def test_store_wrong_password(servers: Servers) -> None:
    urls = [
        servers.postgresql.url(
            servers.postgresql.fresh().rpartition("/")[2], user="memctl", password=SECRET
        ),
        servers.mariadb.url(servers.mariadb.fresh().rpartition("/")[2], password=SECRET),
        servers.redis_with("password", password="a:b@/%").url(1, password=SECRET),
    ]
    for url in urls:
        assert isinstance(await refusal(url), Unavailable)


async def test_store_password_that_is_missing(servers: Servers) -> None:
    protected = servers.redis_with("password", password="a:b@/%")
    assert isinstance(await refusal(protected.url(1, password="")), Unavailable)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
async def test_store_nobody_is_listening(scheme: str) -> None:
    url = f"{scheme}://u:{SECRET}@127.0.0.1:{free_port()}/1"
    assert isinstance(await refusal(url), Unavailable)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
async def test_store_host_that_has_no_address(scheme: str) -> None:
    assert isinstance(await refusal(f"{scheme}://u:{SECRET}@no.such.invalid/1"), Unavailable)


async def test_store_database_that_does_not_exist(servers: Servers) -> None:
    for url in (servers.postgresql.url("nothing"), servers.mariadb.url("nothing")):
        assert isinstance(await refusal(url), NotFound)


@pytest.mark.parametrize("name", ["a.db", "a.ndjson", "a.ndjson.gz", "a.ndjson.zst", "a.json"])
@pytest.mark.parametrize("content", [b"", b"\0\xff\xfe garbage" * 1000, b'{"a": [1, 2', b"[1]\n"])
async def test_store_files_of_another_kind(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert isinstance(await refusal(str(path)), BadData)
    assert path.read_bytes() == content


@pytest.mark.slow
async def test_store_redis_over_tls(servers: Servers, tmp_path: Path) -> None:
    written = sample(samples.key(0), samples.entries(1500))
    server = servers.redis
    number = server.fresh().rpartition("/")[2]
    async with Tls(server.port, tmp_path) as tls:
        plain = f"rediss://127.0.0.1:{tls.port}/{number}"
        async with make_store(parse(f"{plain}?ssl_ca_certs={tls.authority}")) as store:
            await write_all(store, [written])
            await _assert_holds(store, [written])
        async with make_store(parse(f"{plain}?ssl_cert_reqs=none")) as store:
            await _assert_holds(store, [written])
        assert isinstance(await refusal(plain), Unavailable), "nobody vouches for the certificate"
        without = plain.replace("rediss", "redis")
        assert isinstance(await refusal(without), Unavailable), "the server wants TLS"


async def test_store_tables_of_an_application(servers: Servers) -> None:
    """Their names are common: what is somebody else's is not touched."""
    table = "CREATE TABLE users (id INT PRIMARY KEY, email VARCHAR(9))"
    postgresql, mariadb = servers.postgresql.fresh(), servers.mariadb.fresh()
    servers.postgresql.execute(postgresql, table)
    servers.mariadb.execute(table.replace("id INT", "number INT"), mariadb)
    servers.postgresql.execute(postgresql, "ALTER TABLE users RENAME id TO number")
    for url in (postgresql, mariadb):
        assert isinstance(await refusal(url), BadData)
        with pytest.raises(BadData):
            async with make_store(parse(url), OpenMode.CREATE):
                pass


async def test_store_connection_lost_while_writing(served: Served) -> None:
    done, broken, later = (samples.key(number) for number in range(3))
    before = samples.entries(4)
    async with served.store() as store:
        await write_all(store, [sample(broken, before)])

    async def cutting() -> AsyncGenerator[Page]:
        async for page in pages([sample(done, samples.entries(10))]):
            yield page
        async for page in pages([sample(broken, samples.entries(5000, 50))], offset=4):
            yield page
            if page.offset == 4 + 2800:
                served.cut()
        async for page in pages([sample(later, samples.entries(10))]):
            yield page

    results: dict[MemoryKey, WriteResult] = {}
    with suppress(Unavailable):  # unless the store finds its way back
        async with served.store() as store, aclosing(store.write(cutting())) as written:
            async for result in written:
                results[result.key] = result
    written_keys = {key for key, result in results.items() if not result.failure}
    async with served.store() as store:
        found = await read(store)
    assert set(found) == written_keys | {broken}
    grown = samples.entries(5000, 50) if broken in written_keys else []
    assert_same(store, found[broken], sample(broken, [*before, *grown]))
    for key in written_keys - {broken}:
        assert_same(store, found[key], sample(key, samples.entries(10)))


@pytest.mark.slow
async def test_store_connection_lost_while_reading(served: Served) -> None:
    key = samples.key(0)
    async with served.store() as store:
        await write_all(store, [sample(key, samples.entries(20_000))])
    count = 0
    with suppress(Unavailable):  # unless everything was on its way already
        async with served.store() as store, aclosing(store.read(Selection())) as found:
            async for page in found:
                count += len(page.messages)
                served.cut()
        assert count == 20_000
    assert count


@pytest.mark.slow
async def test_store_message_larger_than_a_packet(servers: Servers) -> None:
    """MySQL and MariaDB take 16 MiB in one piece by default; what is larger harms no other."""
    server = servers.mariadb_with("packet", "--max-allowed-packet=1M")
    large = samples.entry("large", 2, content="l" * 3_000_000)
    keys = [samples.key(number) for number in range(4)]
    written = [sample(key, samples.entries(1500 if n == 2 else 3)) for n, key in enumerate(keys)]
    written[1].entries.insert(1, large)
    written[2].entries.insert(1200, large)
    async with make_store(parse(server.fresh()), OpenMode.CREATE) as store:
        results = await write(store, written)
        failures = {key: result.failure.code for key, result in results.items() if result.failure}
        assert failures == {keys[1]: "refused", keys[2]: "refused"}
        await _assert_holds(store, [written[0], written[3]])


async def test_store_redis_is_full(servers: Servers) -> None:
    server = servers.redis_with("full", "--maxmemory", "12mb")
    url = server.fresh()
    before = sample(samples.key(0), samples.entries(20))
    large = sample(
        samples.key(1), [samples.entry(f"l{n}", n, content="l" * 100_000) for n in range(200)]
    )
    try:
        async with make_store(parse(url), OpenMode.CREATE) as store:
            await write_all(store, [before])
            with suppress(Unavailable):
                results = await write(store, [large])
                assert results[large.key].failure
        async with make_store(parse(url)) as store:
            await _assert_holds(store, [before])
        keys = set(server.dump(url))
        assert not [key for key in keys if b"session1" in key], "nothing is left of what failed"
    finally:
        with server.client(url) as client:
            client.flushdb()


async def _assert_holds(store: Store, expected: list[Sample]) -> None:
    found = await read(store)
    assert set(found) == {one.key for one in expected}
    for one in expected:
        assert_same(store, found[one.key], one)
