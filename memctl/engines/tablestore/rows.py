"""Memories whose messages are rows of a table: an index of the rows, and changes of many rows.

The primary keys of these tables begin with the message or the session, never with the position of
a message.  So a table is read once from end to end, and a temporary file puts the rows in order.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, Self

import orjson
from msgspec import Struct, field

from memctl.engines.tablestore.service import (
    CONDITION_FAILED,
    Columns,
    Delete,
    Key,
    Put,
    RowChange,
    RowFailure,
    TablestoreInstance,
)
from memctl.errors import Failure, MemctlError, Unavailable
from memctl.location import visible
from memctl.model import MemoryKey, StoredMessage
from memctl.storekit.facts import decoded, encoded

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
    """A table row with a message of a memory.

    ``place`` is the value that orders the messages of a memory.  ``name`` is the part of the
    primary key that orders messages of the same place.  ``raw`` is the stored text of the marks,
    or "".  ``stamp`` changes when the row is written.  ``damage`` describes damage, or is empty; a
    damaged row has no message.
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
        """Return the row's message, with its id and marks."""
        return StoredMessage(self.id, self.message, self.marks, None, self.shape)


class RowIndex:
    """Orders the rows of a table by memory and message, in an unnamed temporary file."""

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
        """Add a row, in any order."""
        marks = orjson.dumps(row.marks) if row.marks else b""
        texts = (*row.key, row.place, row.name, row.id)
        others = (row.raw, row.stamp, row.damage, row.shape)
        self._rows.append((*map(encoded, texts), marks, *map(encoded, others), row.message))
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
        """Return the keys of all memories with rows, in the order of user, session and part."""
        self._order()
        rows = self._database.execute(
            "SELECT DISTINCT user, session, part FROM found ORDER BY 1, 2, 3"
        )
        return [MemoryKey(*map(decoded, row)) for row in rows]

    def rows(self, key: MemoryKey) -> Iterator[IndexedRow]:
        """Yield the rows of a memory in message order; add no rows during the iteration."""
        self._order()
        select = _SELECT.format(
            columns="place, name, id, marks, raw, stamp, damage, shape, message"
        )
        for row in self._database.execute(select, tuple(map(encoded, key))):
            place, name, id = map(decoded, row[:3])
            marks = tuple(orjson.loads(row[3])) if row[3] else ()
            raw, stamp, damage, shape = map(decoded, row[4:8])
            yield IndexedRow(key, place, name, id, marks, raw, stamp, damage, shape, row[8])

    def damage(self, key: MemoryKey) -> list[tuple[str, str]]:
        """Return the name of each damaged row of a memory, and a text about the row's damage."""
        self._order()
        select = (
            "SELECT name, damage FROM found WHERE user = ? AND session = ? AND part = ? "
            "AND damage != x'' ORDER BY place, name"
        )
        return [
            (decoded(name), decoded(damage))
            for name, damage in self._database.execute(select, tuple(map(encoded, key)))
        ]

    def version(self, key: MemoryKey) -> str:
        """Return a hash of a memory's rows, which differs after any change of the memory."""
        self._order()
        digest = blake2b(digest_size=16)
        select = _SELECT.format(columns="place, name, raw, stamp")
        for row in self._database.execute(select, tuple(map(encoded, key))):
            for value in row:
                digest.update(b"%d:" % len(value) + value)
        return digest.hexdigest()


class MemoryChange(Struct):
    """The row changes of one memory; ``reverses`` has, in order, the reverse of each change."""

    changes: list[RowChange] = field(default_factory=list)
    reverses: list[RowChange] = field(default_factory=list)

    def add(self, change: RowChange, reverse: RowChange) -> None:
        """Add a row change, and the row change that undoes it."""
        self.changes.append(change)
        self.reverses.append(reverse)


async def change_memories(
    instance: TablestoreInstance, table: str, key: Sequence[str], memories: Sequence[MemoryChange]
) -> list[Failure | None]:
    """Change the rows of several memories; return None or the failure for each memory, in order.

    ``key`` names the columns of the table's primary key.  Tablestore has no transactions over
    several rows.  Therefore, if a row of a memory cannot be changed, the memory's changed rows are
    restored, unless the program is killed before.  A cancelled task waits for the restoration.

    Raises:
        NotFound, Unavailable: as ``TablestoreInstance.change``.  Changed rows are restored if the
            service can be reached.
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
        with suppress(MemctlError):  # the first error is the one to report
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


class MovedRow(NamedTuple):
    """A row that gets another key: ``old`` with its columns becomes ``new``.

    ``where`` are columns, with their values, that change if another program writes to the row.
    """

    old: Key
    columns: Columns
    where: Columns
    new: Key
    new_columns: Columns


async def move_rows(
    instance: TablestoreInstance, table: str, key: Sequence[str], rows: Sequence[MovedRow]
) -> Failure | None:
    """Give rows other keys, all or none; return None, or why not.

    All new rows are written before an old row is removed.  If the program is killed meanwhile, the
    same call does the rest.

    Raises:
        NotFound, Unavailable: as ``change_memories``.  Rows may be there with both keys.
    """
    named = [list(zip(key, row.new, strict=True)) for row in rows]
    there = await instance.get(table, named)
    added, removed, back = MemoryChange(), MemoryChange(), MemoryChange()
    for row, other in zip(rows, there, strict=True):
        if other is None:
            added.add(Put(row.new, row.new_columns), Delete(row.new))
        elif other.columns != row.new_columns:
            name = ", ".join(map(visible, map(str, row.new)))
            return Failure("conflict", f"there is another row {name}")
        removed.add(Delete(row.old, row.where), Put(row.old, row.columns, new=False))
        back.add(Delete(row.new), Put(row.new, row.new_columns, new=False))
    [failure] = await change_memories(instance, table, key, [added])
    if failure is None:
        [failure] = await change_memories(instance, table, key, [removed])
        if failure is not None:
            await change_memories(instance, table, key, [back])
    return failure


def _failure(failed: RowFailure) -> Failure:
    if failed.code == CONDITION_FAILED:
        return Failure("changed", "another program has changed it meanwhile")
    return Failure("refused", f"Tablestore refuses a row: {failed.message.rstrip('.')}")
