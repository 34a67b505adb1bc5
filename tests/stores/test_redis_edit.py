"""Editing Redis memories: expiry, index, order, odd keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import redis

from memctl.model import MemoryKey, WriteResult
from tests.support.places import Notes
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    MEMBER,
    TTLS,
    back,
    dump,
    edit,
    expiries,
    filled,
    gone,
    ids,
    index,
    make_message,
    marked,
    put,
    read,
    store_of,
)


def assert_expiries_stay(before: dict[str, int], after: dict[str, int]) -> None:
    for key, ttl in after.items():
        expected = before.get(key, before["messages"])
        assert expected - 20_000 < ttl <= expected, key


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 3000])
async def test_edit_keeps_the_expiry_of_every_key(
    client: redis.Redis, redis_url: str, count: int
) -> None:
    """New keys expire with the list of messages."""
    found = filled(client, count)
    for key, seconds in TTLS.items():
        client.expire(f"{BASE}:{key}", seconds)
    for id in found:
        client.expire(f"{BASE}:msg:{id}", 6000)
    before = expiries(client)
    half = found[: count // 2]
    async with store_of(redis_url) as store:
        going = [gone(id, "a" if number % 2 else "hint") for number, id in enumerate(half)]
        assert (await edit(store, *going)).deleted == count // 2
        assert_expiries_stay(before, expiries(client))
        del_ttl = {key: ttl for key, ttl in before.items() if key not in payloads(half)}
        coming = [back(id, "hint", "new") for id in half]
        result = await edit(store, *coming, marked(found[-1], "b", was=["a"]), ttl=9.0)
        assert result == WriteResult(KEY, written=count // 2 + 1)
        assert_expiries_stay(del_ttl, expiries(client))
    assert set(expiries(client)) >= {"mark:new", "mark:b", *payloads(found)}


def payloads(found: Iterable[str]) -> set[str]:
    return {f"msg:{id}" for id in found}


@pytest.mark.slow
async def test_edit_adds_no_expiry(client: redis.Redis, redis_url: str) -> None:
    found = filled(client, 3000)
    async with store_of(redis_url, "ttl=50") as store:
        await edit(store, *(gone(id, "hint") for id in found[::2]))
        await edit(store, *(back(id, "hint") for id in found[::2]), ttl=9.0)
        await edit(store, marked("m1", "new", was=["a"]))
    assert set(expiries(client).values()) == {-1}


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize(("options", "ttl", "seconds"), [("", 900.0, 900), ("ttl=50", 900.0, 50)])
async def test_edit_makes_a_memory_anew_with_its_ttl(
    client: redis.Redis, redis_url: str, count: int, options: str, ttl: float, seconds: int
) -> None:
    """All of its keys expire together; what an expired one has left is gone."""
    client.rpush(f"{BASE}:mark:hint", "m0", "lost")
    client.rpush(f"{BASE}:mark:old", "m1")
    client.sadd(f"{BASE}:marks_index", "hint", "old", "stale")
    found = [f"m{number}" for number in range(count)]
    async with store_of(redis_url, options) as store:
        result = await edit(store, *(back(id, "hint", "a") for id in found), ttl=ttl)
        assert result == WriteResult(KEY, written=count)
    lives = expiries(client)
    lists = {"messages", "mark:hint", f"mark:{MEMBER}", "mark:a"}
    assert set(lives) == {*lists, "marks_index", *payloads(found)}
    assert all(seconds - 20 < left / 1000 <= seconds for left in lives.values())
    assert max(lives.values()) - min(lives.values()) < 5000
    assert ids(client, "mark:hint") == ids(client, "messages") == found
    assert ids(client, f"mark:{MEMBER}") == found
    assert index(client) == {"hint", MEMBER, "a"}


async def test_edit_makes_a_memory_anew_without_ttl(client: redis.Redis, redis_url: str) -> None:
    client.rpush(f"{BASE}:mark:hint", "lost")
    client.expire(f"{BASE}:mark:hint", 100)
    async with store_of(redis_url) as store:
        await edit(store, back("m0", "hint"))
    assert set(expiries(client).values()) == {-1}


async def test_edit_updates_the_index(client: redis.Redis, redis_url: str) -> None:
    filled(client)
    client.sadd(f"{BASE}:marks_index", "stale")
    async with store_of(redis_url) as store:
        await edit(store, *(gone(id, "hint") for id in ("m0", "m2")))
        assert index(client) == {"a", "hint", "stale"}
        await edit(store, gone("m4", "hint"), marked("m5", "a", "new", was=["a"]))
        assert index(client) == {"a", "new", "stale"}
    assert not client.exists(f"{BASE}:mark:hint")


@pytest.mark.parametrize("known", [set(), {"a"}])
async def test_edit_completes_an_index_that_lacks_marks(
    client: redis.Redis, redis_url: str, known: set[str]
) -> None:
    """As AgentScope before 1.0.15 left it; one that memctl begins names every mark."""
    filled(client, indexed=False)
    if known:
        client.sadd(f"{BASE}:marks_index", *known)
    async with store_of(redis_url) as store:
        await edit(store, gone("m0", "hint"))
        assert ids(client, "mark:hint") == ["m2", "m4"]
        assert index(client) == known
        await edit(store, marked("m2", "hint", "new", was=["hint"]))
        assert index(client) == ({"a", "new"} if known else {"a", "hint", "new"})
        await edit(store, *(gone(id, "a") for id in ("m1", "m3", "m5")))
        assert index(client) == ({"new"} if known else {"hint", "new"})


async def test_edit_replaces_the_last_mark_in_the_index(
    client: redis.Redis, redis_url: str
) -> None:
    """The index is at no time empty, so that it keeps its expiry."""
    put(client, BASE, ["m0", "m1"], hint=["m0"])
    client.sadd(f"{BASE}:marks_index", "hint")
    client.expire(f"{BASE}:marks_index", 3000)
    async with store_of(redis_url) as store:
        await edit(store, marked("m0", "spent", was=["hint"]))
    assert index(client) == {"spent"}
    assert 0 < client.ttl(f"{BASE}:marks_index") <= 3000


async def test_edit_restores_messages_where_they_stood(client: redis.Redis, redis_url: str) -> None:
    """In the lists of its marks, too."""
    found = filled(client, 12)
    before = {key: ids(client, key) for key in ("messages", "mark:a", "mark:hint")}
    going = ["m0", "m1", "m4", "m5", "m11"]
    places = [None, None, "m3", "m3", "m10"]
    marks = [["hint"], ["a"], ["hint"], ["a"], ["a"]]
    async with store_of(redis_url) as store:
        await edit(store, *(gone(id, *some) for id, some in zip(going, marks, strict=True)))
        client.rpush(f"{BASE}:messages", "later")
        client.set(f"{BASE}:msg:later", make_message("later").message)
        client.rpush(f"{BASE}:mark:a", "later")
        coming = zip(going, marks, places, strict=True)
        await edit(store, *(back(id, *some, after=after) for id, some, after in coming))
        assert len((await read(store))[KEY]) == 13
    assert ids(client, "messages") == [*found, "later"]
    assert ids(client, "mark:a") == [*before["mark:a"], "later"]
    assert ids(client, "mark:hint") == before["mark:hint"]


async def test_edit_keeps_the_order_of_a_mark_list(client: redis.Redis, redis_url: str) -> None:
    """Listed ids stay as they are; new ones follow the message before them, or come at the end."""
    put(client, BASE, [f"m{number}" for number in range(6)], hint=["m4", "m2", "m0"])
    async with store_of(redis_url) as store:
        await edit(store, marked("m3", "hint"), marked("m5", "hint"))
        found = ids(client, "mark:hint")
        assert [id for id in found if id in ("m4", "m2", "m0")] == ["m4", "m2", "m0"]
        assert found.index("m3") == found.index("m2") + 1
        assert set(found) == {"m0", "m2", "m3", "m4", "m5"}
        await edit(store, *(marked(id, was=["hint"]) for id in ("m2", "m3")))
    assert [id for id in ids(client, "mark:hint") if id != "m5"] == ["m4", "m0"]


async def test_edit_drops_marks_of_a_former_message(client: redis.Redis, redis_url: str) -> None:
    """Lists may have kept its id; a new message with it has only the marks that it comes with."""
    put(client, BASE, ["m0", "m2"], hint=["m0", "m1"], old=["m1"])
    client.sadd(f"{BASE}:marks_index", "hint", "old")
    async with store_of(redis_url) as store:
        await edit(store, back("m1", "a", after="m0"))
        [_, one, _] = (await read(store))[KEY]
        assert one == make_message("m1", "a")
    assert ids(client, "mark:hint") == ["m0"]
    assert index(client) == {"hint", "a"}


async def test_edit_refuses_to_delete_next_to_ids_without_payload(
    client: redis.Redis, redis_url: str
) -> None:
    filled(client)
    client.delete(f"{BASE}:msg:m2", f"{BASE}:msg:m3")
    before = dump(client, BASE)
    async with store_of(redis_url) as store:
        for change in (gone("m2", "hint"), marked("m3", "x", was=["a"]), back("m3")):
            result = await edit(store, change)
            assert result.failure
            assert result.failure.code == "changed"
        result = await edit(store, gone("m0", "hint"))
        assert result.failure
        assert result.failure.code == "unrestorable"
        assert "memctl doctor --repair" in result.failure.message
        assert dump(client, BASE) == before
        assert not (await edit(store, marked("m0", "a", was=["hint"]))).failure
        await store.maintenance().repair("id-without-payload", ALL, Notes())
        assert (await edit(store, gone("m0", "a"))).deleted == 1
    assert ids(client, "messages") == ["m1", "m4", "m5"]


async def test_edit_refuses_to_overwrite_payloads_without_id(
    client: redis.Redis, redis_url: str
) -> None:
    put(client, BASE, ["m0"])
    client.set(f"{BASE}:msg:m1", b'{"id": "m1", "of": "a lost memory"}', ex=100)
    before = dump(client, BASE)
    async with store_of(redis_url) as store:
        result = await edit(store, back("m1", after="m0"))
        assert result.failure
        assert result.failure.code == "unrestorable"
        assert dump(client, BASE) == before
        await store.maintenance().repair("payload-without-id", ALL, Notes())
        assert (await edit(store, back("m1", after="m0"))).written == 1


@pytest.mark.parametrize("count", [1, 3])
async def test_edit_refuses_to_drop_one_of_two_equal_ids(
    client: redis.Redis, redis_url: str, count: int
) -> None:
    """AgentScope lists it so with ``skip_duplicated=False``: both go, or none."""
    put(client, BASE, ["m0", "twice", "m1", "twice"], hint=["twice", "twice"])
    async with store_of(redis_url) as store:
        result = await edit(store, *[gone("twice", "hint")] * count)
        assert result.failure
        assert result.failure.code == "repeated-id"
        assert ids(client, "messages") == ["m0", "twice", "m1", "twice"]
        assert await edit(store, marked("twice", "a", "hint", was=["hint"])) == WriteResult(KEY, 1)
        assert ids(client, "mark:a") == ["twice"]
        result = await edit(store, *[gone("twice", "a", "hint")] * 2)
        assert result == WriteResult(KEY, deleted=2)
        assert [one.id for one in (await read(store))[KEY]] == ["m0", "m1"]
    assert not client.exists(f"{BASE}:mark:hint", f"{BASE}:mark:a", f"{BASE}:msg:twice")


async def test_edit_refuses_an_id_inserted_twice(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["m0"])
    async with store_of(redis_url) as store:
        result = await edit(store, back("m1", after="m0"), back("m1", after="m0", content="d"))
    assert result.failure
    assert result.failure.code == "repeated-id"
    assert set(dump(client, BASE)) == {f"{BASE}:messages", f"{BASE}:msg:m0"}


@pytest.mark.parametrize("wrong", ["messages", "marks_index", "mark:hint"])
async def test_edit_refuses_a_key_of_another_type(
    client: redis.Redis, redis_url: str, wrong: str
) -> None:
    filled(client)
    client.delete(f"{BASE}:{wrong}")
    client.hset(f"{BASE}:{wrong}", "field", "value")
    put(client, "user_id:u:session:other", ["m0"])
    async with store_of(redis_url) as store:
        result = await edit(store, gone("m1", "a"))
        assert result.failure
        assert result.failure.code in ("refused", "changed")
        assert not (await edit(store, gone("m0"), key=MemoryKey("u", "other"))).failure
    assert client.exists(f"{BASE}:msg:m1", f"{BASE}:{wrong}") == 2


async def test_edit_takes_patterns_in_names_literally(client: redis.Redis, redis_url: str) -> None:
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
        result = await edit(
            store,
            gone("*", "*", "hint"),
            gone("m:1", "hint", "h"),
            marked("m", "hint", "?", was=["*", "hint"]),
            key=MemoryKey("*", "*"),
        )
        assert result == WriteResult(MemoryKey("*", "*"), 1, 2)
    assert others == {base: dump(client, base) for base in others}
    found = {key.removeprefix(f"{target}:"): value for key, value in dump(client, target).items()}
    assert set(found) == {
        *("messages", "state", "marks_index", "mark:hint", "mark:hint*", "mark:?"),
        *("msg:m", "msg:m*", "msg:[m]"),
    }
    assert ids(client, "mark:hint", target) == ["m", "m*", "[m]"]


async def test_edit_leaves_sessions_with_a_shared_prefix_alone(
    client: redis.Redis, redis_url: str
) -> None:
    for prefix in ("", "app:", "app:2:"):
        put(client, f"{prefix}{BASE}", ["m0", "m1"], hint=["m0"])
    async with store_of(redis_url, "prefix=app:") as store:
        assert (await edit(store, gone("m0", "hint"))).deleted == 1
    for prefix, left in (("", 2), ("app:", 1), ("app:2:", 2)):
        assert len(client.keys(f"{prefix}{BASE}:msg:*")) == left
        assert client.llen(f"{prefix}{BASE}:messages") == left


@pytest.mark.slow
async def test_edit_does_not_search_a_large_list_for_every_id(
    counted: tuple[redis.Redis, str],
) -> None:
    """It is written anew, and only from where it differs."""
    client, url = counted
    found = filled(client, 30_000)
    client.config_resetstat()
    async with store_of(url) as store:
        await edit(store, *(gone(id, "hint") for id in found[20_000::2]), size=1000)
        stats: Any = client.info("commandstats")
        assert "cmdstat_lrem" not in stats
        assert stats["cmdstat_rpush"]["calls"] <= 4
        assert ids(client, "messages") == [*found[:20_000], *found[20_001::2]]
        assert ids(client, "mark:hint") == found[:20_000:2]
        await edit(store, gone("m1", "a"))
        stats = client.info("commandstats")
        assert stats["cmdstat_lrem"]["calls"] == 2
        coming = (back(id, "hint", after=found[n - 1]) for n, id in enumerate(found[2:], 2))
        result = await edit(store, *[c for c in coming if int(c.id[1:]) >= 20_000][::2], size=700)
        assert result.written == 5000
    assert ids(client, "messages") == ["m0", *found[2:]]
    assert ids(client, "mark:hint") == found[::2]
