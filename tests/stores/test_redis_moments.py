"""Redis memory read beside an agent that changes it: each memory is as of one moment.

The agent here issues what ``RedisMemory`` of AgentScope 1.0.21 issues, in the same transactions.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import redis

from memctl.errors import Lost
from memctl.model import StoredMessage
from memctl.selection import Selection
from memctl.stores.redis import pipeline, snapshot
from memctl.stores.redis.store import RedisMemoryStore
from tests.stores.redis_memories import ALL, BASE, KEY, entry, put, read, store_of

READS = 1000


@pytest.fixture(autouse=True)
def slow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands come to the server by ones and twos, so that others can come between."""
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
                pipe.set(f"{self._base}:msg:{id}", entry(id).message)
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
        """Deletes the oldest exchanges."""
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
def beside(step: Callable[[], None], pause: float = 0.0005) -> Iterator[list[int]]:
    """Does the step over and over, in a thread; gives how often.

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
    """Reads the memory again and again, by both ways; gives the lengths it had."""
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


async def test_appending(client: redis.Redis, redis_url: str) -> None:
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
        with beside(step):
            lengths = await reads(store, check, times)
    assert len(lengths) > 5
    assert max(lengths) > snapshot._SMALL, "small, then large"


async def test_trimming_at_the_head(client: redis.Redis, redis_url: str) -> None:
    agent = Agent(client)

    def step() -> None:
        agent.add("hint", messages=4)
        agent.trim(40)

    def check(found: list[StoredMessage]) -> None:
        consecutive(found)
        assert len(found) in (0, *range(4, 45, 4))

    async with store_of(redis_url) as store:
        with beside(step) as steps:
            await reads(store, check)
        assert steps[0] > 20


async def test_deleting_by_mark_and_clearing(client: redis.Redis, redis_url: str) -> None:
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
        with beside(step):
            await reads(store, check)
    full = [*two, (), ()]
    marked = [("hint", "x")] * 2
    possible = {(), tuple(two), tuple(full), (*full, *marked), ((), ())}
    assert len(shapes) > 1
    assert shapes <= possible


async def test_marking(client: redis.Redis, redis_url: str) -> None:
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
        with beside(step, pause=0.005):
            await reads(store, check)
    assert len(seen) > 5


async def test_a_large_memory_that_grows(client: redis.Redis, redis_url: str) -> None:
    agent = Agent(client)
    for _ in range(10):
        agent.add("even", messages=2500)
    async with store_of(redis_url) as store:
        with beside(lambda: agent.add("even")):
            for _ in range(10):
                found = (await read(store))[KEY]
                consecutive(found)
                assert len(found) >= 25_000
                assert {one.marks for one in found} == {("even",)}


async def test_many_memories(client: redis.Redis, redis_url: str) -> None:
    agents = [Agent(client, f"user_id:u:session:{number}") for number in range(60)]

    def step() -> None:
        for agent in agents:
            agent.add("hint")
            agent.trim(12)

    async with store_of(redis_url) as store:
        with beside(step):
            for _ in range(READS // 20):
                for found in (await read(store)).values():
                    consecutive(found)
    assert not store.warnings


async def test_a_large_memory_of_which_messages_go(client: redis.Redis, redis_url: str) -> None:
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


async def test_a_payload_that_is_really_missing(client: redis.Redis, redis_url: str) -> None:
    """In a large memory, too: what is still listed when its payload was missing has none."""
    put(client, BASE, [f"m{number}" for number in range(3000)])
    client.delete(f"{BASE}:msg:m5", f"{BASE}:msg:m2999")
    async with store_of(redis_url) as store:
        found = (await read(store))[KEY]
        assert len(found) == 2998
        assert store.warnings == [
            f"left out 2 message ids without payload (the first: 'm5' of '{BASE}')"
        ]
        outlines = [one async for page in store.outline(ALL) for one in page.messages]
        assert [one.id for one in outlines] == [one.id for one in found]


async def test_an_index_that_never_rests(
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
        with pytest.raises(Lost, match="gets new marks"):
            await read(store)


@pytest.mark.parametrize("large", [False, True])
async def test_messages_of_any_size_come_one_by_one(
    client: redis.Redis, redis_url: str, large: bool
) -> None:
    """No page holds much more than its size, whatever comes after small messages."""
    small = [f"s{number}" for number in range(1500 if large else 300)]
    put(client, BASE, [*small, *(f"h{number}" for number in range(40))])
    for number in range(40):
        client.set(f"{BASE}:msg:h{number}", entry(f"h{number}", content="h" * 3_000_000).message)
    async with store_of(redis_url) as store:
        sizes = []
        async for page in store.read(ALL):
            sizes.append(sum(len(one.message) for one in page.messages))
            await asyncio.sleep(0)
    assert sum(sizes) > 120_000_000
    assert max(sizes) < 8_000_000
