"""Changes of RedisMemory's keys, and looks at what became of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import redis

from memctl.model import Change, Edit, Memory, MemoryKey, WriteResult
from memctl.stores.redis.store import RedisMemoryStore
from tests.stores.redis_memories import BASE, KEY, entry, put

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
) -> WriteResult:
    """Changes one memory, so many changes in an edit."""

    async def edits() -> AsyncGenerator[Edit]:
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


def dump(client: redis.Redis, base: str) -> dict[str, Any]:
    """The keys of a memory, not of one whose session goes on."""
    found: Any = client.keys("*")
    names = [key.decode() for key in found]
    return {
        name: client.dump(name)
        for name in names
        if name.startswith(f"{base}:") and not name.startswith(f"{base}:x:")
    }
