"""Marks that agents on Python 3.11 and newer list under the names of enum members."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import redis

from memctl.model import MemoryKey, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.stores.redis.keys import canonical_mark, is_indexed, mark_aliases, with_aliases
from memctl.stores.redis.pipeline import Pipeline
from tests.stores.redis_edits import back, edit, expiries, gone, ids, index, marked
from tests.stores.redis_memories import (
    ALL,
    BASE,
    KEY,
    MEMBER,
    entry,
    large,
    marks,
    page,
    put,
    read,
    store_of,
    write,
)

COUNTS = pytest.mark.parametrize("count", [6, 3000])
PLAIN = "mark:hint"
AGENT = f"mark:{MEMBER}"
COMPRESSED = "_MemoryMark.COMPRESSED"


def mixed(client: redis.Redis, count: int = 6) -> list[str]:
    """Of three messages each, one marked by an agent, one by an application, and one by both."""
    found = [f"m:{number}" for number in range(count)]
    put(client, BASE, found, hint=[*found[1::3], *found[2::3]])
    client.rpush(f"{BASE}:{AGENT}", *found[2::3], *found[::3])
    client.sadd(f"{BASE}:marks_index", "hint")
    return found


def by_agent(client: redis.Redis) -> None:
    """Messages as an agent leaves them: listed under the member, indexed under its value."""
    put(client, BASE, ["m0", "m1", "m2"])
    client.rpush(f"{BASE}:{AGENT}", "m0", "m2")
    client.rpush(f"{BASE}:mark:{COMPRESSED}", "m0", "m1")
    client.sadd(f"{BASE}:marks_index", "hint", "compressed")


def test_names() -> None:
    assert mark_aliases(b"hint") == (b"hint", MEMBER.encode())
    assert mark_aliases(b"vip") == (b"vip",)
    assert with_aliases([b"vip", MEMBER.encode()]) == {b"vip", b"hint", MEMBER.encode()}
    assert canonical_mark(COMPRESSED.encode()) == b"compressed"
    assert is_indexed(MEMBER.encode(), {b"hint"})
    assert not is_indexed(b"hint", {MEMBER.encode()})


# Reading


async def test_what_an_agent_has_marked(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    async with store_of(redis_url) as store:
        found = marks((await read(store))[KEY])
        assert found == {"m0": ("compressed", "hint"), "m1": ("compressed",), "m2": ("hint",)}
        [info] = [info async for info in store.list_memories(ALL)]
    assert info.marks == {"compressed": 2, "hint": 2}


@COUNTS
async def test_two_lists_are_one_mark(client: redis.Redis, redis_url: str, count: int) -> None:
    found = mixed(client, count)
    async with store_of(redis_url) as store:
        assert marks((await read(store))[KEY]) == dict.fromkeys(found, ("hint",))
        outlined = [one async for some in store.outline(ALL) for one in some.messages]
        assert [one.id for one in outlined] == found
        assert {one.marks for one in outlined} == {("hint",)}
        [info] = [info async for info in store.list_memories(ALL)]
    assert info.marks == {"hint": count}


@pytest.mark.parametrize("lists", [[PLAIN], [AGENT], [PLAIN, AGENT]])
async def test_selected_by_mark(client: redis.Redis, redis_url: str, lists: list[str]) -> None:
    put(client, BASE, ["m0", "m1", "m2"])
    put(client, "user_id:u:session:other", ["m0"])
    for name in lists:
        client.rpush(f"{BASE}:{name}", "m1")
    async with store_of(redis_url) as store:
        found = await read(store, Selection(marks=frozenset(["hint"])))
        assert [one.id for one in found.pop(KEY)] == ["m1"]
        assert not found
        left = await read(store, Selection(exclude_marks=frozenset(["hint"])))
        assert [one.id for one in left[KEY]] == ["m0", "m2"]
        assert await read(store, Selection(marks=frozenset([MEMBER]))) == {}


async def test_a_list_that_comes_after_the_scan(client: redis.Redis, redis_url: str) -> None:
    """The index names it under the value of the member."""
    put(client, BASE, ["m0"])
    async with store_of(redis_url) as store:
        assert marks((await read(store))[KEY]) == {"m0": ()}
        client.rpush(f"{BASE}:{AGENT}", "m0")
        client.sadd(f"{BASE}:marks_index", "hint")
        assert marks((await read(store))[KEY]) == {"m0": ("hint",)}


# Writing


@pytest.mark.parametrize("staged", [False, True])
async def test_written_to_all_lists(client: redis.Redis, redis_url: str, staged: bool) -> None:
    found = [entry("m0", "hint", "a"), entry("m1", "compressed"), entry("m2"), entry("m3", "hint")]
    async with store_of(redis_url, "ttl=50") as store:
        await write(store, *(large(found) if staged else [page(found)]))
        again = await read(store)
    assert ids(client, PLAIN) == ids(client, AGENT) == ["m0", "m3"]
    assert ids(client, "mark:compressed") == ids(client, f"mark:{COMPRESSED}") == ["m1"]
    assert index(client) == {"a", "hint", MEMBER, "compressed", COMPRESSED}
    assert all(40_000 < left <= 50_000 for left in expiries(client).values())
    assert marks(again[KEY]) == {
        "m0": ("a", "hint"),
        "m1": ("compressed",),
        "m2": (),
        "m3": ("hint",),
    }


async def test_added_behind_an_agent_s_own(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    client.rpush(f"{BASE}:{AGENT}", "m3")  # of a message of the past
    async with store_of(redis_url) as store:
        await write(store, page([entry("m3"), entry("m4", "hint")], offset=3))
        found = marks((await read(store))[KEY])
    assert ids(client, AGENT) == ["m0", "m2", "m4"]
    assert ids(client, PLAIN) == ["m4"]
    assert (found["m2"], found["m3"], found["m4"]) == (("hint",), (), ("hint",))


@pytest.mark.parametrize("mode", WriteMode)
async def test_what_an_agent_left_is_cleared(
    client: redis.Redis, redis_url: str, mode: WriteMode
) -> None:
    """Found by no scan, for it came later: by what the index names."""
    async with store_of(redis_url) as store:
        await read(store)
        by_agent(client)
        if mode is WriteMode.ADD:
            client.delete(f"{BASE}:messages")
        await write(store, page([entry("m0")]), mode=mode)
    assert set(expiries(client)) >= {"messages", "msg:m0"}
    assert not [name for name in expiries(client) if name.startswith("mark")]


async def test_a_mark_that_is_called_like_a_list(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    async with store_of(redis_url) as store:
        [tally] = await write(store, page([entry("x", MEMBER)], MemoryKey("v", "s")))
        changed = await edit(store, marked("m1", MEMBER, was=["compressed"]))
    for one in (tally, changed):
        assert one.failure is not None
        assert one.failure.code == "refused"
        assert "lists the mark 'hint' under the name" in one.failure.message


# Changing


@COUNTS
async def test_taken_away_from_all_lists(client: redis.Redis, redis_url: str, count: int) -> None:
    found = mixed(client, count)
    half = found[: count // 2]
    async with store_of(redis_url) as store:
        tally = await edit(store, *(marked(id, was=["hint"]) for id in half))
        assert tally == WriteResult(KEY, written=count // 2)
        assert marks((await read(store))[KEY]) == {
            id: () if id in set(half) else ("hint",) for id in found
        }
        assert index(client) == {"hint"}
        await edit(store, *(gone(id, "hint") for id in found[count // 2 :]))
    assert set(expiries(client)) == {"messages", *(f"msg:{id}" for id in half)}


@COUNTS
async def test_deleted_and_put_back(client: redis.Redis, redis_url: str, count: int) -> None:
    """All messages are in all lists then, in the order of the memory where they were so before."""
    found = [f"m:{number}" for number in range(count)]
    put(client, BASE, found)
    client.rpush(f"{BASE}:{AGENT}", *found)
    client.sadd(f"{BASE}:marks_index", "hint")
    odd = found[1::2]
    async with store_of(redis_url) as store:
        await edit(store, *(gone(id, "hint") for id in odd))
        assert ids(client, AGENT) == found[::2]
        assert not client.exists(f"{BASE}:{PLAIN}")
        after = {two: one for one, two in pairwise(found)}
        await edit(store, *(back(id, "hint", after=after[id]) for id in odd))
        assert marks((await read(store))[KEY]) == dict.fromkeys(found, ("hint",))
    assert ids(client, "messages") == ids(client, AGENT) == found
    assert ids(client, PLAIN) == odd
    assert index(client) == {"hint", MEMBER}


async def test_renamed(client: redis.Redis, redis_url: str) -> None:
    found = mixed(client)
    async with store_of(redis_url) as store:
        await edit(store, *(marked(id, "compressed", was=["hint"]) for id in found))
        assert index(client) == {"compressed", COMPRESSED}
        assert ids(client, "mark:compressed") == ids(client, f"mark:{COMPRESSED}") == found
        await edit(store, *(marked(id, "vip", was=["compressed"]) for id in found))
    assert [name for name in expiries(client) if name.startswith("mark:")] == ["mark:vip"]
    assert index(client) == {"vip"}


async def test_a_mark_that_stays_is_not_rewritten(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    async with store_of(redis_url) as store:
        await edit(store, marked("m0", "hint", "vip", was=["hint", "compressed"]))
        await edit(store, gone("m2", "hint"))
    assert ids(client, AGENT) == ["m0"]
    assert ids(client, f"mark:{COMPRESSED}") == ["m1"]
    assert not client.exists(f"{BASE}:{PLAIN}", f"{BASE}:mark:compressed")
    assert index(client) == {"hint", "compressed", "vip"}


@pytest.mark.parametrize("id", ["m:0", "m:1", "m:2"])
@pytest.mark.parametrize("was", [["hint"], []])
async def test_seen_with_the_mark(
    client: redis.Redis, redis_url: str, id: str, was: list[str]
) -> None:
    """In whichever list it is."""
    mixed(client)
    async with store_of(redis_url) as store:
        tally = await edit(store, marked(id, "new", was=was))
    assert (tally.failure is None) is bool(was)
    assert tally.failure is None or "is marked 'hint'" in tally.failure.message


async def test_an_agent_marks_meanwhile(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is watched, though there was none when the edit looked."""
    put(client, BASE, ["m0", "m1"], hint=["m0"])
    client.sadd(f"{BASE}:marks_index", "hint")
    async with store_of(redis_url) as store:
        await read(store)
        commit = _committing_after(client)
        monkeypatch.setattr("memctl.stores.redis.pipeline.Pipeline.commit", commit)
        tally = await edit(store, gone("m1"))
    assert tally.failure is not None
    assert tally.failure.message == "the message 'm1' is marked 'hint'"
    assert ids(client, "messages") == ["m0", "m1"]


def _committing_after(client: redis.Redis) -> Any:
    """A commit before which an agent marks a message."""
    plain_commit = Pipeline.commit

    def commit(pipeline: Pipeline, commands: Any) -> bool:
        if not client.exists(f"{BASE}:{AGENT}"):
            client.rpush(f"{BASE}:{AGENT}", "m1")
        return plain_commit(pipeline, commands)

    return commit
