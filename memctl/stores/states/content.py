"""The messages of a memory in a JSON document: a ``content`` array, read batch by batch.

The array holds ``[message, [mark, ...]]`` pairs, or bare messages as AgentScope wrote them up to
1.0.11 (``memory/_working_memory/_in_memory_memory.py`` reads both, mixed too).
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import orjson

from memctl import jsonio
from memctl.dialects.agentscope import ID, NAME, ROLE
from memctl.dialects.agentscope1 import TIMESTAMP
from memctl.errors import BadData
from memctl.json_stream import LARGE, Cursor
from memctl.model import MemoryInfo, MemoryKey, StoredMessage
from memctl.storekit.quarantine import ItemScan

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
_FIELDS = frozenset({ID, NAME, ROLE, TIMESTAMP})
AUTHOR = frozenset({ROLE, NAME})
"""The keys by which the first message tells that a list is one of messages."""
_KNOWN_MARKS = 1000

BARE = "bare"
"""The shape of a message without a list of marks."""


def marks_of_shape(shape: str, marks: tuple[str, ...]) -> bytes | None:
    """Return the list of marks as it was, where a mark stands in it twice; None for a usual one."""
    try:
        found = jsonio.loads(shape.encode()) if shape.startswith("[") else None
        return shape.encode() if found is not None and _marks(found) == marks else None
    except ValueError:  # another store's shape
        return None


class Content:
    """A reader of the array at a cursor, which it leaves after the array.

    A message is found by a guess, the first place that looks like its end; that the text up to
    there is a JSON object proves the guess, for no JSON object is the beginning of another.  Where
    the guess fails, the end is searched for bracket by bracket.

    ``plain`` says that every guess was right, and that every message begins with its id, as
    AgentScope writes it: then the texts need not be parsed to be read once more.  ``keys`` are
    those of the first message; ``authored`` says that every message has the keys of ``AUTHOR``.
    ``keep`` is false where nobody wants the messages themselves: then large ones are not held.
    """

    def __init__(self, cursor: Cursor, *, keep: bool = True) -> None:
        self.plain = True
        self.keys: frozenset[str] | None = None
        self.authored = True
        self._cursor = cursor
        self._keep = keep
        self._marks: dict[bytes, tuple[str, ...]] = {}
        self._repeats: dict[bytes, str] = {}
        """The shapes of lists in which a mark stands twice."""
        self._message_end = 0
        self._closed = False
        self._place: tuple[int, int] | None = None
        """The position in the document of the marks of the last message that was searched for."""

    async def batches(self) -> AsyncGenerator[MessageColumns]:
        """The messages in order.

        Raises:
            BadData: an item is not a message, or the document is broken.
        """
        if not await self._begin():
            return
        while not self._closed:
            batch = MessageColumns()
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
                batch = MessageColumns()
                await self._search(batch)
                entries = batch.entries()
            yield entries

    async def scan(self) -> ItemScan:
        """Pass over all items, sound or damaged, and return where they are.

        Raises:
            BadData: it cannot be told where an item ends.
        """
        scan = ItemScan()
        async for _ in self._cursor.items():
            await self._cursor.peek()
            start = self._cursor.position
            is_sound = await self._is_sound(start)
            scan.take(start, self._cursor.position, is_sound=is_sound)
        return scan.finish()

    async def _is_sound(self, start: int) -> bool:
        """Pass over an item; return whether it is a message."""
        try:
            await self._item(MessageColumns())
        except BadData:
            self._cursor.seek(start)
            if await self._cursor.take() is None:
                await self._cursor.skip()
            return False
        return True

    async def _begin(self) -> bool:
        """Enter the array; whether there is anything in it."""
        cursor = self._cursor
        await cursor.next(b"[")
        if await cursor.peek() == b"]":
            cursor.at += 1
            return False
        return True

    async def _grow(self) -> bool:
        cursor = self._cursor
        return len(cursor.buffer) - cursor.at <= LARGE and await cursor.grow()

    def _guess(self, batch: MessageColumns) -> bool:
        """Add what the buffer holds in the usual form; whether more bytes may make more of it."""
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
            name = value.get(ID)
            if proven is None or proven[1].decode() != name:
                self.plain = False
                name = _text(name)
            if found[1] in self._repeats:
                batch.shapes[len(batch.ids)] = self._repeats[found[1]]
            batch.ids.append(name)
            batch.texts.append(text)
            batch.marks.append(marks)
            batch.roles.append(value.get(ROLE))
            batch.times.append(value.get(TIMESTAMP))
            batch.sizes.append(len(text))
            self._tell(value)
            at = found.end()
            if found[2] == b"]":
                at = found.end(2)
                self._closed = True
                break
        cursor.at = at
        return len(buffer) - at < 2

    def _repeat(self) -> list[StoredMessage]:
        """Return the messages of the buffer, every guess being known to be right."""
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
        value = jsonio.loads(text)
        marks = _marks(value)
        if len(marks) < len(value):
            self._repeats[text] = json.dumps(value)
            self.plain = False  # the second reading has to tell, too
        if b"}" in text:
            self.plain = False  # a guess within a window might find its end there
        if len(self._marks) >= _KNOWN_MARKS:
            self._marks.clear()
        self._marks[text] = marks
        return marks

    def _tell(self, message: dict[str, Any]) -> None:
        """Note by which keys of a message its list is known."""
        self.keys = self.keys or frozenset(message)
        self.authored = self.authored and message.keys() >= AUTHOR

    async def _search(self, batch: MessageColumns) -> None:
        """Add the next message, whatever its form and size."""
        await self._item(batch)
        await self._pass()

    async def _pass(self) -> None:
        """Pass over what follows a message: a comma, or the end of the array."""
        cursor = self._cursor
        self._closed = await cursor.next(b",]") == b"]"
        if not self._closed and await cursor.peek() == b"]":
            raise cursor.bad("a message was expected")

    async def _item(self, batch: MessageColumns) -> None:
        cursor = self._cursor
        marks: tuple[str, ...] = ()
        self._place = None
        match await cursor.peek():
            case b"{":
                batch.shapes[len(batch.ids)] = BARE
                await self._message(batch)
            case b"[":
                cursor.at += 1
                await self._message(batch)
                await cursor.next(b",")
                value = await self._checked_marks()
                marks = _marks(value)
                if len(marks) < len(value):
                    batch.shapes[len(batch.ids) - 1] = json.dumps(value)
                await cursor.next(b"]")
            case b"":
                raise cursor.cut_off()
            case _:
                raise cursor.bad("a message, or a pair of a message and its marks, was expected")
        batch.marks.append(marks)

    async def _checked_marks(self) -> list[str]:
        cursor = self._cursor
        await cursor.peek()
        start = cursor.position
        text = await cursor.take()
        self._place = start, cursor.position
        try:
            value: list[str] = [] if text is None else cursor.parsed(text)
            _marks(None if text is None else value)
            return value
        except ValueError as error:
            raise cursor.bad("a list of marks was expected", start - cursor.position) from error

    async def _message(self, batch: MessageColumns) -> None:
        cursor = self._cursor
        if await cursor.peek() not in (b"{", b""):
            raise cursor.bad("a message was expected")
        start = cursor.position
        text = await cursor.take()
        if text is not None:
            value = cursor.parsed(text)
            size = len(text)
            message = jsonio.utf8(text)
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
                message = jsonio.utf8(await cursor.source.read_at(start, size))
        self._message_end = cursor.position
        self._tell(value)
        batch.ids.append(_text(value.get(ID)))
        batch.texts.append(message)
        batch.roles.append(value.get(ROLE))
        batch.times.append(value.get(TIMESTAMP))
        batch.sizes.append(size)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _marks(value: Any) -> tuple[str, ...]:
    """The marks in their order, without repeats.

    Raises:
        ValueError: the value is not a list of strings.
    """
    if isinstance(value, list) and all(isinstance(mark, str) for mark in value):
        return tuple(dict.fromkeys(value))
    raise ValueError("not a list of strings")


@dataclass(slots=True)
class MessageColumns:
    """Messages as found, in columns: counting a million of them is a matter of these lists.

    ``texts`` are empty for large messages where those were not wanted; ``sizes`` are the lengths in
    the document.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    marks: list[tuple[str, ...]] = field(default_factory=list)
    roles: list[Any] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shapes: dict[int, str] = field(default_factory=dict)
    """The shapes of messages that are not pairs as memctl writes them, by their places."""

    def entries(self) -> list[StoredMessage]:
        """The messages, which the batch then no longer holds."""
        entries = list(map(StoredMessage, self.ids, self.texts, self.marks))
        self.texts.clear()
        for at, shape in self.shapes.items():
            entries[at] = entries[at]._replace(shape=shape)
        return entries


class MessageCounts:
    """A counter of messages for the catalogue."""

    def __init__(self) -> None:
        self.messages = 0
        self._bytes = 0
        self._marks: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        self._first: str | None = None
        self._last: str | None = None
        self._ids = array("q")

    def add(self, batch: MessageColumns) -> None:
        """Count the messages of a batch."""
        self.messages += len(batch.ids)
        self._bytes += sum(batch.sizes)
        self._marks.update(chain.from_iterable(batch.marks))
        self._roles.update([role for role in batch.roles if isinstance(role, str)])
        # The hashes of a million ids take 8 MB, the ids themselves 70.
        self._ids.extend(map(hash, batch.ids))
        times = [time for time in batch.times if isinstance(time, str) and time]
        if times:
            self._first = min(self._first or times[0], *times)
            self._last = max(self._last or times[0], *times)

    def info(self) -> MemoryInfo:
        """The counts; key, summary and expiry are the caller's to fill in."""
        repeated = sum(one == other for one, other in pairwise(sorted(self._ids)))
        return MemoryInfo(
            MemoryKey("", ""),
            messages=self.messages,
            bytes=self._bytes,
            marks=dict(self._marks),
            roles=dict(self._roles),
            first=self._first,
            last=self._last,
            repeated=repeated,
        )


@dataclass(slots=True)
class PlacedMessages:
    """Some messages in columns; places count from the beginning of the document.

    A message and its marks stand from ``starts`` to ``ends``, the message itself to ``told``, the
    marks from ``marked`` to ``unmarked``; these are None where a message stands without.
    ``buffer`` is what the document holds from ``base`` on, perhaps these messages.  One that was
    found otherwise has its text in ``texts``, empty if it is large, and its length in ``sizes``.
    """

    ids: list[str] = field(default_factory=list)
    marks: list[tuple[str, ...]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    marked: list[int | None] = field(default_factory=list)
    unmarked: list[int | None] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    buffer: bytes = b""
    base: int = 0


class PlacedContent(Content):
    """A second reading of the array: the messages themselves stay where they are."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor, keep=False)

    async def places(self, *, plain: bool) -> AsyncGenerator[PlacedMessages]:
        """The messages in order; ``plain`` is what the first reading found.

        Raises:
            BadData: see ``batches``.
        """
        if not await self._begin():
            return
        while not self._closed:
            places = PlacedMessages()
            if plain:
                self._locate(places)
            if not places.ids:
                if plain and await self._grow():
                    continue
                await self._one(places)
            yield places

    def _locate(self, places: PlacedMessages) -> None:
        """Add what the buffer holds, every guess being known to be right."""
        cursor = self._cursor
        buffer, at = cursor.buffer, cursor.at
        base = cursor.position - at
        places.buffer, places.base = buffer, base
        while begin := PROVEN_BEGIN.match(buffer, at):
            found = PAIR_END.search(buffer, begin.end())
            if found is None:
                break
            marks = self._marks.get(found[1])
            if marks is None:
                marks = self._learn(found[1])
            places.ids.append(begin[1].decode())
            places.marks.append(marks)
            places.starts.append(base + at)
            places.ends.append(base + found.start(2))
            places.told.append(base + found.start() + 1)
            places.marked.append(base + found.start(1))
            places.unmarked.append(base + found.end(1))
            at = found.end()
            if found[2] == b"]":
                at = found.end(2)
                self._closed = True
                break
        cursor.at = at

    async def _one(self, places: PlacedMessages) -> None:
        """Add the next message, whatever its form and size."""
        cursor = self._cursor
        batch = MessageColumns()
        await cursor.peek()
        places.starts.append(cursor.position)
        await self._item(batch)
        places.ends.append(cursor.position)
        places.told.append(self._message_end)
        await self._pass()
        places.ids, places.texts, places.sizes = batch.ids, batch.texts, batch.sizes
        places.marks = batch.marks
        marked, unmarked = self._place or (None, None)
        places.marked.append(marked)
        places.unmarked.append(unmarked)
