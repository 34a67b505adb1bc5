"""A plugin for memctl: memories as lines of JSON, and a command that lists users.

Each line is one memory, ``{"user": ..., "session": ..., "messages": [[id, marks, text], ...]}``.
The file is held in memory and written anew by each write, so it is for small stores.  All that is
imported of memctl is what ``memctl`` itself names.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

import memctl
from memctl import (
    Edit,
    Failure,
    Features,
    Memory,
    MemoryInfo,
    MemoryKey,
    OpenMode,
    Page,
    Selection,
    StoredMessage,
    WriteMode,
    WriteResult,
)

PAGE = 1000
"""Messages of a page."""

Memories = dict[MemoryKey, list[StoredMessage]]


class LinesStore(memctl.Store):
    """Memories as lines of JSON, for small stores."""

    kind = "lines"
    features = Features(empty=True, mark_order=True)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        self._path = self.location.path
        if self.location.url:  # lines:///absolute/path.lines
            self._path = Path(unquote(urlsplit(self.location.url).path))
        self._lock: Path | None = None
        try:
            self._load()
        except FileNotFoundError as error:
            if not mode.creates:
                raise memctl.NotFound(f"{self.label} does not exist", "check the path") from error
            self._save({})

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.unlink(missing_ok=True)
            self._lock = None

    async def lock(self, holder: str) -> None:
        """A file beside it.  (One that ends with its process would be better.)"""
        path = self._path.with_name(f".{self._path.name}.lock")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(holder)
        except FileExistsError as error:
            other = path.read_text("utf-8")
            raise memctl.Busy(f"{other} is writing to {self.label}", "wait for it") from error
        self._lock = path

    async def identity(self) -> str:
        return _identity(self._path)

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        info = MemoryInfo(MemoryKey("", ""))
        async with aclosing(self.read(where)) as pages:
            async for page in pages:
                if page.offset == 0:
                    info = MemoryInfo(page.memory.key)
                for entry in page.messages:
                    _count(info, entry)
                if page.last:
                    yield info

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        # Selection.apply picks the messages, as it does for every store.
        async with aclosing(where.apply(self._pages(where))) as pages:
            async for page in pages:
                yield page

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        for key, entries in self._load().items():
            if where.has_key(key):
                for start in range(0, len(entries), PAGE) or [0]:
                    some = entries[start : start + PAGE]
                    yield Page(Memory(key), some, start, start + PAGE >= len(entries))

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        new: list[StoredMessage] = []
        offset = 0
        async for page in pages:
            if page.offset == 0 or not new:
                offset = page.offset
            new += page.messages
            if page.last:
                yield self._write(page.memory.key, new, offset, mode)
                new = []

    def _write(
        self, key: MemoryKey, new: list[StoredMessage], offset: int, mode: WriteMode
    ) -> WriteResult:
        """Writes one memory, whole or not at all."""
        memories = self._load()
        there, gone = memories.get(key, []), 0
        if mode is WriteMode.REPLACE:
            there, gone = [], len(there)
        if mode is WriteMode.ADD and len(there) != offset:
            return _failed(key, "changed", f"there are {len(there)} messages, not {offset}")
        if key.part:
            return _failed(key, "bad-name", "a line has no place for a part of a session")
        whole = [*there, *new]
        if len({entry.id for entry in whole}) < len(whole):
            return _failed(key, "repeated-id", "an id occurs twice")
        memories[key] = whole
        self._save(memories)
        return WriteResult(key, len(new), gone)

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        parts: list[Edit] = []
        async for edit in edits:
            parts.append(edit)
            if edit.last:
                yield self._edit(parts)
                parts = []

    def _edit(self, parts: list[Edit]) -> WriteResult:
        """Changes one memory, whole or not at all."""
        key = parts[0].memory.key
        memories = self._load()
        entries = {entry.id: entry for entry in memories.get(key, [])}
        put: dict[str | None, list[StoredMessage]] = {}
        written = deleted = 0
        for change in [change for part in parts for change in part.changes]:
            there = entries.get(change.id)
            if change.old is None:
                if there is not None or change.new is None:
                    return _failed(key, "changed", f"{change.id!r} is there")
                entry = StoredMessage(change.id, change.message, change.new, change.position)
                put.setdefault(change.after, []).append(entry)
                written += 1
            elif there is None or set(there.marks) != set(change.old):
                return _failed(key, "changed", f"{change.id!r} is not there with these marks")
            elif change.new is None:
                del entries[change.id]
                deleted += 1
            else:
                entries[change.id] = there._replace(marks=change.new)
                written += 1
        if not put.keys() <= {None, *entries}:
            return _failed(key, "changed", "the place for a message is not there")
        whole = put.get(None, [])
        for id, entry in entries.items():
            whole += [entry, *put.get(id, [])]
        memories[key] = whole
        self._save(memories)
        return WriteResult(key, written, deleted)

    def _load(self) -> Memories:
        memories: Memories = {}
        try:
            with self._path.open(encoding="utf-8") as file:
                for line in file:
                    record = json.loads(line)
                    memories[MemoryKey(record["user"], record["session"])] = [
                        StoredMessage(id, text.encode(), tuple(marks))
                        for id, marks, text in record["messages"]
                    ]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise memctl.Unavailable(f"{self.label}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise memctl.BadData(f"{self.label} holds no memories: {error}") from error
        return memories

    def _save(self, memories: Memories) -> None:
        try:
            handle, name = tempfile.mkstemp(".tmp", ".memctl-", self._path.parent)
            with open(handle, "w", encoding="utf-8") as file:
                for key, entries in memories.items():
                    messages = [[one.id, one.marks, one.message.decode()] for one in entries]
                    record = {"user": key.user, "session": key.session, "messages": messages}
                    file.write(json.dumps(record) + "\n")
            os.replace(name, self._path)
        except OSError as error:
            raise memctl.Unavailable(f"{self.label}: {error.strerror}") from error


def _identity(path: Path) -> str:
    return f"file:{os.path.realpath(path)}"


def _count(info: MemoryInfo, entry: StoredMessage) -> None:
    message = json.loads(entry.message)
    info.messages += 1
    info.bytes += len(entry.message)
    info.marks = dict(Counter(info.marks) + Counter(entry.marks))
    if isinstance(message.get("role"), str):
        info.roles[message["role"]] = info.roles.get(message["role"], 0) + 1
    if isinstance(time := message.get("timestamp"), str):
        info.first = min(info.first or time, time)
        info.last = max(info.last or time, time)


def _failed(key: MemoryKey, code: str, message: str) -> WriteResult:
    return WriteResult(key, failure=Failure(code, message))


def users(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help="URL, path or alias of a store.")],
) -> None:
    """List who has memories in a store.

    A name on each line, in the order of names.
    """
    for name in asyncio.run(_users(memctl.open_store(context.obj.locate(store)))):
        typer.echo(name)


async def _users(store: memctl.Store) -> list[str]:
    async with store:
        catalogue = await memctl.inspect(store)
    return sorted({info.key.user for info in catalogue.memories})
