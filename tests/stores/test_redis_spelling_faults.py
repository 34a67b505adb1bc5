"""What doctor says of marks that have two lists, and what it mends in them."""

from __future__ import annotations

import redis

from memctl.model import Finding, MemoryKey
from tests.stores.redis_edits import edit, expiries, index, marked
from tests.stores.redis_memories import ALL, BASE, KEY, MEMBER, put, store_of
from tests.stores.test_redis_faults import examined
from tests.stores.test_redis_mending import Notes, dump
from tests.stores.test_redis_spellings import AGENT, COMPRESSED, PLAIN, by_agent, mixed


async def keys_wrong(url: str) -> list[Finding]:
    """What is found, but for what the marks mean."""
    meant = "leftover-hint", "summary-elsewhere"
    return [fault for fault in await examined(url) if fault.code not in meant]


async def test_what_an_agent_leaves_is_in_order(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    assert await keys_wrong(redis_url) == []
    async with store_of(redis_url) as store:
        await edit(store, marked("m1", "hint", "compressed", was=["compressed"]))
    assert await keys_wrong(redis_url) == []


async def test_a_plain_list_must_be_named_itself(client: redis.Redis, redis_url: str) -> None:
    """RedisMemory would not clean it up."""
    put(client, BASE, ["m0"], hint=["m0"])
    client.rpush(f"{BASE}:{AGENT}", "m0")
    client.rpush(f"{BASE}:mark:{COMPRESSED}", "m0")
    client.sadd(f"{BASE}:marks_index", MEMBER, "compressed")
    assert await keys_wrong(redis_url) == [Finding("marks-index-stale", KEY, 1, ("hint",))]
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair("marks-index-stale", ALL, Notes()) == 1
    assert index(client) == {"hint", MEMBER, "compressed"}


async def test_an_agent_s_index_that_is_missing(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    client.delete(f"{BASE}:marks_index")
    [fault] = await keys_wrong(redis_url)
    assert (fault.code, fault.count) == ("marks-index-missing", 2)
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair(fault.code, ALL, Notes()) == 2
    assert await keys_wrong(redis_url) == []


async def test_marks_of_no_message(client: redis.Redis, redis_url: str) -> None:
    """One that is in two lists is one."""
    mixed(client)
    for base in (BASE, "user_id:v:session:gone"):
        client.rpush(f"{base}:{PLAIN}", "x0", "x1")
        client.rpush(f"{base}:{AGENT}", "x1", "x2")
    before = dump(client)
    one, two = await keys_wrong(redis_url)
    assert (one.code, one.key, one.count) == ("orphan-mark", KEY, 3)
    assert set(one.examples) == {"x0", "x1", "x2"}
    assert two == Finding(
        "orphan-mark", MemoryKey("v", "gone"), 3, (), "'hint': the memory is gone"
    )
    notes = Notes()
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair("orphan-mark", ALL, notes) == 6
        assert await keys_wrong(redis_url) == []
        await store.maintenance().revert(notes.reversed())
    assert dump(client) == before


async def test_lists_that_expire_apart(client: redis.Redis, redis_url: str) -> None:
    mixed(client)
    for name in expiries(client):
        client.expire(f"{BASE}:{name}", 1000)
    client.expire(f"{BASE}:{AGENT}", 500)
    client.persist(f"{BASE}:{PLAIN}")
    early, never = await keys_wrong(redis_url)
    assert early == Finding("expires-early", KEY, 1, (AGENT,))
    assert never == Finding("never-expires", KEY, 1, (PLAIN,))
