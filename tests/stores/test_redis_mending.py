"""What doctor mends in the keys of Redis memories, and takes back, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis

from memctl.selection import Selection
from memctl.store import Record
from memctl.stores.redis.maintenance import REPAIRS
from tests.stores.redis_memories import ALL, BASE, KEY, entry, put, store_of
from tests.stores.test_redis_faults import examined, healthy

GONE = "user_id:v:session:gone"
MANY = [f"x{n}" for n in range(3000)]


class Notes:
    """What was noted, as it would come back from a file."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def __call__(self, record: Record) -> None:
        self.records.append(json.loads(json.dumps(record)))

    async def reversed(self) -> AsyncGenerator[Record]:
        for record in reversed(self.records):
            yield record


def without_payload(client: redis.Redis) -> None:
    """Messages that are listed, one with the mark, and no more; and a memory of such alone."""
    for id in ("m1", "m3"):
        client.delete(f"{BASE}:msg:{id}")
    put(client, GONE, ["a", "b"])
    client.expire(f"{GONE}:messages", 1000)
    client.delete(f"{GONE}:msg:a", f"{GONE}:msg:b")


def many_without_payload(client: redis.Redis) -> None:
    client.rpush(f"{BASE}:messages", *MANY)
    client.lpush(f"{BASE}:messages", "first")
    client.rpush(f"{BASE}:mark:a", *MANY[1000:])


def without_id(client: redis.Redis) -> None:
    for n in range(2500):
        client.set(f"{BASE}:msg:x{n}", b"{}", ex=1000 if n % 2 else None)
    client.set(f"{GONE}:msg:m1", b'{"half": "\xed\xa0\xbd", "bad": "\xff"}')


def marks(client: redis.Redis) -> None:
    client.rpush(f"{BASE}:mark:a", "gone", "gone too")
    client.lpush(f"{BASE}:mark:a", "first")
    client.rpush(f"{GONE}:mark:hint", "m1", "m2")
    client.expire(f"{GONE}:mark:hint", 500)


def early(client: redis.Redis) -> None:
    for key in client.scan_iter(f"{BASE}:*"):
        client.expire(key, 1000)
    client.expire(f"{BASE}:msg:m1", 500)
    client.expire(f"{BASE}:mark:a", 600)
    put(client, GONE, ["a", "b"])
    client.expire(f"{GONE}:msg:a", 500)


def never(client: redis.Redis) -> None:
    for key in client.scan_iter(f"{BASE}:*"):
        client.expire(key, 1000)
    client.persist(f"{BASE}:msg:m3")


def no_index(client: redis.Redis) -> None:
    client.delete(f"{BASE}:marks_index")
    client.expire(f"{BASE}:messages", 1000)


def stale_index(client: redis.Redis) -> None:
    client.rpush(f"{BASE}:mark:b", "m1")


FAULTS = {
    "id-without-payload": [without_payload, many_without_payload],
    "payload-without-id": [without_id],
    "orphan-mark": [marks],
    "expires-early": [early],
    "never-expires": [never],
    "marks-index-missing": [no_index],
    "marks-index-stale": [stale_index],
}
CASES = [
    pytest.param(code, make, id=f"{code}, {make.__name__}")
    for code, some in FAULTS.items()
    for make in some
]


def dump(client: redis.Redis) -> dict[bytes, Any]:
    """Every key with its value, and its TTL in units of 100 seconds: machines may be slow."""
    found = {}
    for key in client.scan_iter():
        kind = client.type(key)
        value = (
            client.get(key)
            if kind == b"string"
            else client.lrange(key, 0, -1)
            if kind == b"list"
            else client.smembers(key)
        )
        ttl = client.pttl(key)
        found[key] = (value, round(ttl / 100_000) if ttl >= 0 else None)
    return found


async def codes(url: str) -> dict[tuple[str, Any], int]:
    """What is found."""
    return {(fault.code, fault.key): fault.count for fault in await examined(url)}


def test_each_is_tried() -> None:
    assert set(FAULTS) == REPAIRS


@pytest.mark.parametrize(("code", "make"), CASES)
async def test_mended_and_taken_back(
    client: redis.Redis, redis_url: str, code: str, make: Any
) -> None:
    healthy(client)
    make(client)
    before, found = dump(client), await codes(redis_url)
    count = sum(number for (one, _), number in found.items() if one == code)
    assert count
    notes = Notes()
    async with store_of(redis_url) as store:
        assert code in store.features.repairs
        assert await store.maintenance().repair(code, ALL, notes) == count
        assert not [one for one, _ in await codes(redis_url) if one == code]
        assert await store.maintenance().repair(code, ALL, notes) == 0
        after = dump(client)
        assert await store.maintenance().revert(notes.reversed())
        assert dump(client) == before
        await store.maintenance().revert(notes.reversed())
        assert dump(client) == before
    assert await codes(redis_url) == found
    kept = {f"{BASE}:msg:m2".encode(), f"{BASE}:messages".encode()}
    assert {key: after[key][0] for key in kept}.keys() == kept


@pytest.mark.parametrize(("code", "make"), CASES)
async def test_what_cannot_be_noted_is_not_mended(
    client: redis.Redis, redis_url: str, code: str, make: Any
) -> None:
    async def full(_: Record) -> None:
        raise OSError("no space left")

    healthy(client)
    make(client)
    before = dump(client)
    with pytest.raises(OSError, match="no space left"):
        async with store_of(redis_url) as store:
            await store.maintenance().repair(code, ALL, full)
    assert dump(client) == before


async def test_only_the_selected(client: redis.Redis, redis_url: str) -> None:
    healthy(client)
    marks(client)
    async with store_of(redis_url) as store:
        assert (
            await store.maintenance().repair(
                "orphan-mark", Selection(users=frozenset(["v"])), Notes()
            )
            == 2
        )
    assert list(await codes(redis_url)) == [("orphan-mark", KEY)]


async def test_nothing_of_an_agent_is_lost(client: redis.Redis, redis_url: str) -> None:
    """Messages come and go while ids without payload are taken off the list."""
    healthy(client)
    client.rpush(f"{BASE}:messages", *MANY)
    notes = Notes()

    async def agent(done: asyncio.Event) -> int:
        """Adds messages as RedisMemory does."""
        number = 0
        while not done.is_set():
            with client.pipeline() as pipe:
                pipe.rpush(f"{BASE}:messages", f"new{number}")
                pipe.set(f"{BASE}:msg:new{number}", entry(f"new{number}").message)
                pipe.execute()
            number += 1
            await asyncio.sleep(0.05)
        return number

    done = asyncio.Event()
    writing = asyncio.create_task(agent(done))
    async with store_of(redis_url) as store:
        await asyncio.sleep(0.1)
        assert await store.maintenance().repair("id-without-payload", ALL, notes) == len(MANY)
    done.set()
    number = await writing
    assert number > 1
    expected = ["m1", "m2", "m3", *(f"new{n}" for n in range(number))]
    assert [id.decode() for id in client.lrange(f"{BASE}:messages", 0, -1)] == expected


async def test_a_payload_that_expired_stays_away(client: redis.Redis, redis_url: str) -> None:
    client.set(f"{BASE}:msg:x", "{}", px=300)
    notes = Notes()
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair("payload-without-id", ALL, notes) == 1
        await asyncio.sleep(0.4)
        assert await store.maintenance().revert(notes.reversed()) == 0
    assert dump(client) == {}
