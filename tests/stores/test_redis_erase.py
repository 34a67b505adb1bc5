"""Erasing sessions of RedisMemory: every key of theirs, and no key of another."""

from __future__ import annotations

import asyncio

import pytest
import redis

from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from tests.support.cli import fill

BASE = "user_id:quokka:session:b"


def erase(url: str, user: str, *sessions: str) -> int:
    """Erase a user, or some sessions; return how many messages went."""

    async def work() -> int:
        where = Selection(users=frozenset({user}), sessions=frozenset(sessions))
        async with make_store(parse(url), OpenMode.CHANGE) as store:
            results = [result async for result in store.erase(where)]
        assert not any(result.failure for result in results)
        return sum(result.deleted for result in results)

    return asyncio.run(work())


def names(client: redis.Redis) -> set[str]:
    """Return the names of all keys but memctl's locks."""
    found = {key.decode() for key in client.keys("*")}
    return {key for key in found if not key.startswith("memctl:")}


def test_erase_takes_what_no_list_names(redis_url: str, client: redis.Redis) -> None:
    asyncio.run(fill(redis_url, {MemoryKey("quokka", "b"): samples.entries(3)}))
    client.set(f"{BASE}:msg:stray", "{}")
    client.rpush(f"{BASE}:mark:unlisted", "stray")
    client.set(f"{BASE}:state", "{}")
    client.set("user_id:quokka:session:alone:msg:m1", "{}")
    client.set("user_id:quokka:session:alone:state", "{}")
    client.set("user_id:bob:session:b:state", "{}")
    client.set("user_id:quokka:other", "not of AgentScope")
    assert erase(redis_url, "quokka") == 3
    assert names(client) == {"user_id:bob:session:b:state", "user_id:quokka:other"}


@pytest.mark.parametrize("session", ["b", "b:msg:x", "b:mark:x", "b:state"])
def test_erase_of_sessions_whose_keys_look_alike(
    redis_url: str, client: redis.Redis, session: str
) -> None:
    memories = {
        "b": [samples.entry("x:msg:1", 1), samples.entry("m1", 2), samples.entry("y:messages", 3)],
        "b:msg:x": [samples.entry("2", 1, ("hint",))],
        "b:mark:x": [samples.entry("2", 1, ("y:messages",))],
        "b:state": [samples.entry("state", 1)],
    }
    asyncio.run(fill(redis_url, {MemoryKey("quokka", name): memories[name] for name in memories}))
    before = names(client)
    with redis.Redis.from_url(redis_url) as other:
        other.flushdb()
    rest = {MemoryKey("quokka", name): memories[name] for name in memories if name != session}
    asyncio.run(fill(redis_url, rest))
    expected = names(client)
    asyncio.run(fill(redis_url, {MemoryKey("quokka", session): memories[session]}))
    assert names(client) == before
    assert erase(redis_url, "quokka", session) == len(memories[session])
    assert names(client) == expected


def test_erase_of_a_memory_that_an_agent_writes_to(redis_url: str, client: redis.Redis) -> None:
    asyncio.run(fill(redis_url, {MemoryKey("quokka", "b"): samples.entries(2500)}))
    client.rpush(f"{BASE}:messages", "new")
    client.set(f"{BASE}:msg:new", "{}")
    assert erase(redis_url, "quokka", "b") == 2501
    assert names(client) == set()
