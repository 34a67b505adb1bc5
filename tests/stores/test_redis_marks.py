"""Marks that agents on Python 3.11 and newer list under the names of enum members."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import redis

from memctl.engines.redis.pipeline import Pipeline
from memctl.layouts.redis.keys import (
    canonical_mark,
    is_indexed,
    mark_aliases,
    with_aliases,
)
from memctl.model import Finding, MemoryKey, WriteMode, WriteResult
from memctl.selection import Selection
from tests.support.places import Notes
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    MEMBER,
    back,
    edit,
    expiries,
    findings_of,
    gone,
    ids,
    index,
    large,
    make_message,
    marked,
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
    """Return messages in threes: one marked by an agent, one by an application, one by both."""
    found = [f"m:{number}" for number in range(count)]
    put(client, BASE, found, hint=[*found[1::3], *found[2::3]])
    client.rpush(f"{BASE}:{AGENT}", *found[2::3], *found[::3])
    client.sadd(f"{BASE}:marks_index", "hint")
    return found


def by_agent(client: redis.Redis) -> None:
    """Write messages as an agent leaves them: listed under the member, indexed under its value."""
    put(client, BASE, ["m0", "m1", "m2"])
    client.rpush(f"{BASE}:{AGENT}", "m0", "m2")
    client.rpush(f"{BASE}:mark:{COMPRESSED}", "m0", "m1")
    client.sadd(f"{BASE}:marks_index", "hint", "compressed")


def test_aliases_of_a_mark() -> None:
    assert mark_aliases(b"hint") == (b"hint", MEMBER.encode())
    assert mark_aliases(b"vip") == (b"vip",)
    assert with_aliases([b"vip", MEMBER.encode()]) == {b"vip", b"hint", MEMBER.encode()}
    assert canonical_mark(COMPRESSED.encode()) == b"compressed"
    assert is_indexed(MEMBER.encode(), {b"hint"})
    assert not is_indexed(b"hint", {MEMBER.encode()})


async def test_read_finds_what_an_agent_has_marked(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    async with store_of(redis_url) as store:
        found = marks((await read(store))[KEY])
        assert found == {"m0": ("compressed", "hint"), "m1": ("compressed",), "m2": ("hint",)}
        [info] = [info async for info in store.list_memories(ALL)]
    assert info.marks == {"compressed": 2, "hint": 2}


@pytest.mark.slow
@COUNTS
async def test_read_merges_the_lists_of_two_aliases(
    client: redis.Redis, redis_url: str, count: int
) -> None:
    found = mixed(client, count)
    async with store_of(redis_url) as store:
        assert marks((await read(store))[KEY]) == dict.fromkeys(found, ("hint",))
        outlined = [one async for some in store.outline(ALL) for one in some.messages]
        assert [one.id for one in outlined] == found
        assert {one.marks for one in outlined} == {("hint",)}
        [info] = [info async for info in store.list_memories(ALL)]
    assert info.marks == {"hint": count}


@pytest.mark.parametrize("lists", [[PLAIN], [AGENT], [PLAIN, AGENT]])
async def test_selection_by_mark_reads_every_alias(
    client: redis.Redis, redis_url: str, lists: list[str]
) -> None:
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


async def test_read_finds_a_list_that_comes_after_the_scan(
    client: redis.Redis, redis_url: str
) -> None:
    """The index names it under the value of the member."""
    put(client, BASE, ["m0"])
    async with store_of(redis_url) as store:
        assert marks((await read(store))[KEY]) == {"m0": ()}
        client.rpush(f"{BASE}:{AGENT}", "m0")
        client.sadd(f"{BASE}:marks_index", "hint")
        assert marks((await read(store))[KEY]) == {"m0": ("hint",)}


@pytest.mark.parametrize("staged", [False, True])
async def test_write_fills_the_lists_of_all_aliases(
    client: redis.Redis, redis_url: str, staged: bool
) -> None:
    found = [
        make_message("m0", "hint", "a"),
        make_message("m1", "compressed"),
        make_message("m2"),
        make_message("m3", "hint"),
    ]
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


async def test_write_appends_to_the_lists_of_an_agent(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    client.rpush(f"{BASE}:{AGENT}", "m3")  # of a message of the past
    async with store_of(redis_url) as store:
        await write(store, page([make_message("m3"), make_message("m4", "hint")], offset=3))
        found = marks((await read(store))[KEY])
    assert ids(client, AGENT) == ["m0", "m2", "m4"]
    assert ids(client, PLAIN) == ["m4"]
    assert (found["m2"], found["m3"], found["m4"]) == (("hint",), (), ("hint",))


@pytest.mark.parametrize("mode", WriteMode)
async def test_write_clears_what_an_agent_left(
    client: redis.Redis, redis_url: str, mode: WriteMode
) -> None:
    """Found by no scan, for it came later: by what the index names."""
    async with store_of(redis_url) as store:
        await read(store)
        by_agent(client)
        if mode is WriteMode.ADD:
            client.delete(f"{BASE}:messages", *client.scan_iter(f"{BASE}:msg:*"))
        await write(store, page([make_message("m0")]), mode=mode)
    assert set(expiries(client)) >= {"messages", "msg:m0"}
    assert not [name for name in expiries(client) if name.startswith("mark")]


async def test_write_refuses_a_mark_named_like_an_alias(
    client: redis.Redis, redis_url: str
) -> None:
    by_agent(client)
    async with store_of(redis_url) as store:
        [result] = await write(store, page([make_message("x", MEMBER)], MemoryKey("v", "s")))
        changed = await edit(store, marked("m1", MEMBER, was=["compressed"]))
    for one in (result, changed):
        assert one.failure is not None
        assert one.failure.code == "refused"
        assert "lists the mark 'hint' under the name" in one.failure.message


@pytest.mark.slow
@COUNTS
async def test_edit_removes_a_mark_from_all_aliases(
    client: redis.Redis, redis_url: str, count: int
) -> None:
    found = mixed(client, count)
    half = found[: count // 2]
    async with store_of(redis_url) as store:
        result = await edit(store, *(marked(id, was=["hint"]) for id in half))
        assert result == WriteResult(KEY, written=count // 2)
        assert marks((await read(store))[KEY]) == {
            id: () if id in set(half) else ("hint",) for id in found
        }
        assert index(client) == {"hint"}
        await edit(store, *(gone(id, "hint") for id in found[count // 2 :]))
    assert set(expiries(client)) == {"messages", *(f"msg:{id}" for id in half)}


@pytest.mark.slow
@COUNTS
async def test_edit_restores_a_message_in_all_aliases(
    client: redis.Redis, redis_url: str, count: int
) -> None:
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


async def test_edit_renames_a_mark_in_all_aliases(client: redis.Redis, redis_url: str) -> None:
    found = mixed(client)
    async with store_of(redis_url) as store:
        await edit(store, *(marked(id, "compressed", was=["hint"]) for id in found))
        assert index(client) == {"compressed", COMPRESSED}
        assert ids(client, "mark:compressed") == ids(client, f"mark:{COMPRESSED}") == found
        await edit(store, *(marked(id, "vip", was=["compressed"]) for id in found))
    assert [name for name in expiries(client) if name.startswith("mark:")] == ["mark:vip"]
    assert index(client) == {"vip"}


async def test_edit_does_not_rewrite_a_mark_that_stays(client: redis.Redis, redis_url: str) -> None:
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
async def test_edit_compares_marks_under_any_alias(
    client: redis.Redis, redis_url: str, id: str, was: list[str]
) -> None:
    """In whichever list it is."""
    mixed(client)
    async with store_of(redis_url) as store:
        result = await edit(store, marked(id, "new", was=was))
    assert (result.failure is None) is bool(was)
    assert result.failure is None or "is marked 'hint'" in result.failure.message


async def test_edit_notices_an_alias_that_comes_meanwhile(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is watched, though there was none when the edit looked."""
    put(client, BASE, ["m0", "m1"], hint=["m0"])
    client.sadd(f"{BASE}:marks_index", "hint")
    async with store_of(redis_url) as store:
        await read(store)
        commit = committing_after(client)
        monkeypatch.setattr("memctl.engines.redis.pipeline.Pipeline.commit", commit)
        result = await edit(store, gone("m1"))
    assert result.failure is not None
    assert result.failure.message == "the message 'm1' is marked 'hint'"
    assert ids(client, "messages") == ["m0", "m1"]


def committing_after(client: redis.Redis) -> Any:
    """A commit before which an agent marks a message."""
    plain_commit = Pipeline.commit

    def commit(pipeline: Pipeline, commands: Any) -> bool:
        if not client.exists(f"{BASE}:{AGENT}"):
            client.rpush(f"{BASE}:{AGENT}", "m1")
        return plain_commit(pipeline, commands)

    return commit


async def keys_wrong(url: str) -> list[Finding]:
    """Return what doctor finds, but for the meaning of marks."""
    meant = "leftover-hint", "summary-elsewhere"
    return [finding for finding in await findings_of(url) if finding.code not in meant]


async def test_check_accepts_what_an_agent_leaves(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    assert await keys_wrong(redis_url) == []
    async with store_of(redis_url) as store:
        await edit(store, marked("m1", "hint", "compressed", was=["compressed"]))
    assert await keys_wrong(redis_url) == []


async def test_check_finds_an_unindexed_plain_list(client: redis.Redis, redis_url: str) -> None:
    """RedisMemory would not clean it up."""
    put(client, BASE, ["m0"], hint=["m0"])
    client.rpush(f"{BASE}:{AGENT}", "m0")
    client.rpush(f"{BASE}:mark:{COMPRESSED}", "m0")
    client.sadd(f"{BASE}:marks_index", MEMBER, "compressed")
    assert await keys_wrong(redis_url) == [Finding("marks-index-stale", KEY, 1, ("hint",))]
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair("marks-index-stale", ALL, Notes()) == 1
    assert index(client) == {"hint", MEMBER, "compressed"}


async def test_check_finds_a_missing_index_of_an_agent(client: redis.Redis, redis_url: str) -> None:
    by_agent(client)
    client.delete(f"{BASE}:marks_index")
    [finding] = await keys_wrong(redis_url)
    assert (finding.code, finding.count) == ("marks-index-missing", 2)
    async with store_of(redis_url) as store:
        assert await store.maintenance().repair(finding.code, ALL, Notes()) == 2
    assert await keys_wrong(redis_url) == []


async def test_check_counts_orphan_marks_of_two_aliases_once(
    client: redis.Redis, redis_url: str
) -> None:
    """One that is in two lists is one."""
    mixed(client)
    for base in (BASE, "user_id:v:session:gone"):
        client.rpush(f"{base}:{PLAIN}", "x0", "x1")
        client.rpush(f"{base}:{AGENT}", "x1", "x2")
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


async def test_check_finds_aliases_that_expire_apart(client: redis.Redis, redis_url: str) -> None:
    mixed(client)
    for name in expiries(client):
        client.expire(f"{BASE}:{name}", 1000)
    client.expire(f"{BASE}:{AGENT}", 500)
    client.persist(f"{BASE}:{PLAIN}")
    early, never = await keys_wrong(redis_url)
    assert early == Finding("expires-early", KEY, 1, (AGENT,))
    assert never == Finding("never-expires", KEY, 1, (PLAIN,))
