"""Names every difference between two sides of some memories, however large they are.

What must be known of each message is kept in a temporary database of SQLite, which goes to the disk
when it grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextlib import closing as closed
from hashlib import blake2b
from typing import NamedTuple

from memctl.model import MemoryKey
from memctl.ops.fingerprint import Form, content, encode_marks
from memctl.selection import Selection
from memctl.store import Store

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA temp_store = FILE;
CREATE TABLE message (
    memory INTEGER, side INTEGER, place INTEGER, id BLOB, content BLOB, marks BLOB
);
"""
_INDEX = "CREATE INDEX by_memory ON message (memory, side)"
_SIDES = """
WITH one AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY place) AS number
    FROM message WHERE memory = :memory AND side = :side
), other AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY place) AS number
    FROM message WHERE memory = :memory AND side = 1 - :side
)
"""
# One message id may occur several times: its occurrences are compared in their order.
_SHARED = f"""{_SIDES}
SELECT one.id, one.content <> other.content, one.marks, other.marks, other.place
FROM one LEFT JOIN other ON other.id = one.id AND other.number = one.number ORDER BY one.place
"""
_ALONE = f"""{_SIDES}
SELECT one.id FROM one
LEFT JOIN other ON other.id = one.id AND other.number = one.number
WHERE other.id IS NULL ORDER BY one.place
"""
_LEFT, _RIGHT = 0, 1


class Difference(NamedTuple):
    """A difference.  ``code`` is stable; ``id`` names the message, empty for the memory itself."""

    key: MemoryKey
    code: str
    id: str
    message: str


async def differences(
    left: Store, right: Store, where: Selection, keys: list[MemoryKey], *, mark_order: bool
) -> AsyncGenerator[Difference]:
    """Every difference between the messages of some memories.

    Raises:
        MemctlError: as ``Store.read``.
    """
    with closed(sqlite3.connect("", isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        numbers = {key: number for number, key in enumerate(keys)}
        where = where.only(frozenset(keys))
        for side, store in ((_LEFT, left), (_RIGHT, right)):
            await _note(database, store, where, numbers, side, mark_order=mark_order)
        database.execute(_INDEX)
        for key, number in numbers.items():
            for difference in _of_memory(database, key, number, left.label, right.label):
                yield difference


async def _note(
    database: sqlite3.Connection,
    store: Store,
    where: Selection,
    numbers: dict[MemoryKey, int],
    side: int,
    *,
    mark_order: bool,
) -> None:
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            number = numbers[page.memory.key]
            rows = [
                (
                    *(number, side, place),
                    entry.id.encode("utf-8", "surrogatepass"),
                    blake2b(content(entry, Form.VALUE), digest_size=16).digest(),
                    encode_marks(entry, mark_order=mark_order),
                )
                for place, entry in enumerate(page.messages, page.offset)
            ]
            database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)", rows)


def _of_memory(
    database: sqlite3.Connection, key: MemoryKey, number: int, left: str, right: str
) -> Iterator[Difference]:
    before: tuple[str, int] | None = None
    values = {"memory": number, "side": _LEFT}
    for id, other_content, marks, other_marks, place in database.execute(_SHARED, values):
        name = _text(id)
        if place is None:
            yield Difference(key, "message-missing", name, f"only in {left}")
            continue
        if other_content:
            yield Difference(key, "content", name, "the content differs")
        if marks != other_marks:
            text = f"marks {_mark_names(marks)} and {_mark_names(other_marks)}"
            yield Difference(key, "marks", name, text)
        if before and before[1] > place:
            text = f"it comes after {before[0]!r} in one store and before it in the other"
            yield Difference(key, "order", name, text)
        before = name, place
    for (id,) in database.execute(_ALONE, {"memory": number, "side": _RIGHT}):
        yield Difference(key, "message-extra", _text(id), f"only in {right}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _mark_names(marks: bytes) -> str:
    return ", ".join(repr(name) for name in _text(marks).split("\0")) if marks else "none"
