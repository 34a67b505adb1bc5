"""Reading Redis memories as the field has them: old, ambiguous, half expired."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from memctl.model import MemoryKey
from memctl.selection import Selection
from tests.support.redis_memories import (
    ALL,
    BASE,
    KEY,
    make_message,
    marks,
    put,
    read,
    store_of,
    write,
)
from tests.support.servers.pool import Servers


async def test_read_lists_only_memories_with_the_mark(counted: tuple[redis.Redis, str]) -> None:
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


async def test_read_finds_marks_without_index(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["a", "b"])
    async with store_of(redis_url) as store:
        expected = {"a": ("compressed", "hint"), "b": ("hint",)}
        assert marks((await read(store))[KEY]) == expected
        assert marks((await read(store, Selection(keys=frozenset({KEY}))))[KEY]) == expected


async def test_read_finds_marks_that_the_index_lacks(client: redis.Redis, redis_url: str) -> None:
    """AgentScope 1.0.15 and later add a mark to the index, and leave out those of before."""
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["b"])
    client.sadd(f"{BASE}:marks_index", "hint", "gone")
    async with store_of(redis_url) as store:
        for where in (Selection(keys=frozenset({KEY})), ALL):
            found = (await read(store, where))[KEY]
            assert marks(found) == {"a": ("compressed",), "b": ("hint",)}


@pytest.mark.slow
async def test_read_gives_the_marks_of_a_large_memory(client: redis.Redis, redis_url: str) -> None:
    ids = [f"m{number}" for number in range(150_000)]
    base = "user_id:u:session:large"
    for start in range(0, len(ids), 10_000):
        some = ids[start : start + 10_000]
        client.rpush(f"{base}:messages", *some)
        client.mset({f"{base}:msg:{id}": b"{}" for id in some})
        client.rpush(f"{base}:mark:even", *reversed(some[::2]))
        client.rpush(f"{base}:mark:all", *some, *some[:5], f"stranger{start}")
    async with store_of(redis_url) as store:
        found = (await read(store))[MemoryKey("u", "large")]
    assert [one.id for one in found] == ids
    assert [one.marks for one in found] == [("all", "even"), ("all",)] * 75_000


async def test_read_skips_ids_without_payload(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b", "c"])
    client.delete(f"{BASE}:msg:b")
    put(client, "user_id:u:session:gone", [f"x{number}" for number in range(200)])
    client.delete(*(f"user_id:u:session:gone:msg:x{number}" for number in range(200)))
    async with store_of(redis_url) as store:
        found = await read(store)
        assert {key: [one.id for one in some] for key, some in found.items()} == {KEY: ["a", "c"]}
        assert [memory.key async for memory in store.headers(ALL)] == [KEY]
        assert [(info.key, info.messages) async for info in store.list_memories(ALL)] == [(KEY, 2)]
        [warning] = store.warnings
        assert "201 message ids" in warning


async def test_read_skips_payloads_that_are_not_messages(
    client: redis.Redis, redis_url: str
) -> None:
    put(client, BASE, ["a", "list", "cut", "latin", "raw", "hash"])
    client.set(f"{BASE}:msg:list", b"[1]")
    client.set(f"{BASE}:msg:cut", b'{"id": "cut')
    client.set(f"{BASE}:msg:latin", b'{"id": "\xe9t\xe9"}')
    client.set(f"{BASE}:msg:raw", b'{"id": "raw", "content": "\xed\xa0\xbd", "n": NaN}')
    client.delete(f"{BASE}:msg:hash")
    client.hset(f"{BASE}:msg:hash", "a", "b")
    async with store_of(redis_url) as store:
        found = (await read(store))[KEY]
        assert [one.id for one in found] == ["a", "raw"]
        assert found[1].message == b'{"id": "raw", "content": "\\ud83d", "n": NaN}'
        assert [line.split(" (")[0] for line in store.warnings] == [
            "left out 4 payloads that are not a JSON object",
        ]


async def test_read_gives_a_repeated_id_twice(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b", "a"])
    async with store_of(redis_url) as store:
        assert [one.id for one in (await read(store))[KEY]] == ["a", "b", "a"]


async def test_read_keeps_names_that_are_not_utf8(servers: Servers, client: redis.Redis) -> None:
    base = b"user_id:\xff\xfe:session:\xe9"
    client.rpush(base + b":messages", b"\xc0id")
    client.set(base + b":msg:\xc0id", b'{"id": "other"}')
    client.rpush(base + b":mark:\x80", b"\xc0id")
    client.sadd(base + b":marks_index", b"\x80")
    url = f"redis://127.0.0.1:{servers.redis.port}/{client.connection_pool.connection_kwargs['db']}"
    target = servers.redis.fresh()
    async with store_of(url) as source, store_of(target) as copy:
        await write(copy, *[some async for some in source.read(ALL)])
        assert await read(copy) == await read(source) != {}
    assert servers.redis.dump(target) == servers.redis.dump(url)


async def test_read_ignores_other_keys(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a"])
    client.set("user_id:u:session:string:messages", "x")
    client.rpush("user_id:u:session:s:message", "a")
    client.rpush("other:user_id:u:session:s:messages", "a")
    client.set(f"{BASE}:state", "{}")
    client.set("user_id:u:session:wrong:marks_index", "x")
    put(client, "user_id:u:session:wrong", ["b"])
    client.set("user_id:u:session:wrong:mark:hint", "x")
    async with store_of(redis_url) as store:
        assert set(await read(store)) == {KEY, MemoryKey("u", "wrong")}
        keys = frozenset({KEY, MemoryKey("u", "string"), MemoryKey("u", "none")})
        assert set(await read(store, Selection(keys=keys))) == {KEY}


async def test_read_parses_a_key_by_the_selection(client: redis.Redis, redis_url: str) -> None:
    put(client, "user_id:a:session:b:session:c", ["x"])
    default, other = MemoryKey("a", "b:session:c"), MemoryKey("a:session:b", "c")
    async with store_of(redis_url) as store:
        for where, key in (
            (ALL, default),
            (Selection(users=frozenset({"a"})), default),
            (Selection(users=frozenset({"a:session:b"})), other),
            (Selection(sessions=frozenset({"c"})), other),
            (Selection(users=frozenset({"a", "a:session:b"})), default),
            (Selection(keys=frozenset({other})), other),
        ):
            assert set(await read(store, where)) == {key}


async def test_read_tells_marks_from_memories(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], **{"x:messages": ["a"], "messages": ["b"]})
    real = "user_id:u:session:s:mark:y"
    put(client, real, ["a"], hint=["a"])
    async with store_of(redis_url) as store:
        found = await read(store)
        assert set(found) == {KEY, MemoryKey("u", "s:mark:y")}
        assert marks(found[KEY]) == {"a": ("x:messages",), "b": ("messages",)}
        assert marks(found[MemoryKey("u", "s:mark:y")]) == {"a": ("hint",)}


async def test_read_takes_patterns_in_names_literally(client: redis.Redis, redis_url: str) -> None:
    names = ["*", "?", "[s]", "s", "\\s", "s*"]
    for name in names:
        put(client, f"user_id:u:session:{name}", [f"of {name}"])
    async with store_of(redis_url) as store:
        for name in names:
            found = await read(store, Selection(sessions=frozenset({name})))
            assert {key: some[0].id for key, some in found.items()} == {
                MemoryKey("u", name): f"of {name}"
            }


@pytest.mark.slow
async def test_read_skips_a_missing_payload_of_a_large_memory(
    client: redis.Redis, redis_url: str
) -> None:
    """In a large memory, too: what is still listed when its payload was missing has none."""
    put(client, BASE, [f"m{number}" for number in range(3000)])
    client.delete(f"{BASE}:msg:m5", f"{BASE}:msg:m2999")
    async with store_of(redis_url) as store:
        found = (await read(store))[KEY]
        assert len(found) == 2998
        assert store.warnings == [
            f"left out 2 message ids without payload (the first: 'm5' of '{BASE}')"
        ]
        outlines = [one async for page in store.outline(ALL) for one in page.messages]
        assert [one.id for one in outlines] == [one.id for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
async def test_read_keeps_pages_small_for_messages_of_any_size(
    client: redis.Redis, redis_url: str, large: bool
) -> None:
    """No page holds much more than its size, whatever comes after small messages."""
    small = [f"s{number}" for number in range(1500 if large else 300)]
    put(client, BASE, [*small, *(f"h{number}" for number in range(40))])
    for number in range(40):
        client.set(
            f"{BASE}:msg:h{number}", make_message(f"h{number}", content="h" * 3_000_000).message
        )
    async with store_of(redis_url) as store:
        sizes = []
        async for page in store.read(ALL):
            sizes.append(sum(len(one.message) for one in page.messages))
            await asyncio.sleep(0)
    assert sum(sizes) > 120_000_000
    assert max(sizes) < 8_000_000
