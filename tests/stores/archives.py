"""Archives for tests: made by hand, written, read and refused."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import BadData
from memctl.machine import zstd
from memctl.model import Memory, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.registry import parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.archive.store import ArchiveStore

ALL = Selection()
KEY = MemoryKey("u", "s")
WHEN = "2025-03-01T12:00:00+01:00"
ENDINGS = ["ndjson", "ndjson.gz", "ndjson.zst"]


def entry(id: str, *marks: str, content: str = "c") -> StoredMessage:
    message = {"id": id, "name": "n", "role": "user", "content": content}
    return StoredMessage(id, json.dumps(message).encode(), marks)


def entries(count: int, start: int = 0) -> list[StoredMessage]:
    return [entry(f"m{number}", "hint") for number in range(start, start + count)]


def page(
    found: Iterable[StoredMessage], key: MemoryKey = KEY, offset: int = 0, **about: Any
) -> Page:
    return Page(Memory(key, **about), list(found), offset)


def store_of(path: Path, *, create: bool = True) -> ArchiveStore:
    store = ArchiveStore(parse(str(path)), OpenMode.CREATE if create else OpenMode.READ)
    store.created = WHEN
    return store


async def write(path: Path, *pages: Page, mode: WriteMode = WriteMode.ADD) -> list[WriteResult]:
    async with store_of(path) as store:
        return await write_to(store, *pages, mode=mode)


async def write_to(
    store: ArchiveStore, *pages: Page, mode: WriteMode = WriteMode.ADD
) -> list[WriteResult]:
    async def all_pages() -> AsyncGenerator[Page]:
        for one in pages:
            yield one

    return [result async for result in store.write(all_pages(), mode)]


async def read(path: Path, where: Selection = ALL) -> list[tuple[Memory, list[StoredMessage]]]:
    async with store_of(path, create=False) as store:
        return await read_from(store, where)


async def read_from(
    store: ArchiveStore, where: Selection = ALL
) -> list[tuple[Memory, list[StoredMessage]]]:
    found: list[tuple[Memory, list[StoredMessage]]] = []
    async for some in store.read(where):
        if some.offset == 0:
            found.append((some.memory, []))
        found[-1][1].extend(some.messages)
    if where.whole:
        await assert_outlined(store, where, found)
    return found


async def assert_outlined(
    store: ArchiveStore, where: Selection, found: list[tuple[Memory, list[StoredMessage]]]
) -> None:
    """Assert that outlines are the same but for the messages."""
    outlined: list[tuple[Memory, list[StoredMessage]]] = []
    async for some in store.outline(where):
        if some.offset == 0:
            outlined.append((some.memory, []))
        outlined[-1][1].extend(some.messages)
    assert outlined == [
        (memory, [one._replace(message=b"") for one in entries]) for memory, entries in found
    ]


async def refusal(path: Path) -> BadData:
    """Return the reason why the archive is not opened, be it to read or to write."""
    for create in (False, True):
        with pytest.raises(BadData) as refused:
            async with store_of(path, create=create):
                pass
        assert refused.value.hint
    return refused.value


def sealed(*lines: bytes, memories: int = 1, messages: int = 1) -> bytes:
    """The lines after the header, with a header and a right end."""
    head = b'{"memctl": "archive", "version": 1, "created": "x", "source": null, "new": 1}\n'
    body = head + b"".join(line + b"\n" for line in lines)
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    end = {"end": {"memories": memories, "messages": messages, "digest": digest}}
    return body + json.dumps(end).encode()


def compress(ending: str, data: bytes) -> bytes:
    if ending.endswith("gz"):
        return gzip.compress(data, mtime=0)
    if ending.endswith("zst"):
        return zstd.ZstdCompressor().compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    return data


def decompress(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstd.ZstdFile(path).read()
    return data
