"""Redis memory changed key by key: expiries, orders of lists, remains, rivals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
import redis

from memctl.errors import Failure
from memctl.model import Change, Edit, Memory, MemoryKey, Tally
from memctl.selection import Selection
from memctl.stores.redis.changed import Changed
from memctl.stores.redis.memory import RedisMemoryStore
from tests.conftest import Servers
from tests.stores.redis_memories import BASE, KEY, MEMBER, entry, put, read, store_of

TTLS = {"messages": 5000, "marks_index": 4000, "mark:hint": 3000, "mark:a": 2000}
"""Seconds; AgentScope lets the keys of a memory expire apart."""


def gone(id: str, *marks: str) -> Change:
    return Change(id, marks)


def marked(id: str, *marks: str, was: Iterable[str] = ()) -> Change:
    return Change(id, tuple(was), marks)


def back(id: str, *marks: str, after: str | None = None, content: str = "c") -> Change:
    return Change(id, None, marks, entry(id, content=content).message, after)


async def edit(
    store: RedisMemoryStore, *changes: Change, key: MemoryKey = KEY, size: int = 0, **about: Any
) -> Tally:
    """Changes one memory, so many changes in an edit."""

    async def edits() -> AsyncIterator[Edit]:
        step = size or len(changes)
        for start in range(0, len(changes), step):
            some = list(changes[start : start + step])
            yield Edit(Memory(key, **about), some, start, start + step >= len(changes))

    [tally] = [tally async for tally in store.edit(edits())]
    return tally


def ids(client: redis.Redis, key: str, base: str = BASE) -> list[str]:
    found: Any = client.lrange(f"{base}:{key}", 0, -1)
    return [id.decode() for id in found]


def index(client: redis.Redis) -> set[str]:
    found: Any = client.smembers(f"{BASE}:marks_index")
    return {mark.decode() for mark in found}


def expiries(client: redis.Redis, base: str = BASE) -> dict[str, int]:
    """The milliseconds that each key still lives; -1 for ever."""
    found: Any = client.keys(f"{base}*")
    return {key.decode().removeprefix(f"{base}:"): int(client.pttl(key)) for key in found}


def filled(client: redis.Redis, count: int = 6, *, indexed: bool = True) -> list[str]:
    """A memory whose messages have the mark a, but every second hint."""
    found = [f"m{number}" for number in range(count)]
    put(client, BASE, found, a=found[1::2], hint=found[::2])
    if indexed:
        client.sadd(f"{BASE}:marks_index", "a", "hint")
    return found


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
        assert tally == Tally(KEY, written=count // 2 + 1)
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
        assert tally == Tally(KEY, written=count)
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
        assert await edit(store, marked("twice", "a", "hint", was=["hint"])) == Tally(KEY, 1)
        assert ids(client, "mark:a") == ["twice"]
        tally = await edit(store, *[gone("twice", "a", "hint")] * 2)
        assert tally == Tally(KEY, deleted=2)
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
        assert tally == Tally(MemoryKey("*", "*"), 1, 2)
    assert others == {base: dump(client, base) for base in others}
    found = {key.removeprefix(f"{target}:"): value for key, value in dump(client, target).items()}
    assert set(found) == {
        *("messages", "state", "marks_index", "mark:hint", "mark:hint*", "mark:?"),
        *("msg:m", "msg:m*", "msg:[m]"),
    }
    assert ids(client, "mark:hint", target) == ["m", "m*", "[m]"]


def dump(client: redis.Redis, base: str) -> dict[str, Any]:
    """The keys of a memory, not of one whose session goes on."""
    found: Any = client.keys("*")
    names = [key.decode() for key in found]
    return {
        name: client.dump(name)
        for name in names
        if name.startswith(f"{base}:") and not name.startswith(f"{base}:x:")
    }


async def test_a_shared_prefix(client: redis.Redis, redis_url: str) -> None:
    for prefix in ("", "app:", "app:2:"):
        put(client, f"{prefix}{BASE}", ["m0", "m1"], hint=["m0"])
    async with store_of(redis_url, "prefix=app:") as store:
        assert (await edit(store, gone("m0", "hint"))).deleted == 1
    for prefix, left in (("", 2), ("app:", 1), ("app:2:", 2)):
        assert len(client.keys(f"{prefix}{BASE}:msg:*")) == left
        assert client.llen(f"{prefix}{BASE}:messages") == left


# Size


@pytest.fixture
def counted(servers: Servers, request: pytest.FixtureRequest) -> Iterator[tuple[redis.Redis, str]]:
    """A database of a server that counts the commands of this test alone."""
    server = servers.redis_with(request.function.__name__)
    url = server.fresh()
    with server.client(url) as client:
        yield client, url


async def test_a_large_list_is_not_gone_through_for_every_id(
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
        tally = await edit(store, *[c for c in coming if int(c.id[1:]) >= 20_000][::2], size=700)
        assert tally.written == 5000
    assert ids(client, "messages") == ["m0", *found[2:]]
    assert ids(client, "mark:hint") == found[::2]


async def test_only_memories_with_the_mark_are_looked_at(counted: tuple[redis.Redis, str]) -> None:
    client, url = counted
    for number in range(50):
        put(client, f"user_id:u:session:s{number}", ["a", "b"], x=["a"])
    put(client, BASE, ["a", "b", "c"], hint=["b"])
    async with store_of(url) as store:
        await read(store, Selection(users=frozenset({"nobody"})))
        for where in (Selection(marks=frozenset({"hint"})), Selection(ids=frozenset({"c"}))):
            await read(store, where)  # scans once
            client.config_resetstat()
            assert set(await read(store, where)) == {KEY}
            stats: Any = client.info("commandstats")
            assert stats["cmdstat_lrange"]["calls"] <= 4


# Rivals


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
    commands = Changed.commands
    interruptions = 0

    def interrupted(self: Changed) -> Iterator[Any]:
        nonlocal interruptions
        yield from commands(self)
        if self.changes.key == KEY and interruptions < times:
            interruptions += 1
            client.rpush(f"{BASE}:messages", f"new{interruptions}")
            client.set(f"{BASE}:msg:new{interruptions}", entry("new").message)

    monkeypatch.setattr(Changed, "commands", interrupted)
    count = 3000 if split else 6
    found = filled(client, count)
    async with store_of(redis_url) as store:
        changes = [*(gone(id, "hint") for id in found[::2]), back("b", "a", after="m1")]
        tally = await edit(store, *changes, size=1000)
        failure = Failure("changed", "another client keeps changing it")
        assert tally == (Tally(KEY, failure=failure) if code else Tally(KEY, 1, deleted=count // 2))
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
async def test_whatever_changes_between_look_and_transaction(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    """Each such change is seen: the edit is done upon it, or not at all."""
    commands = Changed.commands
    rounds: list[Changed] = []

    def interrupted(self: Changed) -> Iterator[Any]:
        yield from commands(self)
        rounds.append(self)
        if len(rounds) == 1:
            for name, *arguments in RIVALS[rival]:
                keys = arguments if name == "DEL" else arguments[:1]
                rest = arguments[len(keys) :]
                client.execute_command(name, *(f"{BASE}:{key}" for key in keys), *rest)

    monkeypatch.setattr(Changed, "commands", interrupted)
    filled(client)
    async with store_of(redis_url) as store:
        tally = await edit(store, gone("m0", "hint"), gone("m1", "a"))
    if rival in ("a message", "an expiry"):
        assert tally == Tally(KEY, deleted=2)
        assert len(rounds) == 2
    else:
        assert tally.failure
        assert tally.failure.code == "changed"
        assert len(rounds) == 1
        assert client.exists(f"{BASE}:msg:m1")


def kill_when_staged(program: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert run.stdout
    assert run.stdout.readline() == b"staged\n"
    run.kill()
    run.communicate()


async def test_a_run_that_is_killed_leaves_nothing_for_ever(
    client: redis.Redis, redis_url: str
) -> None:
    """What it had staged belongs to no memory, and expires."""
    put(client, BASE, ["m0"], hint=["m0"])
    before = dump(client, BASE)
    program = f"""
import asyncio
from memctl.model import Edit, Memory
from tests.stores.test_redis_edit import *

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


async def test_staged_messages_that_are_lost(client: redis.Redis, redis_url: str) -> None:
    filled(client)
    before = dump(client, BASE)

    async def evicted() -> AsyncIterator[Edit]:
        for start in (0, 1000):
            changes = [back(f"n{n}", after="m0") for n in range(start, start + 1000)]
            if start:
                keys: Any = client.keys("memctl:*")
                client.delete(keys[3])
            yield Edit(Memory(KEY), changes, start, last=bool(start))

    async with store_of(redis_url) as store:
        [tally] = [tally async for tally in store.edit(evicted())]
    assert tally.failure
    assert tally.failure.code == "changed"
    assert dump(client, BASE) == before
    assert not client.keys("memctl:*")
