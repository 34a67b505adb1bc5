"""The order of rows in a mapped table: the positions of new rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, time
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple

from memctl.engines.sql.columns import FarTime, after, rank_of
from memctl.layouts.sql import of_shape
from memctl.location import visible
from memctl.model import (
    MemoryKey,
    StoredMessage,
)
from memctl.storekit.edits import (
    Drop,
    Keep,
    Mark,
    Put,
    Step,
)
from memctl.stores.tables.codec import ROWID, Ordering, Refusal, RowCodec

_LARGEST_NUMBER = 2**63 - 1


class _Item(NamedTuple):
    """A message at or after the first inserted message of a memory.

    ``order`` has the values that order the row of the message; empty for an inserted message.
    """

    entry: StoredMessage
    key: tuple[Any, ...] | None
    """The primary key of the message's row; None for an inserted message."""
    order: tuple[Any, ...]


class Placing:
    """The rows that an edit of a memory deletes and inserts.

    An inserted message whose ``shape`` has the primary key of its former row gets this row again,
    if the key is free and the row sorts in its place.  If not, the message gets a new row after the
    last row, as in the framework, and so do all later messages of the memory.
    """

    def __init__(self, codec: RowCodec, key: MemoryKey) -> None:
        self.dropped: list[tuple[Any, ...]] = []
        """The primary keys of the rows to delete."""
        self.put: list[StoredMessage] = []
        """The messages to insert; a message without a shape gets a new row at the end."""
        self._codec = codec
        self._key = key
        self._items: list[_Item] = []
        self._last: tuple[Any, ...] = ()

    def take(
        self, steps: Iterable[Step], entries: Sequence[StoredMessage], rows: Sequence[Any]
    ) -> None:
        """Add steps of the edit.

        The indexes in ``steps`` are indexes of ``entries``, some messages of the memory, and of
        ``rows``, their rows.
        """
        for step in steps:
            match step:
                case Drop(at):
                    self.dropped.append(self._codec.row_key(rows[at]))
                case Put(entry):
                    self._items.append(_Item(entry, None, ()))
                case Mark(at, marks):
                    if marks:
                        raise Refusal("the messages of a table have no marks")
                    self._keep(entries, rows, range(at, at + 1))
                case Keep(start, stop):
                    self._keep(entries, rows, range(start, stop))

    def _keep(self, entries: Sequence[StoredMessage], rows: Sequence[Any], which: range) -> None:
        for at in which:
            order = self._codec.row_order(rows[at])
            if self._items:
                key = self._codec.row_key(rows[at])
                self._items.append(_Item(entries[at], key, order))
            else:
                self._last = order

    def keys(self) -> set[tuple[Any, ...]]:
        """Return the primary keys of the former rows of inserted messages."""
        found = (self._codec.shape_key(item.entry) for item in self._items if item.key is None)
        return {key for key in found if key is not None}

    def rowids(self) -> set[int]:
        """Return the rowids of the former rows of inserted messages."""
        found = (self._codec.shape_rowid(item.entry) for item in self._items if item.key is None)
        return {number for number in found if number is not None}

    def settle(self, taken: set[tuple[Any, ...]], free: frozenset[int]) -> None:
        """Decide which rows to delete and which messages to insert.

        ``taken`` has the keys from ``keys`` that other rows have now.  ``free`` has the numbers
        from ``rowids`` that no row has now.

        Raises:
            Refusal: the table cannot hold a message.
        """
        moving = False
        for entry, key, order in self._items:
            if key is None:
                wanted = self._codec.shape_key(entry)
                if wanted is None or wanted in taken:
                    moving = True
                else:
                    row = self._codec.row(self._key, entry)
                    if (number := self._codec.shape_rowid(entry)) in free:
                        row[ROWID] = number
                    order = self._codec.order_of(row)
            moving = moving or not self._follows(order)
            if moving:
                if key is not None:
                    self.dropped.append(key)
                self.put.append(entry._replace(shape=""))
                continue
            self._last = order
            if key is None:
                self.put.append(entry)

    def _follows(self, order: tuple[Any, ...]) -> bool:
        if not self._last or not self._codec.is_comparable:
            return True
        last, now = [*map(_ranked, self._last)], [*map(_ranked, order)]
        # In the OpenAI Agents SDK, SQLiteSession sorts by id, SQLAlchemySession by time.
        by_id = self._codec.mapping.name == "openai-agents"
        return last < now and (not by_id or last[-1] < now[-1])

    @property
    def latest(self) -> dict[MemoryKey, Any]:
        """The number or time that orders the last message that keeps its place, by memory.

        Empty if no message keeps its place.
        """
        return {self._key: self._last[0]} if self._last else {}


class RowOrder:
    """New rows in the order in which messages are added.

    The numbers or times of the rows keep this order.
    """

    def __init__(self, codec: RowCodec, latest: dict[MemoryKey, Any] | None = None) -> None:
        self._codec = codec
        self._rows: list[dict[str, Any]] = []
        self.latest = latest or {}
        """The number or time of the last message of each memory, if it orders the messages."""
        self.numbered = False
        """True if an added row brings its primary key although the database generates keys."""
        self.shifted = 0
        self.untimed = 0

    def add(
        self,
        key: MemoryKey,
        entries: Sequence[StoredMessage],
        free: frozenset[int] = frozenset(),
    ) -> None:
        """Add a new row for each message, or no row if the table cannot hold a message.

        A restored message gets its former rowid if ``free`` has this rowid.

        Raises:
            Refusal: the table cannot hold a message.
        """
        codec = self._codec
        rows = [codec.row(key, entry) for entry in entries]
        for row, entry in zip(rows, entries, strict=True) if free else ():
            if (number := codec.shape_rowid(entry)) in free:
                row[ROWID] = number
        names = codec.columns.key
        self.numbered |= codec.columns.is_serial and any(names[0] in row for row in rows)
        if codec.ordering is not Ordering.SERIAL:
            self._put_in_order(key, rows, entries)
        self._rows += rows

    def _put_in_order(
        self, key: MemoryKey, rows: list[dict[str, Any]], entries: Sequence[StoredMessage]
    ) -> None:
        """Set the numbers of new rows, or replace times that are out of order.

        A restored message keeps its number or time.
        """
        codec = self._codec
        column, ordering = codec.columns.order[0], codec.ordering
        last = self.latest.get(key)
        for row, entry in zip(rows, entries, strict=True):
            if "row" not in of_shape(entry.shape):
                if ordering is Ordering.NUMBER:
                    row[column] = _next(last)
                elif column not in row:
                    continue
                elif last is not None and (at := _ranked(row[column])) <= (end := _ranked(last)):
                    if ordering is Ordering.INSTANT:
                        row[column] = _after(last)
                    elif at < end:
                        untimed = row[column] == codec.no_time
                        row[column] = last
                        self.untimed += untimed and not codec.holds_notes
                        self.shifted += not untimed
            last = row.get(column, last)
        if last is not None:
            self.latest[key] = last

    def take(self) -> list[tuple[list[str], list[tuple[Any, ...]]]]:
        """Return the new rows, and forget them.

        The result has pairs of column names and the values of consecutive rows with these columns.
        """
        rows, self._rows = self._rows, []
        names: Callable[[dict[str, Any]], list[str]] = list
        return [
            (columns, [tuple(row.values()) for row in some])
            for columns, some in groupby(rows, names)
        ]


def _ranked(value: Any) -> tuple[int, Any]:
    match value:
        case date() | time() | FarTime():
            return 2, rank_of(value)
        case None:
            return 0, None
        case int() | float() | Decimal():
            return 1, value
        case bytes():
            return 3, value
        case _:
            return 2, value


def _after(moment: Any) -> Any:
    try:
        return after(moment)
    except (ValueError, TypeError, OverflowError) as error:
        text = f"the newest message there has {visible(str(moment)[:50])!r} as its time"
        raise Refusal(text) from error


def _next(number: Any) -> Any:
    """Return the number after ``number``; 0 for None.

    Raises:
        Refusal: ``number`` is not a number, or is the largest number.
    """
    if number is None:
        return 0
    if not isinstance(number, int | float | Decimal) or number >= _LARGEST_NUMBER:
        text = f"no number follows the one of the last message there, {visible(str(number)[:50])!r}"
        raise Refusal(text)
    return number + 1
