"""Writing Redis memories: expiry, leftovers, names that Redis cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.shard import Shard
from tests.support.cli import report
from tests.support.places import Notes
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    contents,
    large,
    make_message,
    make_messages,
    marks,
    page,
    put,
    put_intact,
    read,
    store_of,
    write,
)


async def test_write_refuses_a_second_name_for_a_key(redis_url: str) -> None:
    first, second = MemoryKey("a:session:b", "c"), MemoryKey("a", "b:session:c")
    async with store_of(redis_url) as store:
        results = await write(store, page(make_messages(1), first), page(make_messages(1), second))
        codes = {result.key: result.failure and result.failure.code for result in results}
        assert codes == {first: None, second: "bad-name"}
        assert set(await read(store)) == {first}


@pytest.mark.parametrize("key", [MemoryKey("u", "s", "agent.memory"), MemoryKey("\ud800", "s")])
async def test_write_refuses_invalid_names(redis_url: str, key: MemoryKey) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page(make_messages(2), key)], large(make_messages(2), key)):
            [result] = await write(store, *pages)
            assert result.failure
            assert result.failure.code == "bad-name"


@pytest.mark.parametrize("bad", [make_message("\ud800"), make_message("m9", "\udbff")])
async def test_write_refuses_invalid_ids_and_marks(
    client: redis.Redis, redis_url: str, bad: StoredMessage
) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page([*make_messages(2), bad])], large([*make_messages(2), bad])):
            [result] = await write(store, *pages)
            assert result.failure
            assert result.failure.code == "refused"
    assert client.dbsize() == 0


def distinct_expiries(client: redis.Redis, base: str = BASE) -> set[int]:
    """The seconds that the keys of the memory still live; -1 for ever."""
    found: Any = client.keys(f"{base}*")
    return {client.ttl(key) for key in found}


def about(seconds: int) -> set[int]:
    """Return the seconds to an expiry that was set a moment ago."""
    return {*range(seconds - 9, seconds + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
async def test_write_gives_all_keys_one_expiry(
    client: redis.Redis, redis_url: str, split: bool
) -> None:
    def pages(start: int, ttl: float | None) -> list[Page]:
        found = [make_message(f"m{n}", "hint", f"k{start}") for n in range(start, start + 150)]
        return (
            large(found, offset=start, ttl=ttl) if split else [page(found, offset=start, ttl=ttl)]
        )

    async with store_of(redis_url) as store:
        await write(store, *pages(0, None))
        assert distinct_expiries(client) == {-1}
        await write(store, *pages(150, 500.0))
        assert distinct_expiries(client) <= about(500)
        await write(store, *pages(300, None))
        assert distinct_expiries(client) <= about(500), "it stays"
        [memory] = [memory async for memory in store.headers(ALL)]
        assert memory.ttl == pytest.approx(500, abs=9)
        await write(store, *pages(0, None), mode=WriteMode.REPLACE)
        assert distinct_expiries(client) <= about(500), "it stays"
        await write(store, *pages(0, 90.0), mode=WriteMode.REPLACE)
        assert distinct_expiries(client) <= about(90)
    async with store_of(redis_url, "ttl=700.5") as store:
        await write(store, *pages(150, 800.0))
        assert distinct_expiries(client) <= about(701)
        await read(store)
        assert distinct_expiries(client) <= about(701)


async def test_write_leaves_the_expiry_of_marks_that_exist(
    client: redis.Redis, redis_url: str
) -> None:
    put(client, BASE, ["m0"], a=["m0"])
    client.sadd(f"{BASE}:marks_index", "a")
    client.expire(f"{BASE}:messages", 500)
    async with store_of(redis_url) as store:
        await write(store, page([make_message("m1", "a", "new")], offset=1))
    assert client.ttl(f"{BASE}:marks_index") == client.ttl(f"{BASE}:mark:a") == -1
    assert client.ttl(f"{BASE}:mark:new") in (499, 500)


async def test_write_clears_what_a_cleared_memory_left(client: redis.Redis, redis_url: str) -> None:
    """RedisMemory clears only lists in the index; their marks must not come back with an id."""
    put(client, BASE, ["m0", "m1"], compressed=["m0"], hint=["m1"])
    client.delete(f"{BASE}:messages", f"{BASE}:msg:m0", f"{BASE}:msg:m1")
    client.sadd(f"{BASE}:marks_index", "hint")
    async with store_of(redis_url) as store:
        await write(store, page([make_message("m0", "new"), make_message("m1")]))
        assert marks((await read(store))[KEY]) == {"m0": ("new",), "m1": ()}
    assert client.smembers(f"{BASE}:marks_index") == {b"new"}


async def test_write_drops_a_mark_that_outlived_its_message(
    client: redis.Redis, redis_url: str
) -> None:
    """As AgentScope leaves it when it deletes a message whose mark is not in the index."""
    put(client, BASE, ["m0"], compressed=["m0", "m1"])
    async with store_of(redis_url) as store:
        await write(store, page([make_message("m1", "hint")], offset=1))
        assert marks((await read(store))[KEY]) == {"m0": ("compressed",), "m1": ("hint",)}


async def test_write_adds_where_some_payloads_expired(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["m0", "m1", "m2"])
    client.delete(f"{BASE}:msg:m1")
    async with store_of(redis_url) as store:
        [result] = await write(store, page(make_messages(1, start=1), offset=2))
        assert result.failure
        assert result.failure.code == "repeated-id", "m1 is listed still"
        [result] = await write(store, page(make_messages(2, start=3), offset=2))
        assert result == WriteResult(KEY, written=2)
        assert [one.id for one in (await read(store))[KEY]] == ["m0", "m2", "m3", "m4"]


@pytest.mark.parametrize("mode", WriteMode)
async def test_write_refuses_to_clear_ids_without_payload(
    client: redis.Redis, redis_url: str, mode: WriteMode
) -> None:
    client.rpush(f"{BASE}:messages", *(f"old{number}" for number in range(150)))
    before = contents(client)
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        [result] = await write(store, page(make_messages(2)), mode=mode)
        assert result.failure
        assert result.failure.code == "unrestorable"
        assert contents(client) == before
        await store.maintenance().repair("id-without-payload", ALL, Notes())
        [result] = await write(store, page(make_messages(2)), mode=mode)
        assert result == WriteResult(KEY, written=2)
    assert client.llen(f"{BASE}:messages") == 2


async def test_write_takes_a_memory_that_comes_twice(redis_url: str) -> None:
    async with store_of(redis_url) as store:
        results = await write(
            store,
            page(make_messages(2)),
            page(make_messages(1)),
            page(make_messages(1, 2), offset=2),
        )
        codes = [result.failure and result.failure.code for result in results]
        assert codes == [None, "changed", None]
        assert (await read(store))[KEY] == make_messages(3)


@pytest.mark.parametrize("mode", WriteMode)
async def test_write_refuses_to_overwrite_payloads_without_id(
    client: redis.Redis, redis_url: str, mode: WriteMode
) -> None:
    client.set(f"{BASE}:msg:m1", b'{"id": "m1", "of": "a lost memory"}')
    before = contents(client)
    async with store_of(redis_url) as store:
        [result] = await write(store, page(make_messages(2)), mode=mode)
        assert result.failure
        assert result.failure.code == "unrestorable"
        assert contents(client) == before
        await store.maintenance().repair("payload-without-id", ALL, Notes())
        await write(store, page(make_messages(2)), mode=mode)
        assert (await read(store))[KEY] == make_messages(2)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("wrong", ["messages", "marks_index", "mark:hint"])
async def test_write_refuses_a_key_of_another_type(
    client: redis.Redis, redis_url: str, wrong: str, split: bool
) -> None:
    client.hset(f"{BASE}:{wrong}", "field", "value")
    found = [make_message("m0", "hint"), make_message("m1")]
    other = MemoryKey("u", "other")
    async with store_of(redis_url) as store:
        pages = large(found) if split else [page(found)]
        results = await write(store, *pages, page(make_messages(1), other))
        codes = {result.key: result.failure.code for result in results if result.failure}
        assert codes == {KEY: "refused"}
        assert set(await read(store)) == {other}
    assert client.keys(f"{BASE}*") == [f"{BASE}:{wrong}".encode()]


async def test_replace_leaves_nothing_of_the_former_memory(
    client: redis.Redis, redis_url: str
) -> None:
    old = [f"m{number}" for number in range(1500)]
    put(client, BASE, old, hint=old[:700], a=["m1"])
    client.set(f"{BASE}:state", "{}")
    put(client, f"{BASE}:more", ["z"])
    async with store_of(redis_url) as store:
        [result] = await write(store, page(make_messages(2, start=1)), mode=WriteMode.REPLACE)
        assert result == WriteResult(KEY, written=2, deleted=1500)
    keys = {key.removeprefix(f"{BASE}:".encode()) for key in client.keys(f"{BASE}:*")}
    assert keys == {b"messages", b"msg:m1", b"msg:m2", b"state", b"more:messages", b"more:msg:z"}


def test_memory_with_a_damaged_message_is_not_replaced(
    tmp_path: Path, run: Any, client: redis.Redis, redis_url: str
) -> None:
    """Undo could not restore the payload, which the copy would delete."""
    put_intact(client)
    put_intact(client, "user_id:v:session:s")
    client.srem("user_id:v:session:s:marks_index", "gone")
    archive = tmp_path / "a.ndjson"
    report(run("export", redis_url, "-o", archive, "--json"))
    for base in (BASE, "user_id:v:session:s"):
        client.set(f"{base}:msg:m1", json.dumps({"id": "m1", "content": "changed"}))
    client.set(f"{BASE}:msg:m2", b'{"id": "cut')
    before = contents(client)
    done = json.loads(
        run("import", archive, redis_url, "--on-conflict", "replace", "--yes", "--json").stdout
    )
    assert done["memories"] == {"selected": 2} | done["memories"] | {"written": 1, "failed": 1}
    assert "damaged and could not be restored" in done["failures"][0]["message"]
    kept = [key for key in before if key.startswith(BASE.encode())]
    assert [contents(client)[key] for key in kept] == [before[key] for key in kept]
    assert contents(client) != before
    report(run("undo", "--yes", "--json"))
    assert contents(client) == before


async def test_target_is_empty_until_its_shard_has_memories(redis_url: str) -> None:
    async with store_of(redis_url) as store:
        await write(store, page(make_messages(1), KEY))
        assert not await store.is_empty()
    for number in range(3):
        store = store_of(redis_url)
        store.shard = Shard(number, 3)
        async with store:
            assert await store.is_empty() != store.shard.has(KEY)
