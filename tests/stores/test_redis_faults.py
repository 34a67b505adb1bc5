"""What doctor finds in the keys of Redis memories, each fault made on a real server."""

from __future__ import annotations

import redis

from memctl.model import Finding, MemoryKey
from memctl.ops.doctor.check import Limits, check
from memctl.selection import Selection
from tests.stores.redis_memories import ALL, BASE, KEY, put, store_of

OTHER = MemoryKey("u:session:x", "s:msg:y")
OTHER_BASE = "user_id:u:session:x:session:s:msg:y"


async def examined(url: str, where: Selection = ALL) -> list[Finding]:
    """What is found."""
    async with store_of(url) as store:
        return (await check(store, where, Limits())).faults


def healthy(client: redis.Redis, base: str = BASE, *, ttl: int = 0) -> None:
    """A memory of three messages as AgentScope 1.0.21 leaves it, with an index of its marks."""
    put(client, base, ["m1", "m2", "m3"], a=["m1", "m2"])
    client.sadd(f"{base}:marks_index", "a", "gone")
    if ttl:
        for key in client.scan_iter(f"{base}:*"):
            client.expire(key, ttl)


async def test_what_is_in_order(client: redis.Redis, redis_url: str) -> None:
    """The index names a mark without a list wherever the last message of a mark was deleted."""
    healthy(client)
    healthy(client, OTHER_BASE, ttl=1000)
    client.set(f"{BASE}:state", "{}")
    client.set("memctl:lock:memory", "somebody")
    assert await examined(redis_url) == []


async def test_ids_without_payload(client: redis.Redis, redis_url: str) -> None:
    healthy(client)
    client.delete(f"{BASE}:msg:m2")
    put(client, OTHER_BASE, ["m1"])
    client.delete(f"{OTHER_BASE}:msg:m1")
    one, two = sorted(await examined(redis_url), key=lambda fault: fault.key or KEY)
    assert one == Finding("id-without-payload", KEY, 1, ("m2",))
    assert (two.code, two.count, two.examples) == ("id-without-payload", 1, ("m1",))
    assert two.key != KEY


async def test_payloads_without_id(client: redis.Redis, redis_url: str) -> None:
    healthy(client)
    for id in ("lost:msg:1", "m4"):
        client.set(f"{BASE}:msg:{id}", "{}")
    client.set("user_id:v:session:gone:msg:m1", "{}")
    one, two = await examined(redis_url)
    assert (one.code, one.key, one.count) == ("payload-without-id", KEY, 2)
    assert set(one.examples) == {"lost:msg:1", "m4"}
    assert two == Finding("payload-without-id", MemoryKey("v", "gone"), 1, ("m1",))
    [only] = await examined(redis_url, Selection(users=frozenset(["v"])))
    assert only == two


async def test_marks_of_no_message(client: redis.Redis, redis_url: str) -> None:
    healthy(client)
    client.rpush(f"{BASE}:mark:a", "gone", "gone too")
    client.rpush("user_id:v:session:gone:mark:hint", "m1", "m2")
    one, two = await examined(redis_url)
    assert one == Finding("orphan-mark", KEY, 2, ("gone", "gone too"))
    assert (two.code, two.key, two.count) == ("orphan-mark", MemoryKey("v", "gone"), 2)


async def test_keys_that_expire_apart(client: redis.Redis, redis_url: str) -> None:
    healthy(client, ttl=1000)
    client.expire(f"{BASE}:msg:m1", 500)
    client.expire(f"{BASE}:mark:a", 700)
    client.expire(f"{BASE}:msg:m2", 998)  # given a moment before
    client.persist(f"{BASE}:msg:m3")
    early, never = await examined(redis_url)
    assert (early.code, early.key, early.count) == ("expires-early", KEY, 2)
    assert set(early.examples) == {"msg:m1", "mark:a"}
    assert never == Finding("never-expires", KEY, 1, ("msg:m3",))


async def test_a_list_that_stays_longer_than_its_messages(
    client: redis.Redis, redis_url: str
) -> None:
    healthy(client, ttl=1000)
    client.persist(f"{BASE}:messages")
    [early] = await examined(redis_url)
    assert (early.code, early.count) == ("expires-early", 5)


async def test_an_index_of_marks_that_is_missing(client: redis.Redis, redis_url: str) -> None:
    """As in memories that AgentScope 1.0.14 left."""
    put(client, BASE, ["m1"], a=["m1"], b=["m1"])
    assert [(fault.code, fault.count) for fault in await examined(redis_url)] == [
        ("marks-index-missing", 2)
    ]
    client.sadd(f"{BASE}:marks_index", "b")
    assert await examined(redis_url) == [Finding("marks-index-stale", KEY, 1, ("a",))]


async def test_payloads_that_are_no_object(client: redis.Redis, redis_url: str) -> None:
    healthy(client)
    client.set(f"{BASE}:msg:m1", '{"id": "m1')
    client.set(f"{BASE}:msg:m2", "[]")
    assert await examined(redis_url) == [Finding("payload-not-json", KEY, 2, ("m1", "m2"))]


async def test_an_id_that_is_listed_twice(client: redis.Redis, redis_url: str) -> None:
    """RedisMemory does so with ``skip_duplicated=False``."""
    healthy(client)
    client.rpush(f"{BASE}:messages", "m1")
    assert await examined(redis_url) == [Finding("repeated-id", KEY, 1)]


async def test_large_and_many_memories(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, [f"m{n}" for n in range(25_000)], a=[f"m{n}" for n in range(12_000)])
    client.sadd(f"{BASE}:marks_index", "a")
    for n in range(300):
        put(client, f"user_id:u{n}:session:s", ["m1", "m2"], a=["m2"])
        client.sadd(f"user_id:u{n}:session:s:marks_index", "a")
    assert await examined(redis_url) == []
    client.lrem(f"{BASE}:messages", 0, "m24999")
    client.lrem(f"{BASE}:messages", 0, "m11999")
    client.delete("user_id:u7:session:s:messages")
    found = await examined(redis_url)
    assert [(fault.code, fault.key, fault.count) for fault in found] == [
        ("orphan-mark", KEY, 1),
        ("orphan-mark", MemoryKey("u7", "s"), 1),
        ("payload-without-id", KEY, 2),
        ("payload-without-id", MemoryKey("u7", "s"), 2),
    ]
