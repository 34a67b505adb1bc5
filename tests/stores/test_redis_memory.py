"""Redis memory as the field has it: old, expired, ambiguous, busy."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from memctl import location
from memctl.errors import NotFound, Unavailable, UsageError
from memctl.model import Entry, Memory, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.stores.redis.memory import RedisMemoryStore
from memctl.stores.redis.pool import OPTIONS
from memctl.stores.redis.wire import RedisServer, Wire, in_thread
from memctl.stores.redis.write import Writer
from tests.conftest import Servers

ALL = Selection()
KEY = MemoryKey("u", "s")
BASE = "user_id:u:session:s"


def entry(id: str, *marks: str, content: str = "c") -> Entry:
    message = {"id": id, "name": "n", "role": "user", "content": content}
    return Entry(id, json.dumps(message).encode(), marks)


def entries(count: int, start: int = 0) -> list[Entry]:
    return [entry(f"m{number}") for number in range(start, start + count)]


def page(found: list[Entry], key: MemoryKey = KEY, offset: int = 0, **about: Any) -> Page:
    return Page(Memory(key, **about), found, offset)


def large(found: list[Entry], key: MemoryKey = KEY, offset: int = 0, **about: Any) -> list[Page]:
    """The same memory in two pages."""
    half = len(found) // 2
    memory = Memory(key, **about)
    return [
        Page(memory, found[:half], offset, last=False),
        Page(memory, found[half:], offset + half),
    ]


def store_of(url: str, options: str = "") -> RedisMemoryStore:
    return RedisMemoryStore(location.parse(f"{url}?{options}"))


@pytest.fixture
def client(servers: Servers, redis_url: str) -> Iterator[redis.Redis]:
    with servers.redis.client(redis_url) as found:
        yield found


def put(client: redis.Redis, base: str, ids: list[str], **marks: list[str]) -> None:
    """A memory as AgentScope 1.0.14 writes it, without an index of its marks."""
    client.rpush(f"{base}:messages", *ids)
    for id in ids:
        client.set(f"{base}:msg:{id}", entry(id).message)
    for mark, marked in marks.items():
        client.rpush(f"{base}:mark:{mark}", *marked)


async def read(store: RedisMemoryStore, where: Selection = ALL) -> dict[MemoryKey, list[Entry]]:
    found: dict[MemoryKey, list[Entry]] = {}
    async for some in store.read(where):
        found.setdefault(some.memory.key, []).extend(some.entries)
    return found


async def write(
    store: RedisMemoryStore, *pages: Page, mode: WriteMode = WriteMode.ADD
) -> list[Tally]:
    async def all_pages() -> AsyncIterator[Page]:
        for one in pages:
            yield one

    return [tally async for tally in store.write(all_pages(), mode)]


def marks(found: list[Entry]) -> dict[str, tuple[str, ...]]:
    return {one.id: one.marks for one in found}


# What is there


async def test_marks_that_no_index_names(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["a", "b"])
    async with store_of(redis_url) as store:
        expected = {"a": ("compressed", "hint"), "b": ("hint",)}
        assert marks((await read(store))[KEY]) == expected
        assert marks((await read(store, Selection(keys=frozenset({KEY}))))[KEY]) == expected


async def test_an_index_that_began_with_the_first_new_mark(
    client: redis.Redis, redis_url: str
) -> None:
    """AgentScope 1.0.15 and later add a mark to the index, and leave out those of before."""
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["b"])
    client.sadd(f"{BASE}:marks_index", "hint", "gone")
    async with store_of(redis_url) as store:
        for where in (Selection(keys=frozenset({KEY})), ALL):
            found = (await read(store, where))[KEY]
            assert marks(found) == {"a": ("compressed",), "b": ("hint",)}


async def test_marks_of_a_large_memory(client: redis.Redis, redis_url: str) -> None:
    ids = [f"m{number}" for number in range(150_000)]
    base = "user_id:u:session:large"
    for start in range(0, len(ids), 10_000):
        some = ids[start : start + 10_000]
        client.rpush(f"{base}:messages", *some)
        client.mset({f"{base}:msg:{id}": b"{}" for id in some})
        client.rpush(f"{base}:mark:even", *reversed(some[::2]))
        client.rpush(f"{base}:mark:all", *some, *some[:5], f"stranger{start}")
    async with store_of(redis_url) as store:
        found = (await read(store))[MemoryKey("u", "large")]
    assert [one.id for one in found] == ids
    assert [one.marks for one in found] == [("all", "even"), ("all",)] * 75_000


async def test_ids_without_payload_are_left_out(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b", "c"])
    client.delete(f"{BASE}:msg:b")
    put(client, "user_id:u:session:gone", [f"x{number}" for number in range(200)])
    client.delete(*(f"user_id:u:session:gone:msg:x{number}" for number in range(200)))
    async with store_of(redis_url) as store:
        found = await read(store)
        assert {key: [one.id for one in some] for key, some in found.items()} == {KEY: ["a", "c"]}
        assert [memory.key async for memory in store.headers(ALL)] == [KEY]
        assert [(info.key, info.messages) async for info in store.memories(ALL)] == [(KEY, 2)]
        [warning] = store.warnings
        assert "201 message ids" in warning


async def test_payloads_that_are_no_messages(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "list", "cut", "latin", "raw", "hash"])
    client.set(f"{BASE}:msg:list", b"[1]")
    client.set(f"{BASE}:msg:cut", b'{"id": "cut')
    client.set(f"{BASE}:msg:latin", b'{"id": "\xe9t\xe9"}')
    client.set(f"{BASE}:msg:raw", b'{"id": "raw", "content": "\xed\xa0\xbd", "n": NaN}')
    client.delete(f"{BASE}:msg:hash")
    client.hset(f"{BASE}:msg:hash", "a", "b")
    async with store_of(redis_url) as store:
        found = (await read(store))[KEY]
        assert [one.id for one in found] == ["a", "raw"]
        assert found[1].message == b'{"id": "raw", "content": "\\ud83d", "n": NaN}'
        assert [line.split(" (")[0] for line in store.warnings] == [
            "left out 1 message ids without payload",
            "left out 3 payloads that are not a JSON object",
        ]


async def test_an_id_that_is_listed_twice(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b", "a"])
    async with store_of(redis_url) as store:
        assert [one.id for one in (await read(store))[KEY]] == ["a", "b", "a"]


async def test_names_that_are_no_utf8(servers: Servers, client: redis.Redis) -> None:
    base = b"user_id:\xff\xfe:session:\xe9"
    client.rpush(base + b":messages", b"\xc0id")
    client.set(base + b":msg:\xc0id", b'{"id": "other"}')
    client.rpush(base + b":mark:\x80", b"\xc0id")
    client.sadd(base + b":marks_index", b"\x80")
    url = f"redis://127.0.0.1:{servers.redis.port}/{client.connection_pool.connection_kwargs['db']}"
    target = servers.redis.fresh()
    async with store_of(url) as source, store_of(target) as copy:
        await write(copy, *[some async for some in source.read(ALL)])
        assert await read(copy) == await read(source) != {}
    assert servers.redis.dump(target) == servers.redis.dump(url)


async def test_what_is_no_memory(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a"])
    client.set("user_id:u:session:string:messages", "x")
    client.rpush("user_id:u:session:s:message", "a")
    client.rpush("other:user_id:u:session:s:messages", "a")
    client.set(f"{BASE}:state", "{}")
    client.set("user_id:u:session:wrong:marks_index", "x")
    put(client, "user_id:u:session:wrong", ["b"])
    client.set("user_id:u:session:wrong:mark:hint", "x")
    async with store_of(redis_url) as store:
        assert set(await read(store)) == {KEY, MemoryKey("u", "wrong")}
        keys = frozenset({KEY, MemoryKey("u", "string"), MemoryKey("u", "none")})
        assert set(await read(store, Selection(keys=keys))) == {KEY}


# Names that can be taken apart in several ways


async def test_the_selection_settles_what_a_key_means(client: redis.Redis, redis_url: str) -> None:
    put(client, "user_id:a:session:b:session:c", ["x"])
    default, other = MemoryKey("a", "b:session:c"), MemoryKey("a:session:b", "c")
    async with store_of(redis_url) as store:
        for where, key in (
            (ALL, default),
            (Selection(users=frozenset({"a"})), default),
            (Selection(users=frozenset({"a:session:b"})), other),
            (Selection(sessions=frozenset({"c"})), other),
            (Selection(users=frozenset({"a", "a:session:b"})), default),
            (Selection(keys=frozenset({other})), other),
        ):
            assert set(await read(store, where)) == {key}


async def test_marks_that_look_like_memories(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], **{"x:messages": ["a"], "messages": ["b"]})
    real = "user_id:u:session:s:mark:y"
    put(client, real, ["a"], hint=["a"])
    async with store_of(redis_url) as store:
        found = await read(store)
        assert set(found) == {KEY, MemoryKey("u", "s:mark:y")}
        assert marks(found[KEY]) == {"a": ("x:messages",), "b": ("messages",)}
        assert marks(found[MemoryKey("u", "s:mark:y")]) == {"a": ("hint",)}


async def test_the_library_s_patterns_in_names(client: redis.Redis, redis_url: str) -> None:
    names = ["*", "?", "[s]", "s", "\\s", "s*"]
    for name in names:
        put(client, f"user_id:u:session:{name}", [f"of {name}"])
    async with store_of(redis_url) as store:
        for name in names:
            found = await read(store, Selection(sessions=frozenset({name})))
            assert {key: some[0].id for key, some in found.items()} == {
                MemoryKey("u", name): f"of {name}"
            }


async def test_one_key_is_not_written_under_two_names(redis_url: str) -> None:
    first, second = MemoryKey("a:session:b", "c"), MemoryKey("a", "b:session:c")
    async with store_of(redis_url) as store:
        tallies = await write(store, page(entries(1), first), page(entries(1), second))
        codes = {tally.key: tally.failure and tally.failure.code for tally in tallies}
        assert codes == {first: None, second: "bad-name"}
        assert set(await read(store)) == {first}


@pytest.mark.parametrize("key", [MemoryKey("u", "s", "agent.memory"), MemoryKey("\ud800", "s")])
async def test_names_that_cannot_be_written(redis_url: str, key: MemoryKey) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page(entries(2), key)], large(entries(2), key)):
            [tally] = await write(store, *pages)
            assert tally.failure
            assert tally.failure.code == "bad-name"


@pytest.mark.parametrize("bad", [entry("\ud800"), entry("m9", "\udbff")])
async def test_ids_and_marks_that_cannot_be_written(
    client: redis.Redis, redis_url: str, bad: Entry
) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page([*entries(2), bad])], large([*entries(2), bad])):
            [tally] = await write(store, *pages)
            assert tally.failure
            assert tally.failure.code == "refused"
    assert client.dbsize() == 0


# Expiry


def expiries(client: redis.Redis, base: str = BASE) -> set[int]:
    """The seconds that the keys of the memory still live; -1 for ever."""
    found: Any = client.keys(f"{base}*")
    return {client.ttl(key) for key in found}


@pytest.mark.parametrize("split", [False, True])
async def test_an_expiry_is_one_of_all_keys(
    client: redis.Redis, redis_url: str, split: bool
) -> None:
    def pages(start: int, ttl: float | None) -> list[Page]:
        found = [entry(f"m{n}", "hint", f"k{start}") for n in range(start, start + 150)]
        return (
            large(found, offset=start, ttl=ttl) if split else [page(found, offset=start, ttl=ttl)]
        )

    async with store_of(redis_url) as store:
        await write(store, *pages(0, None))
        assert expiries(client) == {-1}
        await write(store, *pages(150, 500.0))
        assert expiries(client) <= {499, 500}
        await write(store, *pages(300, None))
        assert expiries(client) <= {499, 500}, "it stays"
        [memory] = [memory async for memory in store.headers(ALL)]
        assert memory.ttl == pytest.approx(500, abs=2)
        await write(store, *pages(0, None), mode=WriteMode.REPLACE)
        assert expiries(client) <= {499, 500}, "it stays"
        await write(store, *pages(0, 90.0), mode=WriteMode.REPLACE)
        assert expiries(client) <= {89, 90}
    async with store_of(redis_url, "ttl=7.5") as store:
        await write(store, *pages(150, 800.0))
        assert expiries(client) <= {7, 8}
        await read(store)
        assert expiries(client) <= {7, 8}


# Writing beside others


async def test_what_was_left_of_an_expired_memory(client: redis.Redis, redis_url: str) -> None:
    """Its list is gone; old marks must not come back on a message with an old id."""
    put(client, BASE, ["m0", "m1"], compressed=["m0"], hint=["m1"])
    client.delete(f"{BASE}:messages")
    client.sadd(f"{BASE}:marks_index", "hint")
    async with store_of(redis_url) as store:
        await write(store, page([entry("m0", "new"), entry("m1")]))
        assert marks((await read(store))[KEY]) == {"m0": ("new",), "m1": ()}
    assert client.smembers(f"{BASE}:marks_index") == {b"new"}


async def test_a_mark_that_outlived_its_message(client: redis.Redis, redis_url: str) -> None:
    """As AgentScope leaves it when it deletes a message whose mark is not in the index."""
    put(client, BASE, ["m0"], compressed=["m0", "m1"])
    async with store_of(redis_url) as store:
        await write(store, page([entry("m1", "hint")], offset=1))
        assert marks((await read(store))[KEY]) == {"m0": ("compressed",), "m1": ("hint",)}


async def test_adding_where_some_payloads_expired(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["m0", "m1", "m2"])
    client.delete(f"{BASE}:msg:m1")
    async with store_of(redis_url) as store:
        [tally] = await write(store, page(entries(1, start=1), offset=2))
        assert tally.failure
        assert tally.failure.code == "repeated-id", "m1 is listed still"
        [tally] = await write(store, page(entries(2, start=3), offset=2))
        assert tally == Tally(KEY, written=2)
        assert [one.id for one in (await read(store))[KEY]] == ["m0", "m2", "m3", "m4"]


async def test_adding_where_all_payloads_expired(client: redis.Redis, redis_url: str) -> None:
    client.rpush(f"{BASE}:messages", *(f"old{number}" for number in range(150)))
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        [tally] = await write(store, page(entries(2)))
        assert tally == Tally(KEY, written=2)
    assert client.llen(f"{BASE}:messages") == 2


async def test_a_memory_that_comes_twice(redis_url: str) -> None:
    async with store_of(redis_url) as store:
        tallies = await write(
            store, page(entries(2)), page(entries(1)), page(entries(1, 2), offset=2)
        )
        codes = [tally.failure and tally.failure.code for tally in tallies]
        assert codes == [None, "changed", None]
        assert (await read(store))[KEY] == entries(3)


async def test_payloads_without_id_are_overwritten(client: redis.Redis, redis_url: str) -> None:
    client.set(f"{BASE}:msg:m1", b'{"id": "m1", "of": "a lost memory"}')
    async with store_of(redis_url) as store:
        await write(store, page(entries(2)))
        assert (await read(store))[KEY] == entries(2)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("wrong", ["messages", "marks_index", "mark:hint"])
async def test_a_key_of_another_type(
    client: redis.Redis, redis_url: str, wrong: str, split: bool
) -> None:
    client.hset(f"{BASE}:{wrong}", "field", "value")
    found = [entry("m0", "hint"), entry("m1")]
    other = MemoryKey("u", "other")
    async with store_of(redis_url) as store:
        pages = large(found) if split else [page(found)]
        tallies = await write(store, *pages, page(entries(1), other))
        codes = {tally.key: tally.failure.code for tally in tallies if tally.failure}
        assert codes == {KEY: "refused"}
        assert set(await read(store)) == {other}
    assert client.keys(f"{BASE}*") == [f"{BASE}:{wrong}".encode()]


async def test_replacing_leaves_nothing_of_before(client: redis.Redis, redis_url: str) -> None:
    old = [f"m{number}" for number in range(1500)]
    put(client, BASE, old, hint=old[:700], a=["m1"])
    client.set(f"{BASE}:state", "{}")
    put(client, f"{BASE}:more", ["z"])
    async with store_of(redis_url) as store:
        [tally] = await write(store, page(entries(2, start=1)), mode=WriteMode.REPLACE)
        assert tally == Tally(KEY, written=2, deleted=1500)
    keys = {key.removeprefix(f"{BASE}:".encode()) for key in client.keys(f"{BASE}:*")}
    assert keys == {b"messages", b"msg:m1", b"msg:m2", b"state", b"more:messages", b"more:msg:z"}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("times", "code"), [(1, None), (99, "changed")])
async def test_another_client_is_faster(
    client: redis.Redis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,
    times: int,
    code: str | None,
) -> None:
    """What Redis refuses is tried again, and in the end left alone."""
    queued = Writer._changes
    interruptions = 0

    def interrupted(self: Any, one: Any, state: Any) -> Any:
        nonlocal interruptions
        yield from queued(self, one, state)
        if one.key == KEY and interruptions < times:
            interruptions += 1
            client.rpush(f"{BASE}:messages", "new")
            client.lpop(f"{BASE}:messages")
            client.delete(f"{BASE}:messages")

    monkeypatch.setattr(Writer, "_changes", interrupted)
    other = MemoryKey("u", "other")
    async with store_of(redis_url) as store:
        pages = large(entries(2)) if split else [page(entries(2))]
        tallies = await write(store, *pages, page(entries(1), other))
        codes = {tally.key: tally.failure and tally.failure.code for tally in tallies}
        assert codes == {KEY: code, other: None}
        assert set(await read(store)) == ({other} if code else {KEY, other})
    assert not client.keys("memctl:*")


def _kill_when_staged(program: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert run.stdout
    assert run.stdout.readline() == b"staged\n"
    run.kill()
    run.communicate()


async def test_a_run_that_is_killed_leaves_nothing_for_ever(
    client: redis.Redis, redis_url: str
) -> None:
    """What it had staged belongs to no memory, and expires."""
    program = f"""
import asyncio
from tests.stores.test_redis_memory import *

async def endless():
    yield Page(Memory(KEY), entries(800), 0, last=False)
    yield Page(Memory(KEY), entries(800, start=800), 800, last=False)
    print("staged", flush=True)
    await asyncio.sleep(60)

async def main():
    async with store_of({redis_url!r}) as store:
        async for _ in store.write(endless()):
            pass

asyncio.run(main())
"""
    _kill_when_staged(program)
    keys: Any = client.keys("*")
    assert len(keys) >= 800
    assert all(key.startswith(b"memctl:") and 0 < client.ttl(key) <= 6 * 3600 for key in keys)
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        await write(store, *large(entries(1600)))
        assert len((await read(store))[KEY]) == 1600


async def test_staged_messages_that_are_lost(client: redis.Redis, redis_url: str) -> None:

    first, second = large(entries(20))

    async def evicted() -> AsyncIterator[Page]:
        yield first
        keys: Any = client.keys("memctl:*")
        client.delete(keys[3])
        yield second

    async with store_of(redis_url) as store:
        [tally] = [tally async for tally in store.write(evicted())]
        assert tally.failure
        assert tally.failure.code == "changed"
        assert await read(store) == {}
    assert client.dbsize() == 0


# Servers


async def test_a_server_that_hangs_can_be_left(client: redis.Redis, redis_url: str) -> None:
    """Ctrl-C while Redis is busy: the waiting thread ends at once."""
    put(client, BASE, ["a"])
    async with store_of(redis_url) as store:
        busy = asyncio.create_task(asyncio.to_thread(client.execute_command, "DEBUG", "SLEEP", "3"))
        await asyncio.sleep(0.3)
        task = asyncio.create_task(read(store))
        await asyncio.sleep(0.3)
        start = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - start < 1
        await busy
        assert set(await read(store)) == {KEY}


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of something that takes connections, reads, and never answers."""
    links: list[socket.socket] = []

    def read_all(link: socket.socket) -> None:
        while link.recv(4096):
            pass

    def accept() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:  # shut down
                return
            links.append(link)
            threading.Thread(target=read_all, args=[link], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for link in links:
        link.shutdown(socket.SHUT_RDWR)
        link.close()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_what_never_answers(silent: int, scheme: str) -> None:
    start = time.monotonic()
    with pytest.raises(Unavailable, match="Timeout") as late:
        async with store_of(f"{scheme}://127.0.0.1:{silent}", "socket_connect_timeout=0.5"):
            pass
    assert 0.4 < time.monotonic() - start < 3
    assert "rediss:// is with TLS" in str(late.value.hint)


def test_how_long_memctl_waits_for_an_answer(silent: int) -> None:
    start = time.monotonic()
    runs = [inspect(f"{scheme}://127.0.0.1:{silent}") for scheme in ("redis", "rediss")]
    for process in runs:
        _, said = process.communicate(timeout=30)
        assert process.returncode == Unavailable.exit_code, said
        assert 9 < time.monotonic() - start < 15


def inspect(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "memctl", "inspect", url]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_connecting(
    silent: int, scheme: str, number: signal.Signals, code: int
) -> None:
    process = inspect(f"{scheme}://127.0.0.1:{silent}")
    time.sleep(2)  # until it connects
    start = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert time.monotonic() - start < 1.5
    assert "Traceback" not in said


async def test_a_connection_that_comes_too_late_is_closed(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(location.parse(f"{redis_url}?client_name=late"))
    connected, may_go, gone = threading.Event(), threading.Event(), threading.Event()
    take, give = server.take, server.give
    monkeypatch.setattr(server, "take", lambda: (take(), connected.set(), may_go.wait(10))[0])
    monkeypatch.setattr(server, "give", lambda link: (give(link), gone.set()))

    async def connect() -> None:
        async with server.wire():
            pass

    def names() -> list[str]:
        return [each["name"] for each in client.client_list()]

    task = asyncio.create_task(connect())
    assert await asyncio.to_thread(connected.wait, 10)
    assert "late" in names()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go.set()
    assert await asyncio.to_thread(gone.wait, 10)
    await asyncio.sleep(0.1)  # until the server sees it
    assert "late" not in names()
    await server.close()


async def test_only_connecting_is_limited_in_time(client: redis.Redis, redis_url: str) -> None:
    server = RedisServer(location.parse(f"{redis_url}?socket_connect_timeout=0.5"))
    slow = (b"EVAL", b"while redis.call('TIME')[1] < ARGV[1] do end", b"0")
    async with server.wire() as wire:
        until = b"%d" % (client.time()[0] + 2)
        assert await in_thread(wire, lambda: wire.ask([(*slow, until)])) == [None]
    await server.close()


async def test_the_password_of_the_environment(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.redis_with("password", password="a:b@/%")
    url = server.url(3, password="")
    monkeypatch.setenv("REDISCLI_AUTH", "a:b@/%")
    async with store_of(url) as store:
        assert await read(store) == {}
    monkeypatch.setenv("REDISCLI_AUTH", "wrong")
    with pytest.raises(Unavailable, match="refuses the login"):
        async with store_of(url):
            pass
    async with store_of(server.url(3)) as store:
        assert await read(store) == {}


async def test_writes_that_the_server_refuses(servers: Servers) -> None:
    """A server without the replicas that it wants; and it is said before anything is half done."""
    server = servers.redis_with("no-replicas", "--min-replicas-to-write", "1")
    async with store_of(server.url(1)) as store:
        assert await read(store) == {}
        for pages in ([page(entries(2))], large(entries(2))):
            with pytest.raises(Unavailable, match="redis refuses writes") as refused:
                await write(store, *pages)
            assert refused.value.hint
        assert await read(store) == {}


async def test_a_user_who_may_not(servers: Servers) -> None:
    """Reading without the right to read is no empty store."""
    server = servers.redis_with("acl")
    with server.client(server.url(0)) as client:
        client.acl_setuser(
            "looker", enabled=True, passwords=["+pw"], keys=["app:*"], commands=["+@all", "-lrange"]
        )
        put(client, f"app:{BASE}", ["a"])
    url = f"redis://looker:pw@127.0.0.1:{server.port}/0"
    async with store_of(url, "prefix=app:") as store:
        with pytest.raises(Unavailable, match="forbids a command"):
            await read(store)
    async with store_of(url, "prefix=other:") as store:
        with pytest.raises(Unavailable, match="forbids a command"):
            await write(store, page(entries(1)))


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost/zero",
        "redis://:pa/ss@localhost",
        "redis://user:pa?ss@localhost",
        "redis://user:p:pa#ss@localhost",
        "redis://localhost:port",
        "redis://localhost?no_such_option=1",
        "redis://localhost?db=zero",
        "rediss://localhost?ssl_cert_reqs=perhaps",
        "redis://localhost?ttl=soon",
        "redis://localhost?ttl=-1",
        "redis://localhost?ttl=inf",
    ],
)
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(UsageError) as wrong:
        RedisMemoryStore(location.parse(url))
    assert "pa" not in wrong.value.message.replace("has an option that", "")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://localhost?pefix=x", "prefix, ttl, state, layout; redis-py's are .*client_name"),
        ("redis://localhost?pefix=", "prefix"),
        ("redis://localhost?redis_connect_func=print", "socket_timeout"),
        ("redis://localhost?ssl_ca_certs=x", "rediss://"),
        ("unix:///socket?socket_keepalive=1", "prefix"),
    ],
)
def test_options_that_there_are_not(url: str, hint: str) -> None:
    with pytest.raises(UsageError) as wrong:
        RedisMemoryStore(location.parse(url))
    assert url.partition("?")[2].partition("=")[0] in wrong.value.message
    assert wrong.value.hint
    assert re.search(hint, wrong.value.hint)


@pytest.mark.parametrize("scheme", list(OPTIONS))
def test_options_that_there_are(scheme: str) -> None:
    values = {
        "db": "1",
        "max_connections": "5",
        "protocol": "3",
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": "false",
        "ssl_exclude_verify_flags": "VERIFY_X509_STRICT",
        "ssl_include_verify_flags": "VERIFY_X509_STRICT",
    }
    for name in OPTIONS[scheme]:
        RedisMemoryStore(location.parse(f"{scheme}://localhost/1?{name}={values.get(name, 1)}"))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://{'a' * 64}.example",
        "redis://localhost?socket_connect_timeout=-1",
        "redis://localhost?socket_connect_timeout=inf",
    ],
)
async def test_what_python_refuses(url: str) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        async with RedisMemoryStore(location.parse(url)):
            pass


@pytest.mark.parametrize("number", [1 << 20, -1, 1 << 40])
async def test_databases_that_there_are_not(servers: Servers, number: int) -> None:
    with pytest.raises(NotFound, match="does not exist") as wrong:
        async with store_of(servers.redis.url(0), f"db={number}"):
            pass
    assert "0 to 15" in str(wrong.value.hint)


async def test_ways_to_write_a_socket(servers: Servers) -> None:
    path = servers.redis.socket
    places = [f"unix://{path}?db=7", f"unix:{path}?db=7", f"redis+unix://{path}?db=7"]
    identities = set()
    for place in places:
        async with RedisMemoryStore(location.parse(place)) as store:
            identities.add(await store.identity())
    async with store_of(servers.redis.url(7)) as store:
        identities.add(await store.identity())
    assert len(identities) == 1


async def test_options_do_not_change_what_is_read(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a"], hint=["a"])
    options = "decode_responses=true&protocol=3&socket_timeout=20&health_check_interval=1"
    async with store_of(redis_url, options) as store:
        assert marks((await read(store))[KEY]) == {"a": ("hint",)}


async def test_no_more_commands_wait_than_asked(servers: Servers) -> None:
    server = RedisServer(location.parse(servers.redis.fresh()))
    async with server.wire() as wire:

        def ask() -> int:
            taken = most = 0

            def commands() -> Iterator[tuple[bytes, ...]]:
                nonlocal taken
                for number in range(1000):
                    taken += 1
                    yield (b"SET", b"k%d" % number, b"v" * (200_000 if number % 50 == 0 else 10))

            for count, _ in enumerate(wire.stream(commands(), ahead=lambda: 8)):
                most = max(most, taken - count)
            return most

        assert await in_thread(wire, ask) == 8
    await server.close()


@pytest.mark.parametrize("abort", [True, False])
async def test_a_broken_connection_does_not_come_back(
    client: redis.Redis, redis_url: str, abort: bool
) -> None:
    """The rest of a transaction would run outside of it."""
    server = RedisServer(location.parse(redis_url))

    def commands(wire: Wire, number: int) -> Iterator[tuple[bytes, ...]]:
        yield (b"MULTI",)
        yield (b"SET", b"first", b"1")
        if abort:
            wire.abort()
        else:
            client.execute_command("CLIENT", "KILL", "ID", str(number))
        for number in range(2000):
            yield (b"SET", b"k%d" % number, b"v" * 1000)
        yield (b"EXEC",)

    async with server.wire() as wire:
        [number] = wire.ask([(b"CLIENT", b"ID")])
        with pytest.raises(Unavailable):
            wire.ask(commands(wire, number))
        with pytest.raises(Unavailable):
            wire.ask([(b"SET", b"last", b"1")])
    assert client.dbsize() == 0
    async with server.wire() as wire:
        assert wire.ask([(b"PING",)]) == [b"PONG"]
    await server.close()


async def test_a_memory_that_is_deleted_while_it_is_read(
    client: redis.Redis, redis_url: str
) -> None:
    """A part of a memory is never handed out as the whole."""
    async with store_of(redis_url) as store:
        await write(store, *large(entries(8000)))
        pages = store.read(ALL)
        first = await anext(pages)
        assert not first.last
        client.flushdb()
        with pytest.raises(Unavailable, match="deleted while they were read"):
            [page async for page in pages]
