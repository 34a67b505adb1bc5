"""Redis memory as the field has it: old, ambiguous, half expired."""

from __future__ import annotations

import pytest
import redis

from memctl.errors import Unavailable
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection
from tests.conftest import Servers
from tests.stores.redis_memories import (
    ALL,
    BASE,
    KEY,
    entries,
    entry,
    large,
    marks,
    page,
    put,
    read,
    store_of,
    write,
)

# What is there


async def test_marks_that_no_index_names(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["a", "b"])
    async with store_of(redis_url) as store:
        expected = {"a": ("compressed", "hint"), "b": ("hint",)}
        assert marks((await read(store))[KEY]) == expected
        assert marks((await read(store, Selection(keys=frozenset({KEY}))))[KEY]) == expected


async def test_an_index_that_began_with_the_first_new_mark(
    client: redis.Redis, redis_url: str
) -> None:
    """AgentScope 1.0.15 and later add a mark to the index, and leave out those of before."""
    put(client, BASE, ["a", "b"], compressed=["a"], hint=["b"])
    client.sadd(f"{BASE}:marks_index", "hint", "gone")
    async with store_of(redis_url) as store:
        for where in (Selection(keys=frozenset({KEY})), ALL):
            found = (await read(store, where))[KEY]
            assert marks(found) == {"a": ("compressed",), "b": ("hint",)}


async def test_marks_of_a_large_memory(client: redis.Redis, redis_url: str) -> None:
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


async def test_ids_without_payload_are_left_out(client: redis.Redis, redis_url: str) -> None:
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


async def test_payloads_that_are_no_messages(client: redis.Redis, redis_url: str) -> None:
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
            "left out 1 message ids without payload",
            "left out 3 payloads that are not a JSON object",
        ]


async def test_an_id_that_is_listed_twice(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b", "a"])
    async with store_of(redis_url) as store:
        assert [one.id for one in (await read(store))[KEY]] == ["a", "b", "a"]


async def test_names_that_are_no_utf8(servers: Servers, client: redis.Redis) -> None:
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


async def test_what_is_no_memory(client: redis.Redis, redis_url: str) -> None:
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


# Names that can be taken apart in several ways


async def test_the_selection_settles_what_a_key_means(client: redis.Redis, redis_url: str) -> None:
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


async def test_marks_that_look_like_memories(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a", "b"], **{"x:messages": ["a"], "messages": ["b"]})
    real = "user_id:u:session:s:mark:y"
    put(client, real, ["a"], hint=["a"])
    async with store_of(redis_url) as store:
        found = await read(store)
        assert set(found) == {KEY, MemoryKey("u", "s:mark:y")}
        assert marks(found[KEY]) == {"a": ("x:messages",), "b": ("messages",)}
        assert marks(found[MemoryKey("u", "s:mark:y")]) == {"a": ("hint",)}


async def test_the_library_s_patterns_in_names(client: redis.Redis, redis_url: str) -> None:
    names = ["*", "?", "[s]", "s", "\\s", "s*"]
    for name in names:
        put(client, f"user_id:u:session:{name}", [f"of {name}"])
    async with store_of(redis_url) as store:
        for name in names:
            found = await read(store, Selection(sessions=frozenset({name})))
            assert {key: some[0].id for key, some in found.items()} == {
                MemoryKey("u", name): f"of {name}"
            }


async def test_one_key_is_not_written_under_two_names(redis_url: str) -> None:
    first, second = MemoryKey("a:session:b", "c"), MemoryKey("a", "b:session:c")
    async with store_of(redis_url) as store:
        tallies = await write(store, page(entries(1), first), page(entries(1), second))
        codes = {tally.key: tally.failure and tally.failure.code for tally in tallies}
        assert codes == {first: None, second: "bad-name"}
        assert set(await read(store)) == {first}


@pytest.mark.parametrize("key", [MemoryKey("u", "s", "agent.memory"), MemoryKey("\ud800", "s")])
async def test_names_that_cannot_be_written(redis_url: str, key: MemoryKey) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page(entries(2), key)], large(entries(2), key)):
            [tally] = await write(store, *pages)
            assert tally.failure
            assert tally.failure.code == "bad-name"


@pytest.mark.parametrize("bad", [entry("\ud800"), entry("m9", "\udbff")])
async def test_ids_and_marks_that_cannot_be_written(
    client: redis.Redis, redis_url: str, bad: StoredMessage
) -> None:
    async with store_of(redis_url) as store:
        for pages in ([page([*entries(2), bad])], large([*entries(2), bad])):
            [tally] = await write(store, *pages)
            assert tally.failure
            assert tally.failure.code == "refused"
    assert client.dbsize() == 0


async def test_a_memory_that_is_deleted_while_it_is_read(
    client: redis.Redis, redis_url: str
) -> None:
    """A part of a memory is never handed out as the whole."""
    async with store_of(redis_url) as store:
        await write(store, *large(entries(8000)))
        pages = store.read(ALL)
        first = await anext(pages)
        assert not first.last
        client.flushdb()
        with pytest.raises(Unavailable, match="deleted while they were read"):
            [page async for page in pages]
