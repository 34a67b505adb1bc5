"""Memories whose messages are rows of a table: an index of them, and changes of many rows.

The primary keys of such tables begin with the message or the session, never with the place of a
message in its memory.  So a table is read once from end to end, and its rows wait in a temporary
file until they are in order.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Self

import orjson

from memctl.engines.tablestore.service import (
    CONDITION_FAILED,
    RowChange,
    RowFailure,
    TablestoreInstance,
)
from memctl.errors import Failure, MemctlError, Unavailable
from memctl.model import MemoryKey, StoredMessage

_ROWS = 500
_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE found (
    user BLOB, session BLOB, part BLOB, place BLOB, name BLOB,
    id BLOB, marks BLOB, raw BLOB, stamp BLOB, damage BLOB, shape BLOB, message BLOB
);
"""
_ORDER = "CREATE INDEX ordered ON found (user, session, part, place, name)"
_SELECT = """
SELECT {columns} FROM found WHERE user = ? AND session = ? AND part = ? ORDER BY place, name
"""


class IndexedRow(NamedTuple):
    """A row that holds a message.

    ``place`` is the column that orders the messages of a memory, ``name`` the part of the primary
    key that orders those of one place.  ``raw`` is the text of its marks as stored, "" where it has
    none.  ``stamp`` changes when the row is written.  ``damage`` says how it is damaged; then there
    is no message in it.
    """

    key: MemoryKey
    place: str
    name: str
    id: str
    marks: tuple[str, ...] = ()
    raw: str = ""
    stamp: str = ""
    damage: str = ""
    shape: str = ""
    message: bytes = b""

    def stored(self) -> StoredMessage:
        """Return the message in it."""
        return StoredMessage(self.id, self.message, self.marks, None, self.shape)


class RowIndex:
    """Rows in the order of their memories, in a temporary file that has no name."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._rows: list[tuple[bytes, ...]] = []
        self._ordered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, row: IndexedRow) -> None:
        """Take a row."""
        marks = orjson.dumps(row.marks) if row.marks else b""
        texts = (*row.key, row.place, row.name, row.id)
        others = (row.raw, row.stamp, row.damage, row.shape)
        self._rows.append((*map(_encoded, texts), marks, *map(_encoded, others), row.message))
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        self._database.executemany(f"INSERT INTO found VALUES ({', '.join('?' * 12)})", self._rows)
        self._rows.clear()

    def _order(self) -> None:
        self._flush()
        if not self._ordered:
            self._database.execute(_ORDER)
            self._ordered = True

    def memories(self) -> list[MemoryKey]:
        """Return the names of the memories, in order."""
        self._order()
        rows = self._database.execute(
            "SELECT DISTINCT user, session, part FROM found ORDER BY 1, 2, 3"
        )
        return [MemoryKey(*map(_decoded, row)) for row in rows]

    def rows(self, key: MemoryKey) -> Iterator[IndexedRow]:
        """Yield the rows of a memory, in order; the index may change only when all are out."""
        self._order()
        select = _SELECT.format(
            columns="place, name, id, marks, raw, stamp, damage, shape, message"
        )
        for row in self._database.execute(select, tuple(map(_encoded, key))):
            place, name, id = map(_decoded, row[:3])
            marks = tuple(orjson.loads(row[3])) if row[3] else ()
            raw, stamp, damage, shape = map(_decoded, row[4:8])
            yield IndexedRow(key, place, name, id, marks, raw, stamp, damage, shape, row[8])

    def damage(self, key: MemoryKey) -> list[tuple[str, str]]:
        """Return the names of the damaged rows of a memory, and what is wrong with each."""
        self._order()
        select = (
            "SELECT name, damage FROM found WHERE user = ? AND session = ? AND part = ? "
            "AND damage != x'' ORDER BY place, name"
        )
        return [
            (_decoded(name), _decoded(damage))
            for name, damage in self._database.execute(select, tuple(map(_encoded, key)))
        ]

    def version(self, key: MemoryKey) -> str:
        """Return a text that changes with the rows of a memory."""
        self._order()
        digest = blake2b(digest_size=16)
        select = _SELECT.format(columns="place, name, raw, stamp")
        for row in self._database.execute(select, tuple(map(_encoded, key))):
            for value in row:
                digest.update(b"%d:" % len(value) + value)
        return digest.hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


@dataclass(slots=True)
class MemoryChange:
    """The changes of the rows of one memory, and what takes each of them back."""

    changes: list[RowChange] = field(default_factory=list)
    reverses: list[RowChange] = field(default_factory=list)

    def add(self, change: RowChange, reverse: RowChange) -> None:
        """Take a change."""
        self.changes.append(change)
        self.reverses.append(reverse)


async def change_memories(
    instance: TablestoreInstance, table: str, key: Sequence[str], memories: Sequence[MemoryChange]
) -> list[Failure | None]:
    """Change the rows of memories together; return why each failed, in their order.

    The service has no transactions over rows.  A memory of which a row cannot be changed gets its
    others back, so that it is as it was unless this program is killed in between.  A cancellation
    waits until that is so.

    Raises:
        NotFound, Unavailable: as ``TablestoreInstance.change``; what was done is taken back as far
            as the service can be reached.
    """
    task = asyncio.ensure_future(_change_memories(instance, table, key, memories))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task])
        raise


async def _change_memories(
    instance: TablestoreInstance, table: str, key: Sequence[str], memories: Sequence[MemoryChange]
) -> list[Failure | None]:
    changes = [change for memory in memories for change in memory.changes]
    outcomes: list[RowFailure | None] = []
    try:
        await instance.change(table, key, changes, outcomes)
    except Unavailable:
        reverses = [reverse for memory in memories for reverse in memory.reverses]
        done = zip(reverses, outcomes, strict=False)
        with suppress(MemctlError):  # that the service went away is what matters
            back = [reverse for reverse, outcome in done if outcome is None][::-1]
            await instance.change(table, key, back, [])
        raise
    failures: list[Failure | None] = []
    back = []
    start = 0
    for memory in memories:
        own = outcomes[start : start + len(memory.changes)]
        start += len(memory.changes)
        failed = next((one for one in own if one is not None), None)
        failures.append(None if failed is None else _failure(failed))
        if failed is not None:
            done = zip(memory.reverses, own, strict=True)
            back += [reverse for reverse, outcome in done if outcome is None][::-1]
    if back:
        await instance.change(table, key, back, [])
    return failures


def _failure(failed: RowFailure) -> Failure:
    if failed.code == CONDITION_FAILED:
        return Failure("changed", "another program has changed it meanwhile")
    return Failure("refused", f"Tablestore refuses a row: {failed.message.rstrip('.')}")
