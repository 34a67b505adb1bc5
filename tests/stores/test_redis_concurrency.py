"""Redis memories next to other clients: each is read as of one moment.

The agent here issues what ``RedisMemory`` of AgentScope 1.0.21 issues, in the same transactions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import redis

from memctl.engines.redis import pipeline
from memctl.errors import Failure, Lost, Unavailable
from memctl.model import Edit, Memory, MemoryKey, Page, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.stores.agentscope1.redis import snapshot
from memctl.stores.agentscope1.redis.edit import ChangeApplier
from memctl.stores.agentscope1.redis.store import RedisMemoryStore
from memctl.stores.agentscope1.redis.write import Writer
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    back,
    dump,
    edit,
    filled,
    gone,
    ids,
    kill_when_staged,
    large,
    make_message,
    make_messages,
    page,
    put,
    read,
    staging,
    store_of,
    write,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("times", "code"), [(1, None), (99, "changed")])
async def test_edit_is_retried_where_another_client_is_faster(
    client: redis.Redis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,
    times: int,
    code: str | None,
) -> None:
    """A transaction that Redis refuses is tried again, and in the end given up."""
    commands = ChangeApplier.commands
    interruptions = 0

    def interrupted(self: ChangeApplier) -> Iterator[Any]:
        nonlocal interruptions
        yield from commands(self)
        if self.changes.key == KEY and interruptions < times:
            interruptions += 1
            client.rpush(f"{BASE}:messages", f"new{interruptions}")
            client.set(f"{BASE}:msg:new{interruptions}", make_message("new").message)

    monkeypatch.setattr(ChangeApplier, "commands", interrupted)
    count = 3000 if split else 6
    found = filled(client, count)
    async with store_of(redis_url) as store:
        changes = [*(gone(id, "hint") for id in found[::2]), back("b", "a", after="m1")]
        result = await edit(store, *changes, size=1000)
        failure = Failure("changed", "another client keeps changing it")
        assert result == (
            WriteResult(KEY, failure=failure) if code else WriteResult(KEY, 1, deleted=count // 2)
        )
        new = [f"new{number + 1}" for number in range(interruptions)]
        left = found if code else ["m1", "b", *found[3::2]]
        assert ids(client, "messages") == [*left, *new]
    assert not client.keys("memctl:*")


RIVALS = {
    "a message": [("RPUSH", "messages", "new"), ("SET", "msg:new", "{}")],
    "a mark": [("RPUSH", "mark:hint", "m1"), ("SADD", "marks_index", "hint")],
    "a new mark": [("RPUSH", "mark:fresh", "m0"), ("SADD", "marks_index", "fresh")],
    "a deletion": [
        ("LREM", "messages", 0, "m0"),
        ("DEL", "msg:m0"),
        ("LREM", "mark:hint", 0, "m0"),
    ],
    "everything": [("DEL", "messages", "marks_index", "mark:a", "mark:hint")],
    "an expiry": [("PEXPIRE", "messages", 100_000)],
}


@pytest.mark.parametrize("rival", RIVALS)
async def test_edit_notices_changes_before_its_transaction(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    """Each such change is seen: the edit is done upon it, or not at all."""
    commands = ChangeApplier.commands
    rounds: list[ChangeApplier] = []

    def interrupted(self: ChangeApplier) -> Iterator[Any]:
        yield from commands(self)
        rounds.append(self)
        if len(rounds) == 1:
            for name, *arguments in RIVALS[rival]:
                keys = arguments if name == "DEL" else arguments[:1]
                rest = arguments[len(keys) :]
                client.execute_command(name, *(f"{BASE}:{key}" for key in keys), *rest)

    monkeypatch.setattr(ChangeApplier, "commands", interrupted)
    filled(client)
    async with store_of(redis_url) as store:
        result = await edit(store, gone("m0", "hint"), gone("m1", "a"))
    if rival in ("a message", "an expiry"):
        assert result == WriteResult(KEY, deleted=2)
        assert len(rounds) == 2
    else:
        assert result.failure
        assert result.failure.code == "changed"
        assert len(rounds) == 1
        assert client.exists(f"{BASE}:msg:m1")


async def test_edit_that_is_killed_leaves_only_keys_that_expire(
    client: redis.Redis, redis_url: str
) -> None:
    """The staged keys belong to no memory, and expire."""
    put(client, BASE, ["m0"], hint=["m0"])
    before = dump(client, BASE)
    program = f"""
import asyncio
from memctl.model import Edit, Memory
from tests.support.redis_memories import back
from tests.support.redis_memories import KEY, store_of

async def endless():
    for start in (0, 800, 1600):
        changes = [back(f"n{{n}}", "a", after="m0") for n in range(start, start + 800)]
        yield Edit(Memory(KEY), changes, start, last=False)
    print("staged", flush=True)
    await asyncio.sleep(60)

async def main():
    async with store_of({redis_url!r}) as store:
        async for _ in store.edit(endless()):
            pass

asyncio.run(main())
"""
    kill_when_staged(program)
    keys: Any = client.keys("memctl:*")
    assert len(keys) >= 1600
    assert all(0 < client.ttl(key) <= 6 * 3600 for key in keys)
    assert dump(client, BASE) == before
    async with store_of(redis_url) as store:
        assert (await edit(store, gone("m0", "hint"))).deleted == 1


async def test_edit_fails_where_staged_messages_are_evicted(
    client: redis.Redis, redis_url: str
) -> None:
    filled(client)
    before = dump(client, BASE)

    async def evicted() -> AsyncGenerator[Edit]:
        for start in (0, 1000, 2000):
            changes = [back(f"n{n}", after="m0") for n in range(start, start + 1000)]
            if start == 2000:
                keys: Any = client.keys("memctl:*")
                client.delete(keys[3])
            yield Edit(Memory(KEY), changes, start, last=start == 2000)

    async with store_of(redis_url) as store:
        [result] = [result async for result in store.edit(evicted())]
    assert result.failure
    assert result.failure.code == "changed"
    assert dump(client, BASE) == before
    assert not client.keys("memctl:*")


async def test_read_fails_where_a_memory_is_deleted_meanwhile(
    client: redis.Redis, redis_url: str
) -> None:
    """A part of a memory is never handed out as the whole."""
    async with store_of(redis_url) as store:
        await write(store, *large(make_messages(8000)))
        pages = store.read(ALL)
        first = await anext(pages)
        assert not first.last
        client.flushdb()
        with pytest.raises(Unavailable, match="deleted while they were read"):
            [page async for page in pages]


READS = 1000


@pytest.fixture
def slow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands reach the server by ones and twos, so that others can come between."""
    monkeypatch.setattr(pipeline, "AHEAD", 2)


class Agent:
    """One memory, changed in the transactions of ``RedisMemory``."""

    def __init__(self, client: redis.Redis, base: str = BASE) -> None:
        self._client = client
        self._base = base
        self._numbers = count()

    def add(self, *marks: str, messages: int = 2) -> None:
        """One exchange: its messages are numbered on, and the last one closes it."""
        ids = [f"{next(self._numbers):07}" for _ in range(messages)]
        with self._client.pipeline() as pipe:
            pipe.rpush(f"{self._base}:messages", *ids)
            for id in ids:
                pipe.set(f"{self._base}:msg:{id}", make_message(id).message)
                for mark in marks:
                    pipe.rpush(f"{self._base}:mark:{mark}", id)
                    pipe.sadd(f"{self._base}:marks_index", mark)
            pipe.execute()

    def delete(self, ids: list[bytes]) -> None:
        marks = self._client.smembers(f"{self._base}:marks_index")
        with self._client.pipeline() as pipe:
            for id in map(bytes.decode, ids):
                pipe.lrem(f"{self._base}:messages", 0, id)
                pipe.delete(f"{self._base}:msg:{id}")
                for mark in marks:
                    pipe.lrem(f"{self._base}:mark:{mark.decode()}", 0, id)
            pipe.execute()

    def trim(self, keep: int) -> None:
        """Delete the oldest exchanges."""
        ids = self._client.lrange(f"{self._base}:messages", 0, -1)
        if len(ids) > keep:
            self.delete(ids[: len(ids) - keep])

    def delete_by_mark(self, mark: str) -> None:
        self.delete(self._client.lrange(f"{self._base}:mark:{mark}", 0, -1))
        self._client.delete(f"{self._base}:mark:{mark}")
        self._client.srem(f"{self._base}:marks_index", mark)

    def mark(self, new: str, old: str) -> None:
        """All messages of one mark get another instead."""
        ids = self._client.lrange(f"{self._base}:mark:{old}", 0, -1)
        with self._client.pipeline() as pipe:
            for id in map(bytes.decode, ids):
                pipe.lrem(f"{self._base}:mark:{old}", 0, id)
                pipe.rpush(f"{self._base}:mark:{new}", id)
                pipe.sadd(f"{self._base}:marks_index", new)
            pipe.delete(f"{self._base}:mark:{old}")
            pipe.srem(f"{self._base}:marks_index", old)
            pipe.execute()

    def clear(self) -> None:
        self.delete(self._client.lrange(f"{self._base}:messages", 0, -1))


@contextmanager
def repeated(step: Callable[[], None], pause: float = 0.0005) -> Iterator[list[int]]:
    """Do the step over and over, in a thread; return how often.

    ``pause`` is in seconds.
    """
    stop = threading.Event()
    steps = [0]
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                step()
                steps[0] += 1
                time.sleep(pause)  # the reader is a thread of the same process
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield steps
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]


async def reads(
    store: RedisMemoryStore, check: Callable[[list[StoredMessage]], None], times: int = READS
) -> set[int]:
    """Read the memory again and again, by both ways; return the lengths it had."""
    lengths = set()
    for number in range(times):
        if number % 3:
            found = (await read(store, Selection(keys=frozenset({KEY})))).get(KEY, [])
        else:
            found = [one async for page in store.outline(ALL) for one in page.messages]
        check(found)
        lengths.add(len(found))
    assert not store.warnings
    return lengths


def consecutive(found: list[StoredMessage]) -> None:
    """Whole exchanges of two, none of them skipped."""
    numbers = [int(one.id) for one in found]
    if numbers:
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert (numbers[0] % 2, numbers[-1] % 2) == (0, 1), "half an exchange"


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_while_messages_are_appended(
    client: redis.Redis, redis_url: str
) -> None:
    agent = Agent(client)

    def check(found: list[StoredMessage]) -> None:
        consecutive(found)
        assert all(one.marks == ("hint",) for one in found), "a mark of another moment"

    times = READS // 4
    agent.add("hint", messages=snapshot._SMALL - times)

    def step() -> None:
        if client.llen(f"{BASE}:messages") < snapshot._SMALL + times:
            agent.add("hint")

    async with store_of(redis_url) as store:
        with repeated(step):
            lengths = await reads(store, check, times)
    assert len(lengths) > 5
    assert max(lengths) > snapshot._SMALL, "small, then large"


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_while_the_head_is_trimmed(
    client: redis.Redis, redis_url: str
) -> None:
    agent = Agent(client)

    def step() -> None:
        agent.add("hint", messages=4)
        agent.trim(40)

    def check(found: list[StoredMessage]) -> None:
        consecutive(found)
        assert len(found) in (0, *range(4, 45, 4))

    async with store_of(redis_url) as store:
        with repeated(step) as steps:
            await reads(store, check)
        assert steps[0] > 20


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_while_memories_are_cleared(
    client: redis.Redis, redis_url: str
) -> None:
    """Before or after, never between: even the memory may go, and come again."""
    agent = Agent(client)

    def step() -> None:
        agent.add("hint", messages=2)
        agent.add(messages=2)
        agent.add("hint", "x", messages=2)
        agent.delete_by_mark("hint")
        agent.clear()

    shapes = set()

    def check(found: list[StoredMessage]) -> None:
        shapes.add(tuple(one.marks for one in found))

    two = [("hint",)] * 2
    async with store_of(redis_url) as store:
        with repeated(step):
            await reads(store, check)
    full = [*two, (), ()]
    marked = [("hint", "x")] * 2
    possible = {(), tuple(two), tuple(full), (*full, *marked), ((), ())}
    assert len(shapes) > 1
    assert shapes <= possible


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_while_marks_change(client: redis.Redis, redis_url: str) -> None:
    """All messages go from one mark to the next, which no index named before: all or none has."""
    agent = Agent(client)
    agent.add("mark0", messages=50)
    names = count()

    def step() -> None:
        number = next(names)
        agent.mark(f"mark{number + 1}", f"mark{number}")

    seen = set()

    def check(found: list[StoredMessage]) -> None:
        assert len(found) == 50
        [marks] = {one.marks for one in found}
        assert len(marks) == 1
        seen.add(marks)

    async with store_of(redis_url) as store:
        with repeated(step, pause=0.005):
            await reads(store, check)
    assert len(seen) > 5


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_while_a_large_memory_grows(
    client: redis.Redis, redis_url: str
) -> None:
    agent = Agent(client)
    for _ in range(10):
        agent.add("even", messages=2500)
    async with store_of(redis_url) as store:
        with repeated(lambda: agent.add("even")):
            for _ in range(10):
                found = (await read(store))[KEY]
                consecutive(found)
                assert len(found) >= 25_000
                assert {one.marks for one in found} == {("even",)}


@pytest.mark.usefixtures("slow_network")
async def test_read_is_atomic_for_each_of_many_memories(
    client: redis.Redis, redis_url: str
) -> None:
    agents = [Agent(client, f"user_id:u:session:{number}") for number in range(60)]

    def step() -> None:
        for agent in agents:
            agent.add("hint")
            agent.trim(12)

    async with store_of(redis_url) as store:
        with repeated(step):
            for _ in range(READS // 20):
                for found in (await read(store)).values():
                    consecutive(found)
    assert not store.warnings


@pytest.mark.usefixtures("slow_network")
async def test_read_fails_where_messages_of_a_large_memory_go(
    client: redis.Redis, redis_url: str
) -> None:
    """A part of it was handed out: trying again is all that is left."""
    put(client, BASE, [f"m{number}" for number in range(8000)])
    async with store_of(redis_url) as store:
        pages = store.read(ALL)
        first = await anext(pages)
        assert not first.last
        Agent(client).delete([b"m7998", b"m7999"])
        with pytest.raises(Lost, match="deleted while they were read"):
            [page async for page in pages]
        assert len((await read(store))[KEY]) == 7998


@pytest.mark.usefixtures("slow_network")
async def test_read_fails_where_the_index_never_rests(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, BASE, ["a"])
    names = count()
    ask = snapshot.SnapshotReader._names

    def more(self: snapshot.SnapshotReader, base: bytes, *others: Any) -> list[bytes]:
        found = ask(self, base, *others)
        client.sadd(f"{BASE}:marks_index", f"new{next(names)}")
        return found

    monkeypatch.setattr(snapshot.SnapshotReader, "_names", more)
    async with store_of(redis_url) as store:
        with pytest.raises(Lost, match="got new marks"):
            await read(store)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("times", "code"), [(1, None), (99, "changed")])
async def test_write_is_retried_where_another_client_is_faster(
    client: redis.Redis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,
    times: int,
    code: str | None,
) -> None:
    """A transaction that Redis refuses is tried again, and in the end given up."""
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
        pages = large(make_messages(2)) if split else [page(make_messages(2))]
        results = await write(store, *pages, page(make_messages(1), other))
        codes = {result.key: result.failure and result.failure.code for result in results}
        assert codes == {KEY: code, other: None}
        assert set(await read(store)) == ({other} if code else {KEY, other})
    assert not client.keys("memctl:*")


async def test_write_that_is_killed_leaves_only_keys_that_expire(
    client: redis.Redis, redis_url: str
) -> None:
    """The staged keys belong to no memory, and expire."""
    program = f"""
import asyncio
from memctl.model import Memory, Page
from tests.support.redis_memories import *

async def endless():
    yield Page(Memory(KEY), make_messages(800), 0, last=False)
    yield Page(Memory(KEY), make_messages(800, start=800), 800, last=False)
    print("staged", flush=True)
    await asyncio.sleep(60)

async def main():
    async with store_of({redis_url!r}) as store:
        async for _ in store.write(endless()):
            pass

asyncio.run(main())
"""
    kill_when_staged(program)
    keys: Any = client.keys("*")
    assert len(keys) >= 800
    assert all(key.startswith(b"memctl:") and 0 < client.ttl(key) <= 6 * 3600 for key in keys)
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        await write(store, *large(make_messages(1600)))
        assert len((await read(store))[KEY]) == 1600


async def test_write_fails_where_staged_messages_are_evicted(
    client: redis.Redis, redis_url: str
) -> None:

    first, second = large(make_messages(20))

    async def evicted() -> AsyncGenerator[Page]:
        yield first
        keys: Any = client.keys("memctl:*")
        client.delete(keys[3])
        yield second

    async with store_of(redis_url) as store:
        with staging():
            [result] = [result async for result in store.write(evicted())]
        assert result.failure
        assert result.failure.code == "changed"
        assert await read(store) == {}
    assert client.dbsize() == 0
