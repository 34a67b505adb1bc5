"""The messages of a memory: spans of a document, and slices of the bytes of the document.

The array ``content`` holds ``[message, [mark, ...]]`` pairs.  AgentScope up to 1.0.11 wrote bare
messages (``memory/_working_memory/_in_memory_memory.py`` reads both, also mixed).
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, NamedTuple

import orjson

from memctl.dialects.agentscope import ID, NAME, ROLE
from memctl.dialects.agentscope1 import TIMESTAMP
from memctl.json import jsonio
from memctl.json.document import LARGE, Cursor
from memctl.json.scan import SPACE, match_end
from memctl.model import PAGE_BYTES, PAGE_ENTRIES, MemoryInfo, MemoryKey, StoredMessage
from memctl.storekit.edits import is_same_text
from memctl.stores.states.document import Span

AUTHOR = frozenset({ROLE, NAME})
"""The keys by which the first message shows that a list is a list of messages."""
BARE = "bare"
"""The shape of a message without a list of marks."""

_FIELDS = frozenset({ID, NAME, ROLE, TIMESTAMP})
_SPACE = rb"[ \t\n\r]*+"
_TEXT = rb'"(?:[^"\\]++|\\.)*+"' + _SPACE
_PAIR_BEGIN = re.compile(rb"\[%b(?=\{)" % _SPACE)
_PAIR_END = re.compile(
    rb"\}(%b,%b\[%b(?:%b(?:,%b)?+)*+\]%b\])%b([,\]])%b"
    % (_SPACE, _SPACE, _SPACE, _TEXT, _SPACE, _SPACE, _SPACE, _SPACE),
    re.DOTALL,
)
"""The last byte of a message, its marks and the end of the pair, and the delimiter after it."""
_BATCH = 1000
_KNOWN_TAILS = 1000


_Row = tuple[Any, Any, Any, tuple[str, ...], int]
"""The id, role, time, marks and size of a message, the first three as they are in the JSON."""


class _Tail(NamedTuple):
    """The marks and the shape of a message."""

    marks: tuple[str, ...]
    shape: str = ""


class Messages:
    """The messages of one memory in order, as positions in the bytes of the document.

    Message ``i`` is ``text[starts[i]:ends[i]]``, where ``text`` is the document.  Its item in the
    array ``content``, a pair or a bare message, ends at ``item_ends[i]``.
    """

    def __init__(self, text: bytes) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.item_ends = array("q")
        self._text = text
        self._tails = {b"": _Tail((), BARE)}

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, start: int, end: int, item_end: int) -> tuple[str, ...]:
        """Add the next message, and return its marks.

        ``start`` and ``end`` are the positions of the message in the document.  ``item_end`` is the
        end of the pair of the message and its marks, or ``end`` for a bare message.

        Raises:
            ValueError: the marks are not a list of strings.
        """
        text = self._text[end:item_end]
        tail = self._tails.get(text) or self._parse_tail(text)
        self.starts.append(start)
        self.ends.append(end)
        self.item_ends.append(item_end)
        return tail.marks

    def pages(self) -> Iterator[range]:
        """Divide the messages into pages, and yield the range of indexes of each page.

        Without messages, yields a single empty range.
        """
        start, count = 0, len(self)
        while True:
            most = min(start + PAGE_ENTRIES, count)
            stop = start
            if start < count:
                limit = self.starts[start] + PAGE_BYTES
                stop = bisect_right(self.ends, limit, min(start + 1, most), most)
            yield range(start, stop)
            if stop == count:
                return
            start = stop

    def entries(self, indexes: range) -> list[StoredMessage]:
        """Return the messages of the memory with these indexes."""
        found = []
        for (start, end), tail in zip(self._spans(indexes), self._tails_of(indexes), strict=True):
            text = self._text[start:end]
            id, is_utf8 = _id_of(text, 0, len(text))
            message = text if is_utf8 else jsonio.utf8(text)
            found.append(StoredMessage(id, message, tail.marks, None, tail.shape))
        return found

    def ids(self, indexes: range) -> list[str]:
        """Return the ids of the messages with these indexes; "" for a message without an id."""
        return [_id_of(self._text, *span)[0] for span in self._spans(indexes)]

    def marks(self, indexes: range) -> list[tuple[str, ...]]:
        """Return the marks of the messages with these indexes."""
        return [tail.marks for tail in self._tails_of(indexes)]

    def item_start(self, at: int) -> int:
        """Return the position in the document at which the item of the message ``at`` starts.

        The item is the pair of the message and its marks, or the bare message.
        """
        if self.ends[at] == self.item_ends[at]:
            return self.starts[at]
        return self._text.rindex(b"[", 0, self.starts[at])

    def marks_span(self, at: int) -> Span | None:
        """Return the bytes of the list of marks of the message ``at``; None for a bare message."""
        if self.ends[at] == self.item_ends[at]:
            return None
        start = match_end(SPACE, self._text, self.ends[at]) + len(b",")
        end = self.item_ends[at] - len(b"]")
        return Span(match_end(SPACE, self._text, start), self._text.rindex(b"]", start, end) + 1)

    def has_text(self, at: int, text: bytes) -> bool:
        """Return whether the message ``at`` is equal to ``text`` as bytes or as JSON."""
        start, end = self.starts[at], self.ends[at]
        if end - start == len(text) and self._text.startswith(text, start):
            return True
        return is_same_text(jsonio.utf8(self._text[start:end]), text)

    def _spans(self, indexes: range) -> Iterator[tuple[int, int]]:
        start, stop = indexes.start, indexes.stop
        return zip(self.starts[start:stop], self.ends[start:stop], strict=True)

    def _tails_of(self, indexes: range) -> Iterator[_Tail]:
        start, stop = indexes.start, indexes.stop
        for begin, end in zip(self.ends[start:stop], self.item_ends[start:stop], strict=True):
            text = self._text[begin:end]
            yield self._tails.get(text) or self._parse_tail(text)

    def _parse_tail(self, text: bytes) -> _Tail:
        value = jsonio.loads(text[:-1].strip(b" \t\n\r,"))
        marks = _marks(value)
        found = _Tail(marks, json.dumps(value) if len(marks) < len(value) else "")
        if len(self._tails) < _KNOWN_TAILS:
            self._tails[text] = found
        return found


class MessageScan:
    """A scan of an array ``content``, the list of messages of a memory.

    ``messages`` and ``counts`` have the messages read so far.  ``authored`` is True if each of them
    has the keys in ``AUTHOR``.
    """

    def __init__(self, cursor: Cursor) -> None:
        """``cursor`` is at the start of the array."""
        self.messages = Messages(cursor.text)
        self.counts = MessageCounts()
        self.authored = True
        self._cursor = cursor
        self._start = cursor.at
        self._is_memory = True
        self._is_closed = False
        self._rows: list[_Row] = []
        """The messages that are not yet in ``counts``."""

    def run(self, *, is_memory: bool) -> None:
        """Read and check the whole array ``content``.

        ``is_memory`` is True if the array is known to be a list of messages.  If False, the array
        is refused unless its first item has the keys in ``AUTHOR``.

        Raises:
            BadData: an item is not a message, or the document is damaged.
        """
        self._is_memory = is_memory
        cursor = self._cursor
        cursor.next(b"[")
        if cursor.begins(b"]"):
            cursor.next(b"]")
            return
        try:
            while not self._is_closed:
                self._usual_items()
                if not self._is_closed:
                    self._item()
                    self._delimiter()
        finally:
            self._count()

    def _usual_items(self) -> None:
        """Read pairs in the form that AgentScope writes, up to the first item in another form.

        Fast: the scan searches for the bytes between two messages.  The bytes before them are one
        message if they are a JSON object, because no JSON object begins with another JSON object.
        """
        cursor = self._cursor
        text, at = cursor.text, cursor.at
        while begin := _PAIR_BEGIN.match(text, at):
            start = begin.end()
            found = _PAIR_END.search(text, start, start + LARGE)
            if found is None:
                return
            end = found.start() + 1
            try:
                self._add(orjson.loads(text[start:end]), start, end, found.end(1))
            except ValueError:
                return
            if found[2] == b"]":
                cursor.at = found.end(2)
                self._is_closed = True
                return
            cursor.at = at = found.end()

    def _item(self) -> None:
        """Read and check an item of any form and size.

        Raises:
            BadData: the item is not a message, nor a pair of a message and its marks.
        """
        cursor = self._cursor
        start = cursor.start()
        if cursor.begins(b"["):
            cursor.next(b"[")
            start = cursor.start()
            if not cursor.begins(b"{"):
                raise cursor.fault("a message was expected")
            message = _fields(cursor)
            end = cursor.at
            cursor.next(b",")
            self._check_marks()
            cursor.next(b"]")
        elif cursor.begins(b"{"):
            message = _fields(cursor)
            end = cursor.at
        else:
            raise cursor.fault("a message, or a pair of a message and its marks, was expected")
        self._add(message, start, end, cursor.at)

    def _check_marks(self) -> None:
        start = self._cursor.start()
        try:
            _marks(self._cursor.value())
        except ValueError as error:
            raise self._cursor.bad("a list of marks was expected", start) from error

    def _delimiter(self) -> None:
        """Read the comma after an item, or the end of the array.

        Raises:
            BadData: neither follows, or the array ends after a comma.
        """
        cursor = self._cursor
        self._is_closed = cursor.next(b",]") == b"]"
        if not self._is_closed and cursor.begins(b"]"):
            raise cursor.fault("a message was expected")

    def _add(self, message: dict[str, Any], start: int, end: int, item_end: int) -> None:
        """Add a message to ``messages`` and ``counts``.

        Raises:
            BadData: the array is not a list of messages.
            ValueError: the marks are not a list of strings.
        """
        if ROLE not in message or NAME not in message:  # quicker than to compare with AUTHOR
            if not (self._is_memory or self.messages):
                raise self._cursor.bad("a list of messages was expected", self._start)
            self.authored = False
        marks = self.messages.add(start, end, item_end)
        row = message.get(ID), message.get(ROLE), message.get(TIMESTAMP), marks, end - start
        self._rows.append(row)
        if len(self._rows) == _BATCH:
            self._count()

    def _count(self) -> None:
        self.counts.add(self._rows)
        self._rows = []


def _fields(cursor: Cursor) -> dict[str, Any]:
    """Return the members of the message at the cursor; of a large message, some small members."""
    text = cursor.small()
    if text is not None:
        value: dict[str, Any] = cursor.parsed(text)
        return value
    found = {}
    for key in cursor.members():
        text = cursor.small() if key in _FIELDS else None
        if text is None:
            cursor.check()
        else:
            found[key] = cursor.parsed(text)
    return found


def _id_of(text: bytes, start: int, end: int) -> tuple[str, bool]:
    """Return the id of a message ("" without an id), and whether the message is valid UTF-8.

    The message is ``text[start:end]``.  False if the message is not valid, or was not checked.
    """
    if end - start <= LARGE:
        try:
            return _text(orjson.loads(text[start:end]).get(ID)), True
        except ValueError:
            pass  # NaN, or a lone surrogate
    return _text(_fields(Cursor(text, "the message", start)).get(ID)), False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _marks(value: Any) -> tuple[str, ...]:
    """Check a JSON list of marks; return the marks in order, without repeats.

    Raises:
        ValueError: ``value`` is not a list of strings.
    """
    if isinstance(value, list) and all(isinstance(mark, str) for mark in value):
        return tuple(dict.fromkeys(value))
    raise ValueError("not a list of strings")


def marks_of_shape(shape: str, marks: tuple[str, ...]) -> bytes | None:
    """Return ``shape`` as bytes if it is a JSON list of exactly these marks, perhaps with repeats.

    Returns None for any other shape.
    """
    try:
        found = jsonio.loads(shape.encode()) if shape.startswith("[") else None
        return shape.encode() if found is not None and _marks(found) == marks else None
    except ValueError:  # the shape is of another store
        return None


class MessageCounts:
    """Counts of the messages of a memory, as ``MemoryInfo`` has them."""

    def __init__(self) -> None:
        self._messages = 0
        self._bytes = 0
        self._marks: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        self._first: str | None = None
        self._last: str | None = None
        self._ids = array("q")

    def add(self, rows: list[_Row]) -> None:
        """Count further messages."""
        if not rows:
            return
        ids, roles, times, marks, sizes = zip(*rows, strict=True)
        self._messages += len(rows)
        self._bytes += sum(sizes)
        self._marks.update(chain.from_iterable(marks))
        self._roles.update([role for role in roles if isinstance(role, str)])
        # The hashes of a million ids take 8 MB, the ids themselves 70.
        self._ids.extend(map(hash, map(_text, ids)))
        known = [time for time in times if isinstance(time, str) and time]
        if known:
            self._first = min(self._first or known[0], *known)
            self._last = max(self._last or known[0], *known)

    def info(self) -> MemoryInfo:
        """Return the counts, without key, summary and TTL, which the caller must set."""
        repeated = sum(one == other for one, other in pairwise(sorted(self._ids)))
        return MemoryInfo(
            MemoryKey("", ""),
            messages=self._messages,
            bytes=self._bytes,
            marks=dict(self._marks),
            roles=dict(self._roles),
            first=self._first,
            last=self._last,
            repeated=repeated,
        )
