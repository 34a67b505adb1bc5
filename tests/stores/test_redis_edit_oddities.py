"""Edits of lists with oddities: ids without a message, repeated ids, names like patterns."""

from __future__ import annotations

import pytest
import redis

from memctl.model import MemoryKey, WriteResult
from tests.stores.redis_edits import back, dump, edit, filled, gone, ids, marked
from tests.stores.redis_memories import BASE, KEY, entry, put, read, store_of

# What is no message


async def test_ids_without_payload_stay(client: redis.Redis, redis_url: str) -> None:
    filled(client)
    client.delete(f"{BASE}:msg:m2", f"{BASE}:msg:m3")
    client.rpush(f"{BASE}:mark:hint", "unknown")
    async with store_of(redis_url) as store:
        for change in (gone("m2", "hint"), marked("m3", "x", was=["a"]), back("m3")):
            tally = await edit(store, change)
            assert tally.failure
            assert tally.failure.code == "changed"
        others = [gone("m0", "hint"), gone("m1", "a"), gone("m4", "hint"), gone("m5", "a")]
        await edit(store, *others)
        assert await read(store) == {}
        await edit(store, *(back(f"m{n}", after="m3") for n in (4, 5)))
    assert ids(client, "messages") == ["m2", "m3", "m4", "m5"]
    assert ids(client, "mark:hint") == ["m2", "unknown"]
    assert ids(client, "mark:a") == ["m3"]


async def test_payloads_without_id_are_overwritten(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["m0"])
    client.set(f"{BASE}:msg:m1", b'{"id": "m1", "of": "a lost memory"}', ex=100)
    async with store_of(redis_url) as store:
        await edit(store, back("m1", after="m0"))
        assert (await read(store))[KEY] == [entry("m0"), entry("m1")]
    assert client.ttl(f"{BASE}:msg:m1") == -1


@pytest.mark.parametrize("count", [1, 3])
async def test_an_id_that_is_listed_twice(client: redis.Redis, redis_url: str, count: int) -> None:
    """AgentScope lists it so with ``skip_duplicated=False``: both go, or none."""
    put(client, BASE, ["m0", "twice", "m1", "twice"], hint=["twice", "twice"])
    async with store_of(redis_url) as store:
        tally = await edit(store, *[gone("twice", "hint")] * count)
        assert tally.failure
        assert tally.failure.code == "repeated-id"
        assert ids(client, "messages") == ["m0", "twice", "m1", "twice"]
        assert await edit(store, marked("twice", "a", "hint", was=["hint"])) == WriteResult(KEY, 1)
        assert ids(client, "mark:a") == ["twice"]
        tally = await edit(store, *[gone("twice", "a", "hint")] * 2)
        assert tally == WriteResult(KEY, deleted=2)
        assert [one.id for one in (await read(store))[KEY]] == ["m0", "m1"]
    assert not client.exists(f"{BASE}:mark:hint", f"{BASE}:mark:a", f"{BASE}:msg:twice")


async def test_an_id_that_is_put_in_twice(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["m0"])
    async with store_of(redis_url) as store:
        tally = await edit(store, back("m1", after="m0"), back("m1", after="m0"))
    assert tally.failure
    assert tally.failure.code == "repeated-id"
    assert set(dump(client, BASE)) == {f"{BASE}:messages", f"{BASE}:msg:m0"}


@pytest.mark.parametrize("wrong", ["messages", "marks_index", "mark:hint"])
async def test_a_key_of_another_type(client: redis.Redis, redis_url: str, wrong: str) -> None:
    filled(client)
    client.delete(f"{BASE}:{wrong}")
    client.hset(f"{BASE}:{wrong}", "field", "value")
    put(client, "user_id:u:session:other", ["m0"])
    async with store_of(redis_url) as store:
        tally = await edit(store, gone("m1", "a"))
        assert tally.failure
        assert tally.failure.code in ("refused", "changed")
        assert not (await edit(store, gone("m0"), key=MemoryKey("u", "other"))).failure
    assert client.exists(f"{BASE}:msg:m1", f"{BASE}:{wrong}") == 2


# Names


async def test_names_that_look_like_patterns(client: redis.Redis, redis_url: str) -> None:
    """And ids, marks and sessions of which one begins with the other."""
    bases = [f"user_id:{user}:session:{session}" for user in "u*" for session in ("s", "*", "s:x")]
    names = ["*", "m", "m*", "m:1", "[m]"]
    for base in bases:
        put(client, base, names, **{"*": ["*", "m"], "hint": names, "hint*": ["m*"], "h": ["m:1"]})
        client.set(f"{base}:state", "{}")
    client.set("memctl:other", "x")
    target = "user_id:*:session:*"
    others = {base: dump(client, base) for base in bases if base != target}
    async with store_of(redis_url) as store:
        tally = await edit(
            store,
            gone("*", "*", "hint"),
            gone("m:1", "hint", "h"),
            marked("m", "hint", "?", was=["*", "hint"]),
            key=MemoryKey("*", "*"),
        )
        assert tally == WriteResult(MemoryKey("*", "*"), 1, 2)
    assert others == {base: dump(client, base) for base in others}
    found = {key.removeprefix(f"{target}:"): value for key, value in dump(client, target).items()}
    assert set(found) == {
        *("messages", "state", "marks_index", "mark:hint", "mark:hint*", "mark:?"),
        *("msg:m", "msg:m*", "msg:[m]"),
    }
    assert ids(client, "mark:hint", target) == ["m", "m*", "[m]"]


async def test_a_shared_prefix(client: redis.Redis, redis_url: str) -> None:
    for prefix in ("", "app:", "app:2:"):
        put(client, f"{prefix}{BASE}", ["m0", "m1"], hint=["m0"])
    async with store_of(redis_url, "prefix=app:") as store:
        assert (await edit(store, gone("m0", "hint"))).deleted == 1
    for prefix, left in (("", 2), ("app:", 1), ("app:2:", 2)):
        assert len(client.keys(f"{prefix}{BASE}:msg:*")) == left
        assert client.llen(f"{prefix}{BASE}:messages") == left
