"""States in Redis: read whole, replaced in one step, expiry kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis

from memctl.model import Memory, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.registry import parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.states.redis import RedisSessionStore

ALL = Selection()
KEY = MemoryKey("u", "s")
NAME = "user_id:u:session:s:state"
LARGE = "l" * 1000


def entry(number: int, content: str = "c") -> StoredMessage:
    message = {"id": f"m{number}", "name": "n", "role": "user", "content": content}
    return StoredMessage(f"m{number}", json.dumps(message).encode())


def state(count: int = 1, content: str = "c", summary: str = "") -> str:
    pairs = [[json.loads(entry(number, content).message), []] for number in range(count)]
    return json.dumps({"memory": {"_compressed_summary": summary, "content": pairs}, "x": 1})


def store_of(url: str, options: str = "", *, create: bool = True) -> RedisSessionStore:
    found = parse(f"{url}?layout=session{options}")
    return RedisSessionStore(found, OpenMode.CREATE if create else OpenMode.READ)


async def read(
    store: RedisSessionStore, where: Selection = ALL
) -> dict[MemoryKey, list[StoredMessage]]:
    found: dict[MemoryKey, list[StoredMessage]] = {}
    async for page in store.read(where):
        found.setdefault(page.memory.key, []).extend(page.messages)
    return found


async def write(
    store: RedisSessionStore, *pages: Page, mode: WriteMode = WriteMode.ADD
) -> WriteResult:
    async def all_pages() -> AsyncGenerator[Page]:
        for page in pages:
            yield page

    [result] = [result async for result in store.write(all_pages(), mode)]
    return result


def in_pages(count: int, ttl: float | None = None) -> list[Page]:
    """A memory that is staged on the server."""
    memory = Memory(KEY, "", ttl)
    entries = [entry(number, LARGE) for number in range(count)]
    starts = range(0, count, 1000)
    return [
        Page(memory, entries[start : start + 1000], start, start + 1000 >= count)
        for start in starts
    ]


@pytest.mark.slow
async def test_small_and_large_states_are_read(client: redis.Redis, redis_url: str) -> None:
    client.set(NAME, state(5000, LARGE, "s"), ex=100)
    client.set("user_id:u:session:t:state", state(3))
    client.set("user_id:u:session:none:state", json.dumps({"agent": {}}))
    client.set("app:user_id:u:session:t:state", state(1))
    client.rpush("user_id:u:session:list:state", "x")
    before = client.dump(NAME)
    async with store_of(redis_url, create=False) as store:
        found = await read(store)
        assert {key: len(entries) for key, entries in found.items()} == {
            KEY: 5000,
            KEY._replace(session="t"): 3,
        }
        assert found[KEY] == [entry(number, LARGE) for number in range(5000)]
        infos = {info.key: info async for info in store.list_memories(ALL)}
        assert infos[KEY].ttl == pytest.approx(100, abs=20)
        assert infos[KEY._replace(session="t")].ttl is None
        assert infos[KEY].messages == 5000
        assert await read(store, Selection(users=frozenset({"v"}))) == {}
    async with store_of(redis_url, "&prefix=app:") as store:
        assert list(await read(store)) == [KEY._replace(session="t")]
    assert client.dump(NAME) == before
    assert 0 < client.ttl(NAME) <= 100


async def test_a_name_may_be_read_in_several_ways(client: redis.Redis, redis_url: str) -> None:
    client.set("user_id:a:session:b:session:c:state", state())
    one, other = MemoryKey("a", "b:session:c"), MemoryKey("a:session:b", "c")
    async with store_of(redis_url) as store:
        assert list(await read(store)) == [one]
        assert list(await read(store, Selection(users=frozenset({other.user})))) == [other]
        assert list(await read(store, Selection(keys=frozenset({other})))) == [other]
        await write(store, Page(Memory(other), [entry(1)], 1))
        result = await write(store, Page(Memory(one), [entry(2)], 2))
        assert result.failure is not None
        assert result.failure.code == "bad-name"
        assert list(await read(store)) == [other]


@pytest.mark.parametrize("count", [2, 5000])
async def test_the_rest_of_a_state_and_its_expiry_stay(
    client: redis.Redis, redis_url: str, count: int
) -> None:
    client.set(NAME, '{"a": 1.50, "memory": {"content": []}, "z": NaN}', ex=100)
    async with store_of(redis_url) as store:
        assert await write(store, *in_pages(count)) == WriteResult(KEY, count)
        text = client.get(NAME)
        assert isinstance(text, bytes)
        assert text.startswith(b'{"a": 1.50, "memory": {')
        assert text.endswith(b']}, "z": NaN}')
        assert 0 < client.ttl(NAME) <= 100
        await write(store, *in_pages(count, ttl=5000.0), mode=WriteMode.REPLACE)
        assert 100 < client.ttl(NAME) <= 5000
        assert len((await read(store))[KEY]) == count
    async with store_of(redis_url, "&ttl=70") as store:
        await write(store, *in_pages(count, ttl=5000.0), mode=WriteMode.REPLACE)
        assert 0 < client.ttl(NAME) <= 70
    assert client.keys() == [NAME.encode()]


@pytest.mark.parametrize("count", [2, 5000])
@pytest.mark.parametrize("present", [None, state()])
async def test_who_saves_meanwhile_wins(
    client: redis.Redis, redis_url: str, count: int, present: str | None
) -> None:
    if present:
        client.set(NAME, present)
    offset = 1 if present else 0

    async def pages() -> AsyncGenerator[Page]:
        for page in in_pages(count):
            half = len(page.messages) // 2
            start = page.offset + offset
            yield Page(page.memory, page.messages[:half], start, last=False)
            client.set(NAME, state(3))
            yield Page(page.memory, page.messages[half:], start + half, page.last)

    async with store_of(redis_url) as store:
        [result] = [result async for result in store.write(pages())]
        assert result.failure is not None
        assert result.failure.code == "changed"
    assert client.get(NAME) == state(3).encode()
    assert client.keys() == [NAME.encode()]


async def test_a_change_after_reading_changes_no_page(client: redis.Redis, redis_url: str) -> None:
    client.set(NAME, state(5000, LARGE))
    async with store_of(redis_url) as store:
        pages = store.read(ALL)
        found = (await anext(pages)).messages
        client.set(NAME, state(1))
        async for page in pages:
            found += page.messages
    assert found == [entry(number, LARGE) for number in range(5000)]


async def test_an_interrupted_write_leaves_nothing(client: redis.Redis, redis_url: str) -> None:
    client.set(NAME, state())

    async def pages() -> AsyncGenerator[Page]:
        for page in in_pages(5000)[:-1]:
            yield Page(page.memory, page.messages, page.offset + 1, last=False)
        assert client.keys() == [NAME.encode()]
        raise asyncio.CancelledError

    async with store_of(redis_url) as store:
        with pytest.raises(asyncio.CancelledError):
            async for _ in store.write(pages()):
                pass
        assert client.keys() == [NAME.encode()]
        assert await read(store) == {KEY: [entry(0)]}


async def test_a_broken_state_is_named(client: redis.Redis, redis_url: str) -> None:
    client.set(NAME, state()[:-3])
    async with store_of(redis_url) as store:
        assert await read(store) == {}
        assert f"the key {NAME} is cut off at byte" in store.left_out.failures[KEY].message
        result = await write(store, Page(Memory(KEY), [entry(1)]))
        assert result.failure is not None
        assert result.failure.code == "refused"


async def test_states_and_memories_are_different_places(redis_url: str) -> None:
    async with store_of(redis_url) as one, store_of(redis_url) as other:
        assert await one.identity() == await other.identity()
        assert (await one.identity()).startswith("redis-session:")


def test_the_state_is_what_agentscope_loads(client: redis.Redis, redis_url: str) -> None:
    async def run() -> None:
        async with store_of(redis_url) as store:
            await write(store, Page(Memory(KEY, "é"), [entry(1)]))

    asyncio.run(run())
    value: Any = client.get(NAME)
    assert json.loads(value.decode()) == {
        "memory": {
            "_compressed_summary": "é",
            "content": [[json.loads(entry(1).message), []]],
        }
    }
