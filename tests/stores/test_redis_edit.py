"""Redis memory changed key by key: expiries, orders of lists, remains, rivals."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import redis

from memctl.model import WriteResult
from tests.stores.redis_edits import TTLS, back, edit, expiries, filled, gone, ids, index, marked
from tests.stores.redis_memories import BASE, KEY, MEMBER, entry, put, read, store_of

# Expiry


def assert_expiries_stay(before: dict[str, int], after: dict[str, int]) -> None:
    for key, ttl in after.items():
        expected = before.get(key, before["messages"])
        assert expected - 20_000 < ttl <= expected, key


@pytest.mark.parametrize("count", [6, 3000])
async def test_every_key_keeps_its_expiry(client: redis.Redis, redis_url: str, count: int) -> None:
    """What is new lives as long as the list of messages."""
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
        tally = await edit(store, *coming, marked(found[-1], "b", was=["a"]), ttl=9.0)
        assert tally == WriteResult(KEY, written=count // 2 + 1)
        assert_expiries_stay(del_ttl, expiries(client))
    assert set(expiries(client)) >= {"mark:new", "mark:b", *payloads(found)}


def payloads(found: Iterable[str]) -> set[str]:
    return {f"msg:{id}" for id in found}


async def test_what_never_expires_never_will(client: redis.Redis, redis_url: str) -> None:
    found = filled(client, 3000)
    async with store_of(redis_url, "ttl=50") as store:
        await edit(store, *(gone(id, "hint") for id in found[::2]))
        await edit(store, *(back(id, "hint") for id in found[::2]), ttl=9.0)
        await edit(store, marked("m1", "new", was=["a"]))
    assert set(expiries(client).values()) == {-1}


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize(("options", "ttl", "seconds"), [("", 900.0, 900), ("ttl=50", 900.0, 50)])
async def test_a_memory_that_is_made_anew(
    client: redis.Redis, redis_url: str, count: int, options: str, ttl: float, seconds: int
) -> None:
    """All of its keys expire together; what an expired one has left is gone."""
    client.rpush(f"{BASE}:mark:hint", "m0", "lost")
    client.rpush(f"{BASE}:mark:old", "m1")
    client.sadd(f"{BASE}:marks_index", "hint", "old", "stale")
    found = [f"m{number}" for number in range(count)]
    async with store_of(redis_url, options) as store:
        tally = await edit(store, *(back(id, "hint", "a") for id in found), ttl=ttl)
        assert tally == WriteResult(KEY, written=count)
    lives = expiries(client)
    lists = {"messages", "mark:hint", f"mark:{MEMBER}", "mark:a"}
    assert set(lives) == {*lists, "marks_index", *payloads(found)}
    assert all(seconds - 20 < left / 1000 <= seconds for left in lives.values())
    assert max(lives.values()) - min(lives.values()) < 5000
    assert ids(client, "mark:hint") == ids(client, "messages") == found
    assert ids(client, f"mark:{MEMBER}") == found
    assert index(client) == {"hint", MEMBER, "a"}


async def test_a_memory_that_is_made_anew_for_ever(client: redis.Redis, redis_url: str) -> None:
    client.rpush(f"{BASE}:mark:hint", "lost")
    client.expire(f"{BASE}:mark:hint", 100)
    async with store_of(redis_url) as store:
        await edit(store, back("m0", "hint"))
    assert set(expiries(client).values()) == {-1}


# Marks


async def test_the_index_follows(client: redis.Redis, redis_url: str) -> None:
    filled(client)
    client.sadd(f"{BASE}:marks_index", "stale")
    async with store_of(redis_url) as store:
        await edit(store, *(gone(id, "hint") for id in ("m0", "m2")))
        assert index(client) == {"a", "hint", "stale"}
        await edit(store, gone("m4", "hint"), marked("m5", "a", "new", was=["a"]))
        assert index(client) == {"a", "new", "stale"}
    assert not client.exists(f"{BASE}:mark:hint")


@pytest.mark.parametrize("known", [set(), {"a"}])
async def test_an_index_that_lacks_marks(
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


async def test_the_last_mark_goes_while_another_comes(client: redis.Redis, redis_url: str) -> None:
    """The index is at no time empty, so that it keeps its expiry."""
    put(client, BASE, ["m0", "m1"], hint=["m0"])
    client.sadd(f"{BASE}:marks_index", "hint")
    client.expire(f"{BASE}:marks_index", 3000)
    async with store_of(redis_url) as store:
        await edit(store, marked("m0", "spent", was=["hint"]))
    assert index(client) == {"spent"}
    assert 0 < client.ttl(f"{BASE}:marks_index") <= 3000


async def test_what_comes_back_stands_where_it_stood(client: redis.Redis, redis_url: str) -> None:
    """In the lists of its marks, too."""
    found = filled(client, 12)
    before = {key: ids(client, key) for key in ("messages", "mark:a", "mark:hint")}
    going = ["m0", "m1", "m4", "m5", "m11"]
    places = [None, None, "m3", "m3", "m10"]
    marks = [["hint"], ["a"], ["hint"], ["a"], ["a"]]
    async with store_of(redis_url) as store:
        await edit(store, *(gone(id, *some) for id, some in zip(going, marks, strict=True)))
        client.rpush(f"{BASE}:messages", "later")
        client.set(f"{BASE}:msg:later", entry("later").message)
        client.rpush(f"{BASE}:mark:a", "later")
        coming = zip(going, marks, places, strict=True)
        await edit(store, *(back(id, *some, after=after) for id, some, after in coming))
        assert len((await read(store))[KEY]) == 13
    assert ids(client, "messages") == [*found, "later"]
    assert ids(client, "mark:a") == [*before["mark:a"], "later"]
    assert ids(client, "mark:hint") == before["mark:hint"]


async def test_a_list_in_an_order_of_its_own(client: redis.Redis, redis_url: str) -> None:
    """What is there stays as it is; what comes is behind the message before it, or at the end."""
    put(client, BASE, [f"m{number}" for number in range(6)], hint=["m4", "m2", "m0"])
    async with store_of(redis_url) as store:
        await edit(store, marked("m3", "hint"), marked("m5", "hint"))
        found = ids(client, "mark:hint")
        assert [id for id in found if id in ("m4", "m2", "m0")] == ["m4", "m2", "m0"]
        assert found.index("m3") == found.index("m2") + 1
        assert set(found) == {"m0", "m2", "m3", "m4", "m5"}
        await edit(store, *(marked(id, was=["hint"]) for id in ("m2", "m3")))
    assert [id for id in ids(client, "mark:hint") if id != "m5"] == ["m4", "m0"]


async def test_marks_of_a_message_of_the_past(client: redis.Redis, redis_url: str) -> None:
    """Lists may have kept its id; a new message with it has only the marks that it comes with."""
    put(client, BASE, ["m0", "m2"], hint=["m0", "m1"], old=["m1"])
    client.sadd(f"{BASE}:marks_index", "hint", "old")
    async with store_of(redis_url) as store:
        await edit(store, back("m1", "a", after="m0"))
        [_, one, _] = (await read(store))[KEY]
        assert one == entry("m1", "a")
    assert ids(client, "mark:hint") == ["m0"]
    assert index(client) == {"hint", "a"}
