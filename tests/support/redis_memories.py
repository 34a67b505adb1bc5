"""Helpers to create, read, write, edit and check memories of RedisMemory in Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import redis

from memctl.model import (
    Change,
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.ops.doctor.check import Limits, check
from memctl.registry import parse
from memctl.selection import Selection
from memctl.storekit.batching import gather
from memctl.stores.agentscope1.redis.store import RedisMemoryStore

ALL = Selection()
KEY = MemoryKey("u", "s")
BASE = "user_id:u:session:s"
MEMBER = "_MemoryMark.HINT"
"""The name under which an agent on Python 3.11 or newer lists the mark hint."""


def make_message(id: str, *marks: str, content: str = "c") -> StoredMessage:
    message = {"id": id, "name": "n", "role": "user", "content": content}
    return StoredMessage(id, json.dumps(message).encode(), marks)


def make_messages(count: int, start: int = 0) -> list[StoredMessage]:
    return [make_message(f"m{number}") for number in range(start, start + count)]


def page(found: list[StoredMessage], key: MemoryKey = KEY, offset: int = 0, **about: Any) -> Page:
    return Page(Memory(key, **about), found, offset)


def large(
    found: list[StoredMessage], key: MemoryKey = KEY, offset: int = 0, **about: Any
) -> list[Page]:
    """Return a memory in two pages."""
    half = len(found) // 2
    memory = Memory(key, **about)
    return [
        Page(memory, found[:half], offset, last=False),
        Page(memory, found[half:], offset + half),
    ]


def store_of(url: str, options: str = "") -> RedisMemoryStore:
    return RedisMemoryStore(parse(f"{url}?{options}"))


def put(client: redis.Redis, base: str, ids: list[str], **marks: list[str]) -> None:
    """Write a memory like AgentScope 1.0.14, without an index of its marks."""
    client.rpush(f"{base}:messages", *ids)
    for id in ids:
        client.set(f"{base}:msg:{id}", make_message(id).message)
    for mark, marked in marks.items():
        client.rpush(f"{base}:mark:{mark}", *marked)


async def read(
    store: RedisMemoryStore, where: Selection = ALL
) -> dict[MemoryKey, list[StoredMessage]]:
    found: dict[MemoryKey, list[StoredMessage]] = {}
    async for some in store.read(where):
        found.setdefault(some.memory.key, []).extend(some.messages)
    return found


async def write(
    store: RedisMemoryStore, *pages: Page, mode: WriteMode = WriteMode.ADD
) -> list[WriteResult]:
    async def all_pages() -> AsyncGenerator[Page]:
        for one in pages:
            yield one

    with nullcontext() if all(one.last for one in pages) else staging():
        return [result async for result in store.write(all_pages(), mode)]


def staging() -> AbstractContextManager[object]:
    """Stage memories of several pages, even small ones."""
    return patch("memctl.stores.agentscope1.redis.store.gather", partial(gather, messages=1))


def marks(found: list[StoredMessage]) -> dict[str, tuple[str, ...]]:
    return {one.id: one.marks for one in found}


TTLS = {"messages": 5000, "marks_index": 4000, "mark:hint": 3000, "mark:a": 2000}
"""Seconds; AgentScope lets the keys of a memory expire separately."""


def gone(id: str, *marks: str) -> Change:
    return Change(id, marks)


def marked(id: str, *marks: str, was: Iterable[str] = ()) -> Change:
    return Change(id, tuple(was), marks)


def back(id: str, *marks: str, after: str | None = None, content: str = "c") -> Change:
    return Change(id, None, marks, make_message(id, content=content).message, after)


async def edit(
    store: RedisMemoryStore, *changes: Change, key: MemoryKey = KEY, size: int = 0, **about: Any
) -> WriteResult:
    """Change one memory; an edit has ``size`` changes, or all changes if ``size`` is 0."""

    async def edits() -> AsyncGenerator[Edit]:
        step = size or len(changes)
        for start in range(0, len(changes), step):
            some = list(changes[start : start + step])
            yield Edit(Memory(key, **about), some, start, start + step >= len(changes))

    [result] = [result async for result in store.edit(edits())]
    return result


def ids(client: redis.Redis, key: str, base: str = BASE) -> list[str]:
    found: Any = client.lrange(f"{base}:{key}", 0, -1)
    return [id.decode() for id in found]


def index(client: redis.Redis) -> set[str]:
    found: Any = client.smembers(f"{BASE}:marks_index")
    return {mark.decode() for mark in found}


def expiries(client: redis.Redis, base: str = BASE) -> dict[str, int]:
    """Return the TTL of each key in milliseconds; -1 for none."""
    found: Any = client.keys(f"{base}*")
    return {key.decode().removeprefix(f"{base}:"): int(client.pttl(key)) for key in found}


def filled(client: redis.Redis, count: int = 6, *, indexed: bool = True) -> list[str]:
    """Write a memory whose messages have the marks hint and a in turn; return the ids."""
    found = [f"m{number}" for number in range(count)]
    put(client, BASE, found, a=found[1::2], hint=found[::2])
    if indexed:
        client.sadd(f"{BASE}:marks_index", "a", "hint")
    return found


def dump(client: redis.Redis, base: str) -> dict[str, Any]:
    """Return the keys of a memory, without those of a longer session name."""
    found: Any = client.keys("*")
    names = [key.decode() for key in found]
    return {
        name: client.dump(name)
        for name in names
        if name.startswith(f"{base}:") and not name.startswith(f"{base}:x:")
    }


def kill_when_staged(program: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert run.stdout
    assert run.stdout.readline() == b"staged\n"
    run.kill()
    run.communicate()


async def findings_of(url: str, where: Selection = ALL) -> list[Finding]:
    """Return the findings of doctor."""
    async with store_of(url) as store:
        return (await check(store, where, Limits())).faults


def put_intact(client: redis.Redis, base: str = BASE, *, ttl: int = 0) -> None:
    """Write a memory of three messages like AgentScope 1.0.21, with an index of its marks."""
    put(client, base, ["m1", "m2", "m3"], a=["m1", "m2"])
    client.sadd(f"{base}:marks_index", "a", "gone")
    if ttl:
        for key in client.scan_iter(f"{base}:*"):
            client.expire(key, ttl)


def contents(client: redis.Redis) -> dict[bytes, Any]:
    """Return every key with its value, and its TTL in units of 100 seconds for slow machines."""
    found = {}
    for key in client.scan_iter():
        kind = client.type(key)
        value = (
            client.get(key)
            if kind == b"string"
            else client.lrange(key, 0, -1)
            if kind == b"list"
            else client.hgetall(key)
            if kind == b"hash"
            else client.smembers(key)
        )
        ttl = client.pttl(key)
        found[key] = (value, round(ttl / 100_000) if ttl >= 0 else None)
    return found
