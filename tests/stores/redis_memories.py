"""Memories in Redis, made and read as the tests need them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import redis

from memctl.model import Memory, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.registry import parse
from memctl.selection import Selection
from memctl.stores.batching import gather
from memctl.stores.redis.store import RedisMemoryStore

ALL = Selection()
KEY = MemoryKey("u", "s")
BASE = "user_id:u:session:s"
MEMBER = "_MemoryMark.HINT"
"""Where an agent on Python 3.11 or newer lists the mark hint."""


def entry(id: str, *marks: str, content: str = "c") -> StoredMessage:
    message = {"id": id, "name": "n", "role": "user", "content": content}
    return StoredMessage(id, json.dumps(message).encode(), marks)


def entries(count: int, start: int = 0) -> list[StoredMessage]:
    return [entry(f"m{number}") for number in range(start, start + count)]


def page(found: list[StoredMessage], key: MemoryKey = KEY, offset: int = 0, **about: Any) -> Page:
    return Page(Memory(key, **about), found, offset)


def large(
    found: list[StoredMessage], key: MemoryKey = KEY, offset: int = 0, **about: Any
) -> list[Page]:
    """The same memory in two pages."""
    half = len(found) // 2
    memory = Memory(key, **about)
    return [
        Page(memory, found[:half], offset, last=False),
        Page(memory, found[half:], offset + half),
    ]


def store_of(url: str, options: str = "") -> RedisMemoryStore:
    return RedisMemoryStore(parse(f"{url}?{options}"))


def put(client: redis.Redis, base: str, ids: list[str], **marks: list[str]) -> None:
    """A memory as AgentScope 1.0.14 writes it, without an index of its marks."""
    client.rpush(f"{base}:messages", *ids)
    for id in ids:
        client.set(f"{base}:msg:{id}", entry(id).message)
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
        return [tally async for tally in store.write(all_pages(), mode)]


def staging() -> AbstractContextManager[object]:
    """Lets memories of several pages be staged, however small they are."""
    return patch("memctl.stores.redis.store.gather", partial(gather, messages=1))


def marks(found: list[StoredMessage]) -> dict[str, tuple[str, ...]]:
    return {one.id: one.marks for one in found}
