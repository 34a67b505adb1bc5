"""The messages of a memory in a JSON document: a ``content`` array, read batch by batch.

The array holds ``[message, [mark, ...]]`` pairs, or bare messages as AgentScope wrote them up to
1.0.11 (``memory/_working_memory/_in_memory_memory.py`` reads both, mixed too).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from memctl import codec
from memctl.json_stream import LARGE, Cursor
from memctl.model import StoredMessage
from memctl.stores.state.batch import Batch

_SPACE = rb"[ \t\n\r]*+"
_TEXT = rb'"(?:[^"\\]++|\\.)*+"' + _SPACE
_PAIR_BEGIN = re.compile(rb"\[" + _SPACE + rb"(?=\{)")
PAIR_END = re.compile(
    rb"\}%b,%b(\[%b(?:%b(?:,%b)?+)*+\])%b\]%b([,\]])%b"
    % (_SPACE, _SPACE, _SPACE, _TEXT, _SPACE, _SPACE, _SPACE, _SPACE),
    re.DOTALL,
)
"""The end of a message, its marks, and what follows the pair."""
PROVEN_BEGIN = re.compile(rb'\[\{"id": "([^"\\]*+)"')
_FIELDS = frozenset({"id", "name", "role", "timestamp"})
_KNOWN_MARKS = 1000


class Content:
    """Reads the array at which a cursor stands, and leaves the cursor behind it.

    A message is found by a guess, the first place that looks like its end; that the text up to
    there is a JSON object proves the guess, for no JSON object is the beginning of another.  Where
    the guess fails, the end is searched for bracket by bracket.

    ``plain`` says that every guess was right, and that every message begins with its id, as
    AgentScope writes it: then the texts need not be parsed to be read once more.  ``keys`` are
    those of the first message.  ``keep`` is false where nobody wants the messages themselves: then
    large ones are not held.
    """

    def __init__(self, cursor: Cursor, *, keep: bool = True) -> None:
        self.plain = True
        self.keys: frozenset[str] | None = None
        self._cursor = cursor
        self._keep = keep
        self._marks: dict[bytes, tuple[str, ...]] = {}
        self._closed = False
        self._place: tuple[int, int] | None = None
        """Where in the document the marks of the last message stand that was searched for."""

    async def batches(self) -> AsyncGenerator[Batch]:
        """The messages in order.

        Raises:
            BadData: an item is not a message, or the document is broken.
        """
        if not await self._begin():
            return
        while not self._closed:
            batch = Batch()
            short = self._guess(batch)
            if not batch.ids:
                if short and await self._grow():
                    continue
                self.plain = False
                await self._search(batch)
            yield batch

    async def entries(self, *, plain: bool) -> AsyncGenerator[list[StoredMessage]]:
        """The messages alone, for a second reading; ``plain`` is what the first one found.

        Raises:
            BadData: see ``batches``.
        """
        if not plain:
            async for batch in self.batches():
                yield batch.entries()
            return
        if not await self._begin():
            return
        while not self._closed:
            entries = self._repeat()
            if not entries:
                if await self._grow():
                    continue
                batch = Batch()
                await self._search(batch)
                entries = batch.entries()
            yield entries

    async def _begin(self) -> bool:
        """Enters the array; whether there is anything in it."""
        cursor = self._cursor
        await cursor.next(b"[")
        if await cursor.peek() == b"]":
            cursor.at += 1
            return False
        return True

    async def _grow(self) -> bool:
        cursor = self._cursor
        return len(cursor.buffer) - cursor.at <= LARGE and await cursor.grow()

    def _guess(self, batch: Batch) -> bool:
        """Adds what the buffer holds in the usual form; whether more bytes may make more of it."""
        cursor = self._cursor
        buffer, at = cursor.buffer, cursor.at
        known = self._marks
        while True:
            proven = PROVEN_BEGIN.match(buffer, at)
            begin = None if proven else _PAIR_BEGIN.match(buffer, at)
            if not (proven or begin):
                break
            start = begin.end() if begin else at + 1
            found = PAIR_END.search(buffer, start + 1)
            if found is None:
                cursor.at = at
                return True
            text = buffer[start : found.start() + 1]
            try:
                value = orjson.loads(text)
                marks = known.get(found[1])
                if marks is None:
                    marks = self._learn(found[1])
            except ValueError:  # the guess was wrong, or the message is: the search will tell
                cursor.at = at
                return False
            name = value.get("id")
            if proven is None or proven[1].decode() != name:
                self.plain = False
                name = _text(name)
            batch.ids.append(name)
            batch.texts.append(text)
            batch.marks.append(marks)
            batch.roles.append(value.get("role"))
            batch.times.append(value.get("timestamp"))
            batch.sizes.append(len(text))
            self.keys = self.keys or frozenset(value)
            at = found.end()
            if found[2] == b"]":
                at = found.end(2)
                self._closed = True
                break
        cursor.at = at
        return len(buffer) - at < 2

    def _repeat(self) -> list[StoredMessage]:
        """What the buffer holds, every guess being known to be right."""
        cursor = self._cursor
        buffer, at = cursor.buffer, cursor.at
        entries = []
        while begin := PROVEN_BEGIN.match(buffer, at):
            found = PAIR_END.search(buffer, begin.end())
            if found is None:
                break
            text = buffer[at + 1 : found.start() + 1]
            marks = self._marks.get(found[1])
            if marks is None:
                marks = self._learn(found[1])
            entries.append(StoredMessage(begin[1].decode(), text, marks))
            at = found.end()
            if found[2] == b"]":
                at = found.end(2)
                self._closed = True
                break
        cursor.at = at
        return entries

    def _learn(self, text: bytes) -> tuple[str, ...]:
        """The marks of a message, which soon come again."""
        marks = _marks(codec.loads(text))
        if b"}" in text:
            self.plain = False  # a guess within a window might find its end there
        if len(self._marks) >= _KNOWN_MARKS:
            self._marks.clear()
        self._marks[text] = marks
        return marks

    async def _search(self, batch: Batch) -> None:
        """Adds the next message, whatever its form and size."""
        await self._item(batch)
        await self._pass()

    async def _pass(self) -> None:
        """Passes over what is behind a message: a comma, or the end of the array."""
        cursor = self._cursor
        self._closed = await cursor.next(b",]") == b"]"
        if not self._closed and await cursor.peek() == b"]":
            raise cursor.bad("a message was expected")

    async def _item(self, batch: Batch) -> None:
        cursor = self._cursor
        marks: tuple[str, ...] = ()
        self._place = None
        match await cursor.peek():
            case b"{":
                await self._message(batch)
            case b"[":
                cursor.at += 1
                await self._message(batch)
                await cursor.next(b",")
                marks = await self._checked_marks()
                await cursor.next(b"]")
            case b"":
                raise cursor.cut_off()
            case _:
                raise cursor.bad("a message, or a pair of a message and its marks, was expected")
        batch.marks.append(marks)

    async def _checked_marks(self) -> tuple[str, ...]:
        cursor = self._cursor
        await cursor.peek()
        start = cursor.position
        text = await cursor.take()
        self._place = start, cursor.position
        try:
            return _marks(None if text is None else cursor.parsed(text))
        except ValueError as error:
            raise cursor.bad("a list of marks was expected", start - cursor.position) from error

    async def _message(self, batch: Batch) -> None:
        cursor = self._cursor
        if await cursor.peek() not in (b"{", b""):
            raise cursor.bad("a message was expected")
        start = cursor.position
        text = await cursor.take()
        if text is not None:
            value = cursor.parsed(text)
            size = len(text)
            message = codec.utf8(text)
        else:
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
        self.keys = self.keys or frozenset(value)
        batch.ids.append(_text(value.get("id")))
        batch.texts.append(message)
        batch.roles.append(value.get("role"))
        batch.times.append(value.get("timestamp"))
        batch.sizes.append(size)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _marks(value: Any) -> tuple[str, ...]:
    """The marks in their order, without repeats.

    Raises:
        ValueError: the value is not a list of texts.
    """
    if isinstance(value, list) and all(isinstance(mark, str) for mark in value):
        return tuple(dict.fromkeys(value))
    raise ValueError("not a list of texts")
