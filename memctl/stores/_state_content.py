"""The messages of a memory in a JSON document: a ``content`` array, read batch by batch.

The array holds ``[message, [mark, ...]]`` pairs, or bare messages as AgentScope wrote them up to
1.0.11 (``memory/_working_memory/_in_memory_memory.py`` reads both, mixed too).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from memctl import codec
from memctl.json_stream import LARGE, Cursor
from memctl.model import Entry, MemoryInfo, MemoryKey

_SPACE = rb"[ \t\n\r]*+"
_TEXT = rb'"(?:[^"\\]++|\\.)*+"' + _SPACE
_PAIR_BEGIN = re.compile(rb"\[" + _SPACE + rb"\{", re.DOTALL)
_PAIR_END = re.compile(
    rb"\}%b,%b(\[%b(?:%b(?:,%b)?+)*+\])%b\]%b([,\]])%b"
    % (_SPACE, _SPACE, _SPACE, _TEXT, _SPACE, _SPACE, _SPACE, _SPACE),
    re.DOTALL,
)
"""The end of a message, its marks, and what follows the pair."""
_ID_FIRST = re.compile(rb'\{"id": ?"([^"\\]*+)"')
_FIELDS = frozenset({"id", "name", "role", "timestamp"})
_KNOWN_MARKS = 1000


class Item(NamedTuple):
    """One message as found; ``value`` has at least its id, name, role and timestamp.

    ``size`` is its length in the document, which ``entry.message`` lacks where it was not wanted.
    """

    entry: Entry
    value: dict[str, Any]
    size: int


class Content:
    """Reads the array at which a cursor stands, and leaves the cursor behind it.

    A message is found by a guess, the first place that looks like its end; that the text up to
    there is a JSON object proves the guess, for no JSON object is the beginning of another.  Where
    the guess fails, the end is searched for bracket by bracket.

    ``proven`` says that an earlier reading of the same bytes was ``plain``: every guess was right,
    so that the texts need not be parsed again.  ``keep`` is false where nobody wants the messages
    themselves: then large ones are not held.
    """

    def __init__(self, cursor: Cursor, *, proven: bool = False, keep: bool = True) -> None:
        self.plain = True
        self._cursor = cursor
        self._proven = proven
        self._keep = keep
        self._marks: dict[bytes, tuple[str, ...]] = {}
        self._closed = False

    async def batches(self) -> AsyncIterator[list[Item]]:
        """The messages in order.  A batch is the caller's, to be cleared when it is done with.

        Raises:
            BadData: an item is not a message, or the document is broken.
        """
        cursor = self._cursor
        await cursor.next(b"[")
        if await cursor.peek() == b"]":
            cursor.at += 1
            return
        while not self._closed:
            batch: list[Item] = []
            short = self._guess(batch)
            if batch:
                yield batch
            elif not (short and len(cursor.buffer) - cursor.at <= LARGE and await cursor.grow()):
                self.plain = False
                yield [await self._search()]

    def _guess(self, batch: list[Item]) -> bool:
        """Adds what the buffer holds in the usual form; whether more bytes may make more of it."""
        cursor = self._cursor
        buffer, at = cursor.buffer, cursor.at
        item = self._proven_item if self._proven else self._parsed_item
        short = True
        while begin := _PAIR_BEGIN.match(buffer, at):
            start = begin.end() - 1
            found = _PAIR_END.search(buffer, start + 1)
            if found is None:
                break
            message = buffer[start : found.start() + 1]
            try:
                batch.append(item(message, self._known_marks(found[1])))
            except ValueError:  # the guess was wrong, or the message is: the search will tell
                short = False
                break
            at = found.end()
            if found[2] == b"]":
                self._closed = True
                break
        else:
            short = len(buffer) - at < 2
        cursor.at = at
        return short

    def _parsed_item(self, message: bytes, marks: tuple[str, ...]) -> Item:
        value = orjson.loads(message)
        return Item(Entry(_id(value), message, marks), value, len(message))

    def _proven_item(self, message: bytes, marks: tuple[str, ...]) -> Item:
        first = _ID_FIRST.match(message)
        # A second key of that name would be the one that counts, however it is written.
        if first is None or message.count(b'"id"') > 1 or b"\\u006" in message:
            return self._parsed_item(message, marks)
        return Item(Entry(first[1].decode(), message, marks), {}, len(message))

    def _known_marks(self, text: bytes) -> tuple[str, ...]:
        marks = self._marks.get(text)
        if marks is None:
            marks = _marks(codec.loads(text))
            if b"}" in text:
                self.plain = False  # a guess within a window might find its end there
            if len(self._marks) >= _KNOWN_MARKS:
                self._marks.clear()
            self._marks[text] = marks
        return marks

    async def _search(self) -> Item:
        """The next message, whatever its form and size."""
        cursor = self._cursor
        marks: tuple[str, ...] = ()
        match await cursor.peek():
            case b"{":
                item = await self._message(marks)
            case b"[":
                cursor.at += 1
                item = await self._message(marks)
                await cursor.next(b",")
                marks = await self._checked_marks()
                await cursor.next(b"]")
            case b"":
                raise cursor.cut_off()
            case _:
                raise cursor.bad("a message, or a pair of a message and its marks, was expected")
        self._closed = await cursor.next(b",]") == b"]"
        if not self._closed and await cursor.peek() == b"]":
            raise cursor.bad("a message was expected")
        return item._replace(entry=item.entry._replace(marks=marks))

    async def _checked_marks(self) -> tuple[str, ...]:
        cursor = self._cursor
        await cursor.peek()
        start = cursor.position
        text = await cursor.take()
        try:
            return _marks(None if text is None else cursor.parsed(text))
        except ValueError as error:
            raise cursor.bad("a list of marks was expected", start - cursor.position) from error

    async def _message(self, marks: tuple[str, ...]) -> Item:
        cursor = self._cursor
        if await cursor.peek() not in (b"{", b""):
            raise cursor.bad("a message was expected")
        start = cursor.position
        text = await cursor.take()
        if text is not None:
            value = cursor.parsed(text)
            return Item(Entry(_id(value), codec.utf8(text), marks), value, len(text))
        value = {}
        async for key in cursor.members():
            field = await cursor.take() if key in _FIELDS else None
            if field is None:
                await cursor.skip()
            else:
                value[key] = cursor.parsed(field)
        size = cursor.position - start
        message = b""
        if self._keep:
            message = codec.utf8(await cursor.source.read_at(start, size))
        return Item(Entry(_id(value), message, marks), value, size)


class Counter:
    """Counts messages for the catalogue."""

    def __init__(self) -> None:
        self._info = MemoryInfo(MemoryKey("", ""))
        self._ids = array("q")

    @property
    def messages(self) -> int:
        """How many were counted."""
        return self._info.messages

    def add(self, batch: list[Item]) -> None:
        """Counts the messages of a batch."""
        info = self._info
        marks, roles = info.marks, info.roles
        first, last = info.first, info.last
        ids = self._ids
        info.messages += len(batch)
        for entry, value, size in batch:
            info.bytes += size
            # The hashes of a million ids take 8 MB, the ids themselves 70.
            ids.append(hash(entry.id))
            for mark in entry.marks:
                marks[mark] = marks.get(mark, 0) + 1
            role, timestamp = value.get("role"), value.get("timestamp")
            if isinstance(role, str):
                roles[role] = roles.get(role, 0) + 1
            if isinstance(timestamp, str):
                first = timestamp if first is None or timestamp < first else first
                last = timestamp if last is None or timestamp > last else last
        info.first, info.last = first, last

    def info(self) -> MemoryInfo:
        """The counts; key, summary and expiry are the caller's to fill in."""
        self._info.repeated = sum(one == other for one, other in pairwise(sorted(self._ids)))
        self._ids = array("q")
        return self._info


def _id(value: dict[str, Any]) -> str:
    found = value.get("id")
    return found if isinstance(found, str) else ""


def _marks(value: Any) -> tuple[str, ...]:
    """The marks in their order, without repeats.

    Raises:
        ValueError: the value is not a list of texts.
    """
    if isinstance(value, list) and all(isinstance(mark, str) for mark in value):
        return tuple(dict.fromkeys(value))
    raise ValueError("not a list of texts")
