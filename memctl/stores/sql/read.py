"""Reading AgentScope's SQL memory: one ordered statement, cut into pages of memories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import codec
from memctl.errors import BadData
from memctl.model import Entry, Memory, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import PAGE_BYTES, PAGE_ENTRIES
from memctl.stores.sql.database import SqlDatabase
from memctl.streams import closing


class SqlReader:
    """One pass over a store: at least what is selected."""

    def __init__(self, store: SqlDatabase, where: Selection) -> None:
        self._store = store
        self._where = where

    async def pages(self) -> AsyncIterator[Page]:
        """Pages of the memories, those without messages at the end."""
        store, where = self._store, self._where
        seen: set[MemoryKey] = set()
        async with store.snapshot() as connection, store.aside(connection) as aside:
            async with closing(self._with_messages(connection, aside)) as pages:
                async for page in pages:
                    seen.add(page.memory.key)
                    yield page
            if where.whole:
                async with closing(store.sessions(connection)) as keys:
                    async for key in keys:
                        if key not in seen and where.has_key(key):
                            yield Page(Memory(key), [])

    async def _with_messages(
        self, connection: AsyncConnection, aside: AsyncConnection
    ) -> AsyncIterator[Page]:
        """Pages of the memories that have messages.

        The newest message always waits: only the next row tells whether it closes its memory.
        """
        condition, values = self._store.conditions(self._where)
        statement = self._store.ordered(condition)
        cutter: _Cutter | None = None
        async with closing(self._store.rows(connection, statement, values)) as partitions:
            async for rows in partitions:
                for row in rows:
                    key = MemoryKey(row[0], row[1])
                    if cutter is None or key != cutter.key:
                        if cutter and cutter.entries:
                            yield cutter.last()
                        cutter = _Cutter(key)
                    elif cutter.full:
                        yield cutter.next()
                    if self._where.has_key(key):
                        entry = await self._entry(aside, key, row)
                        if entry:
                            cutter.add(entry)
        if cutter and cutter.entries:
            yield cutter.last()

    async def _entry(self, aside: AsyncConnection, key: MemoryKey, row: Any) -> Entry | None:
        """A row as an entry; None where a large message was deleted while it was asked for."""
        _, _, row_id, index, payload, marks = row
        if payload is None:
            payload = await self._store.fetch(aside, row_id)
            if not payload:
                return None
        if isinstance(payload, str):
            payload = payload.encode("utf-8", "surrogatepass")
        message = codec.utf8(payload)
        start = f"{key.user}-{key.session}-"
        name = row_id.removeprefix(start) if row_id.startswith(start) else self._id(message, row_id)
        labels = tuple(sorted(orjson.loads(marks))) if marks else ()
        return Entry(name, message, labels, index)

    def _id(self, message: bytes, row_id: str) -> str:
        try:
            return codec.field(message, "id") or row_id
        except ValueError as error:
            label = self._store.label
            raise BadData(f"{label}: the message {row_id!r} is not JSON: {error}") from error


class _Cutter:
    """Cuts the messages of one memory into pages."""

    def __init__(self, key: MemoryKey) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self._offset = 0
        self._size = 0

    def add(self, entry: Entry) -> None:
        """The memory goes on."""
        self.entries.append(entry)
        self._size += len(entry.message)

    @property
    def full(self) -> bool:
        """Whether a page is ready once the memory is known to go on."""
        return self._size >= PAGE_BYTES or len(self.entries) >= PAGE_ENTRIES

    def next(self) -> Page:
        """The page that is ready."""
        page = Page(Memory(self.key), self.entries, self._offset, last=False)
        self._offset += len(self.entries)
        self.entries, self._size = [], 0
        return page

    def last(self) -> Page:
        """The end of the memory."""
        return Page(Memory(self.key), self.entries, self._offset, last=True)
