"""The memories in a document: recognized by shape, and named by path.

A memory is the state of one of AgentScope's memory classes: an object with ``_compressed_summary``
(``memory/_working_memory/_base.py``) and, for InMemoryMemory, ``content``.  The object is the
document itself (a state_dict) or stands at any depth (JSONSession and RedisSession nest the states
of an application's modules under names that the application chooses).
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from memctl.errors import BadData
from memctl.json.document import DEPTH, LARGE, Cursor, TrailingData
from memctl.json.scan import BYTE_ORDER_MARK
from memctl.model import MemoryInfo
from memctl.storekit.paths import Steps, join, split
from memctl.stores.states.document import Document, Span
from memctl.stores.states.messages import AUTHOR, Messages, MessageScan

SUMMARY = "_compressed_summary"
CONTENT = "content"

_MARKER = re.compile(rb'"content"|"_compressed_summary"|\\u00')
"""Matches in every object that contains a memory; keys may be written with escapes."""
_IDENTIFYING = re.compile(rb'"role"|"name"|' + _MARKER.pattern)
_IDENTIFYING_KEYS = AUTHOR | {CONTENT}
"""Of these keys, a memory without a summary has only ``content``; a message has all."""


class MemoryPart(Struct):
    """A memory in the JSON document of a session.

    ``span`` has the bytes of the memory's object.  ``content`` has the bytes of its list of
    messages, ``summary`` the bytes of its summary; each is None if the object lacks the key.
    ``text`` is the decoded summary.  ``info`` counts the messages.
    """

    path: str
    span: Span
    content: Span | None
    summary: Span | None
    text: str
    info: MemoryInfo
    messages: Messages
    told_by_messages: bool
    """True if only the messages show that the object is a memory."""
    told_by_any: bool
    """True if each message shows that the object is a memory."""

    @property
    def summary_shape(self) -> str:
        """How an empty summary is stored: ``missing`` (no key), ``null``, or "" for a string.

        If the summary is not empty, the result is "".
        """
        if self.summary is None:
            return "missing"
        return "null" if not self.text and self.summary.end - self.summary.start == 4 else ""


class InsertionPoint(Struct):
    """The place in a document at which a memory is to be inserted at a path.

    ``steps`` is the path of the innermost object that exists on the way, ``span`` its bytes.
    ``empty`` is True if this object has no members.  ``blocked`` is True if it has a member with
    the next name of the path whose value is not an object.
    """

    steps: Steps
    span: Span
    empty: bool
    blocked: bool


class DocumentIndex(Struct):
    """The memories of a document, by path.

    ``place`` is the place for a memory at the path ``wanted`` that ``find`` was given; None if the
    document is not a JSON object.
    """

    parts: dict[str, MemoryPart]
    place: InsertionPoint | None


def find(document: Document, *, wanted: str = "") -> DocumentIndex:
    """Check a whole document, and find its memories.

    Also finds the place at which a memory at the path ``wanted`` is to be inserted.

    Raises:
        BadData: the document is not JSON, is cut off, or contains a damaged memory.
    """
    finder = _MemoryFinder(document, wanted=split(wanted))
    finder.run()
    return finder.index


def member_span(document: Document, steps: Steps) -> Span | None:
    """Return the bytes to cut out of a document to remove the member at the path ``steps``.

    The span includes one comma before or after the member.  Returns None if the member does not
    exist.

    Raises:
        BadData: the document is not JSON.
    """
    return _member_span(Cursor(document.data, document.name), steps)


def _member_span(cursor: Cursor, steps: Steps) -> Span | None:
    if not cursor.begins(b"{"):
        return None
    start = before = cursor.at + 1
    found: Span | None = None
    for key in cursor.members():
        value = cursor.at
        cursor.check()
        end = cursor.at
        if key == steps[0] and len(steps) > 1:
            cursor.at = value
            found = _member_span(cursor, steps[1:])
            cursor.at = end
        elif key == steps[0]:
            if before == start and cursor.begins(b","):
                end = cursor.at + 1
            found = Span(before, end)
        before = cursor.at
    return found


class _OpenObject(Struct):
    """A JSON object whose members are being read."""

    steps: Steps
    start: int
    scan: MessageScan
    keys: set[str] = field(default_factory=set)
    """The keys in ``_IDENTIFYING_KEYS`` that the object has; "" stands for all other keys."""
    content: Span | None = None
    summary: Span | None = None
    text: str = ""
    fault: BadData | None = None
    """The reason why ``content`` is not a list of messages."""

    def is_memory(self) -> bool:
        if self.summary is not None:
            return True
        # Messages have a list of this name, too, and other objects may have one.
        if self.content is None or self.fault or self.keys >= AUTHOR:
            return False
        return bool(self.scan.messages) or self.keys == {CONTENT}


class _MemoryFinder:
    """A search for the memories of a document, in one pass.

    ``wanted`` is the path at which a memory is to be inserted.
    """

    def __init__(self, document: Document, *, wanted: Steps) -> None:
        self.index = DocumentIndex({}, None)
        self._name = document.name
        self._cursor = Cursor(document.data, document.name)
        self._wanted = wanted
        self._marker = -1
        """The position of the next match of ``_MARKER``, unless the cursor has passed it."""
        self._blocked: Steps | None = None

    def run(self) -> None:
        cursor = self._cursor
        if cursor.begins(BYTE_ORDER_MARK):
            cursor.at += len(BYTE_ORDER_MARK)
        if cursor.begins(b"{"):
            self._object(())
        else:
            cursor.check()
        end, size = cursor.at, len(cursor.text)
        if cursor.start() < size:
            raise TrailingData(self._name, end, size, frozenset(self.index.parts))

    def _object(self, steps: Steps) -> None:
        cursor = self._cursor
        here = _OpenObject(steps, cursor.start(), MessageScan(cursor))
        on_the_way = len(steps) < len(self._wanted) and steps == self._wanted[: len(steps)]
        for key in cursor.members():
            inner = (*steps, key)
            here.keys.add(key if key in _IDENTIFYING_KEYS else "")
            is_object = cursor.begins(b"{")
            if not is_object and inner == self._wanted[: len(inner)]:
                self._blocked = steps
            if key == SUMMARY:
                self._summary(here)
            elif key == CONTENT and cursor.begins(b"["):
                self._content(here)
            else:
                if key == CONTENT:
                    here.fault = cursor.bad("a list of messages was expected", cursor.at)
                if is_object and self._may_hold_memory(inner):
                    self._object(inner)
                else:
                    cursor.check()
                    if not on_the_way:
                        cursor.leap(b"{", b"}", _IDENTIFYING)
        self._close(here, Span(here.start, cursor.at))

    def _close(self, here: _OpenObject, span: Span) -> None:
        path = join(here.steps)
        # Of a key that is given twice only the last value counts.
        self.index.parts.pop(path, None)
        if here.is_memory():
            if here.fault:
                raise here.fault
            info = here.scan.counts.info()
            info.summary = bool(here.text)
            self.index.parts[path] = MemoryPart(
                path,
                span,
                here.content,
                here.summary,
                here.text,
                info,
                here.scan.messages,
                told_by_messages=here.summary is None and here.keys != {CONTENT},
                told_by_any=here.scan.authored,
            )
        place = self.index.place
        on_the_way = here.steps == self._wanted[: len(here.steps)]
        if on_the_way and (place is None or len(here.steps) >= len(place.steps)):
            blocked = self._blocked == here.steps
            self.index.place = InsertionPoint(here.steps, span, not here.keys, blocked)

    def _may_hold_memory(self, steps: Steps) -> bool:
        if not steps[-1] or len(steps) > DEPTH:
            return False  # a path has no empty name, and no application nests a memory so deep
        if steps == self._wanted[: len(steps)]:
            return True
        cursor = self._cursor
        if self._marker < cursor.at:
            found = _MARKER.search(cursor.text, cursor.at)
            self._marker = found.start() if found else len(cursor.text)
        return not cursor.ends_before(min(self._marker, cursor.at + LARGE))

    def _summary(self, here: _OpenObject) -> None:
        cursor = self._cursor
        if not (cursor.begins(b'"') or cursor.begins(b"n")):
            raise cursor.fault("a summary (a string) was expected")
        start = cursor.at
        here.text = cursor.value() or ""
        here.summary = Span(start, cursor.at)

    def _content(self, here: _OpenObject) -> None:
        cursor = self._cursor
        start = cursor.at
        here.fault = None
        here.scan = MessageScan(cursor)
        try:
            here.scan.run(is_memory=here.summary is not None)
        except BadData as error:
            if here.summary is not None or here.scan.messages:
                raise
            here.fault = error
            cursor.at = start
            cursor.check()
        here.content = Span(start, cursor.at)
