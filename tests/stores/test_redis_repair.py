"""Checking and repairing the keys of Redis memories, each defect made on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from memctl.model import Finding, MemoryKey
from memctl.ops.doctor.repair import QUARANTINED
from memctl.selection import Selection
from memctl.store import Record
from memctl.stores.agentscope1.redis.maintenance import REPAIRS
from tests.support.places import Notes
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    contents,
    findings_of,
    make_message,
    put,
    put_intact,
    store_of,
)

OTHER = MemoryKey("u:session:x", "s:msg:y")
OTHER_BASE = "user_id:u:session:x:session:s:msg:y"


async def test_check_finds_nothing_in_an_intact_memory(client: redis.Redis, redis_url: str) -> None:
    """The index names a mark without a list wherever the last message of a mark was deleted."""
    put_intact(client)
    put_intact(client, OTHER_BASE, ttl=1000)
    client.set(f"{BASE}:state", "{}")
    client.set("memctl:lock:memory", "somebody")
    assert await findings_of(redis_url) == []


async def test_check_finds_ids_without_payload(client: redis.Redis, redis_url: str) -> None:
    put_intact(client)
    client.delete(f"{BASE}:msg:m2")
    put(client, OTHER_BASE, ["m1"])
    client.delete(f"{OTHER_BASE}:msg:m1")
    one, two = sorted(await findings_of(redis_url), key=lambda finding: finding.key or KEY)
    assert one == Finding("id-without-payload", KEY, 1, ("m2",))
    assert (two.code, two.count, two.examples) == ("id-without-payload", 1, ("m1",))
    assert two.key != KEY


async def test_check_finds_payloads_without_id(client: redis.Redis, redis_url: str) -> None:
    put_intact(client)
    for id in ("lost:msg:1", "m4"):
        client.set(f"{BASE}:msg:{id}", "{}")
    client.set("user_id:v:session:gone:msg:m1", "{}")
    one, two = await findings_of(redis_url)
    assert (one.code, one.key, one.count) == ("payload-without-id", KEY, 2)
    assert set(one.examples) == {"lost:msg:1", "m4"}
    assert two == Finding("payload-without-id", MemoryKey("v", "gone"), 1, ("m1",))
    [only] = await findings_of(redis_url, Selection(users=frozenset(["v"])))
    assert only == two


async def test_check_finds_orphan_marks(client: redis.Redis, redis_url: str) -> None:
    put_intact(client)
    client.rpush(f"{BASE}:mark:a", "gone", "gone too")
    client.rpush("user_id:v:session:gone:mark:hint", "m1", "m2")
    one, two = await findings_of(redis_url)
    assert one == Finding("orphan-mark", KEY, 2, ("gone", "gone too"))
    assert (two.code, two.key, two.count) == ("orphan-mark", MemoryKey("v", "gone"), 2)


async def test_check_finds_keys_that_expire_apart(client: redis.Redis, redis_url: str) -> None:
    put_intact(client, ttl=1000)
    client.expire(f"{BASE}:msg:m1", 500)
    client.expire(f"{BASE}:mark:a", 700)
    client.expire(f"{BASE}:msg:m2", 998)  # given a moment before
    client.persist(f"{BASE}:msg:m3")
    early, never = await findings_of(redis_url)
    assert (early.code, early.key, early.count) == ("expires-early", KEY, 2)
    assert set(early.examples) == {"msg:m1", "mark:a"}
    assert never == Finding("never-expires", KEY, 1, ("msg:m3",))


async def test_check_finds_a_list_that_outlives_its_messages(
    client: redis.Redis, redis_url: str
) -> None:
    put_intact(client, ttl=1000)
    client.persist(f"{BASE}:messages")
    [early] = await findings_of(redis_url)
    assert (early.code, early.count) == ("expires-early", 5)


async def test_check_finds_a_missing_index(client: redis.Redis, redis_url: str) -> None:
    """As in memories that AgentScope 1.0.14 left."""
    put(client, BASE, ["m1"], a=["m1"], b=["m1"])
    assert [(finding.code, finding.count) for finding in await findings_of(redis_url)] == [
        ("marks-index-missing", 2)
    ]
    client.sadd(f"{BASE}:marks_index", "b")
    assert await findings_of(redis_url) == [Finding("marks-index-stale", KEY, 1, ("a",))]


async def test_check_finds_payloads_that_are_not_objects(
    client: redis.Redis, redis_url: str
) -> None:
    put_intact(client)
    client.set(f"{BASE}:msg:m1", '{"id": "m1')
    client.set(f"{BASE}:msg:m2", "[]")
    assert await findings_of(redis_url) == [Finding("payload-not-json", KEY, 2, ("m1", "m2"))]


async def test_check_finds_a_repeated_id(client: redis.Redis, redis_url: str) -> None:
    """RedisMemory does so with ``skip_duplicated=False``."""
    put_intact(client)
    client.rpush(f"{BASE}:messages", "m1")
    assert await findings_of(redis_url) == [Finding("repeated-id", KEY, 1)]


@pytest.mark.slow
async def test_check_takes_large_and_many_memories(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, [f"m{n}" for n in range(25_000)], a=[f"m{n}" for n in range(12_000)])
    client.sadd(f"{BASE}:marks_index", "a")
    for n in range(300):
        put(client, f"user_id:u{n}:session:s", ["m1", "m2"], a=["m2"])
        client.sadd(f"user_id:u{n}:session:s:marks_index", "a")
    assert await findings_of(redis_url) == []
    client.lrem(f"{BASE}:messages", 0, "m24999")
    client.lrem(f"{BASE}:messages", 0, "m11999")
    client.delete("user_id:u7:session:s:messages")
    found = await findings_of(redis_url)
    assert [(finding.code, finding.key, finding.count) for finding in found] == [
        ("orphan-mark", KEY, 1),
        ("orphan-mark", MemoryKey("u7", "s"), 1),
        ("payload-without-id", KEY, 2),
        ("payload-without-id", MemoryKey("u7", "s"), 2),
    ]


GONE = "user_id:v:session:gone"
MANY = [f"x{n}" for n in range(3000)]


def without_payload(client: redis.Redis) -> None:
    """Delete the payloads of listed messages, one of them marked, and of a whole memory."""
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


def orphan_marks(client: redis.Redis) -> None:
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
    "orphan-mark": [orphan_marks],
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


async def codes(url: str) -> dict[tuple[str, Any], int]:
    """Return the counts of what doctor finds."""
    return {(finding.code, finding.key): finding.count for finding in await findings_of(url)}


def test_repair_cases_cover_every_code() -> None:
    assert set(FAULTS) == REPAIRS


@pytest.mark.parametrize(("code", "make"), CASES)
async def test_repair_can_be_reverted_but_for_what_it_moves(
    client: redis.Redis, redis_url: str, code: str, make: Any
) -> None:
    put_intact(client)
    make(client)
    before, found = contents(client), await codes(redis_url)
    count = sum(number for (one, _), number in found.items() if one == code)
    assert count
    notes = Notes()
    async with store_of(redis_url) as store:
        assert code in store.features.repairs
        assert await store.maintenance().repair(code, ALL, notes) == count
        assert not [one for one, _ in await codes(redis_url) if one == code]
        assert await store.maintenance().repair(code, ALL, notes) == 0
        after = contents(client)
        if code not in QUARANTINED:
            for _ in range(2):  # the second time, nothing is left to be undone
                await store.maintenance().revert(notes.reversed())
                assert contents(client) == before
            assert await codes(redis_url) == found
    kept = {f"{BASE}:msg:m2".encode(), f"{BASE}:messages".encode()}
    assert {key: after[key][0] for key in kept}.keys() == kept


@pytest.mark.parametrize(("code", "make"), CASES)
async def test_repair_that_cannot_be_noted_is_not_done(
    client: redis.Redis, redis_url: str, code: str, make: Any
) -> None:
    async def full(_: Record) -> None:
        raise OSError("no space left")

    put_intact(client)
    make(client)
    before = contents(client)
    with pytest.raises(OSError, match="no space left"):
        async with store_of(redis_url) as store:
            await store.maintenance().repair(code, ALL, full)
    assert contents(client) == before


async def test_repair_touches_only_the_selected(client: redis.Redis, redis_url: str) -> None:
    put_intact(client)
    orphan_marks(client)
    async with store_of(redis_url) as store:
        assert (
            await store.maintenance().repair(
                "orphan-mark", Selection(users=frozenset(["v"])), Notes()
            )
            == 2
        )
    assert list(await codes(redis_url)) == [("orphan-mark", KEY)]


@pytest.mark.slow
async def test_repair_loses_no_message_of_an_agent(client: redis.Redis, redis_url: str) -> None:
    """Messages come and go while ids without payload are taken off the list."""
    put_intact(client)
    client.rpush(f"{BASE}:messages", *MANY)
    notes = Notes()

    async def agent(done: asyncio.Event) -> int:
        """Add messages as RedisMemory does."""
        number = 0
        while not done.is_set():
            with client.pipeline() as pipe:
                pipe.rpush(f"{BASE}:messages", f"new{number}")
                pipe.set(f"{BASE}:msg:new{number}", make_message(f"new{number}").message)
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
