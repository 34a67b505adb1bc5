"""Redis memory written beside others: expiries, remains, rivals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis

from memctl.model import MemoryKey, Page, WriteMode, WriteResult
from memctl.stores.redis.write import Writer
from tests.stores.redis_memories import (
    ALL,
    BASE,
    KEY,
    entries,
    entry,
    large,
    marks,
    page,
    put,
    read,
    staging,
    store_of,
    write,
)

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
        assert tally == WriteResult(KEY, written=2)
        assert [one.id for one in (await read(store))[KEY]] == ["m0", "m2", "m3", "m4"]


async def test_adding_where_all_payloads_expired(client: redis.Redis, redis_url: str) -> None:
    client.rpush(f"{BASE}:messages", *(f"old{number}" for number in range(150)))
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        [tally] = await write(store, page(entries(2)))
        assert tally == WriteResult(KEY, written=2)
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
        assert tally == WriteResult(KEY, written=2, deleted=1500)
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
from memctl.model import Memory, Page
from tests.stores.redis_memories import *

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

    async def evicted() -> AsyncGenerator[Page]:
        yield first
        keys: Any = client.keys("memctl:*")
        client.delete(keys[3])
        yield second

    async with store_of(redis_url) as store:
        with staging():
            [tally] = [tally async for tally in store.write(evicted())]
        assert tally.failure
        assert tally.failure.code == "changed"
        assert await read(store) == {}
    assert client.dbsize() == 0
