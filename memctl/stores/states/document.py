"""The memories in a JSON document: found by their shape, named by their path.

A memory is the state of one of AgentScope's memory classes, an object with ``_compressed_summary``
(``memory/_working_memory/_base.py``) and, for InMemoryMemory, ``content``.  It may be the document
itself (a state_dict) or stand anywhere inside (JSONSession and RedisSession nest the states of an
application's modules by names of its own).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memctl import jsonio
from memctl.errors import BadData, Unavailable
from memctl.json_scan import BYTE_ORDER_MARK
from memctl.json_stream import DEPTH, LARGE, TAIL, Cursor, Source, TrailingData
from memctl.model import Finding, MemoryInfo, MemoryKey, StoredMessage
from memctl.storekit import quarantine
from memctl.storekit.paths import Steps, join, split
from memctl.storekit.quarantine import ItemScan
from memctl.stores.states.content import AUTHOR, Content, MessageCounts

SUMMARY = "_compressed_summary"
CONTENT = "content"

_MARKER = re.compile(rb'"content"|"_compressed_summary"|\\u00')
"""A text that every object with a memory contains (keys may be written in escapes)."""

_IDENTIFYING = re.compile(rb'"role"|"name"|' + _MARKER.pattern)

_TELLING = AUTHOR | {CONTENT}
"""Of these keys, a memory has the last one alone, and a message has them all."""


class Document(Source):
    """A session's JSON, open for reading.

    ``version`` changes when the content does; None where nothing tells.  ``exists`` is false for
    the place of a document that is still to be written.
    """

    exists = True
    ttl: float | None
    version: object

    @abstractmethod
    async def verify(self) -> None:
        """Make sure that all that was read so far belongs together.

        Raises:
            DocumentChanged: the document was written to since it was opened.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release it."""


class DocumentTooLarge(BadData):
    """The new document would be larger than its store takes."""


class ForeignId(BadData):
    """A message has another id than the one that it goes by, and a document keeps no other."""


class DocumentChanged(Unavailable):
    """A document was written to while it was read."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was changed while it was read",
            "run the command again when no agent is writing to it",
        )


class Span(NamedTuple):
    """A value's place in the document, in bytes."""

    start: int
    end: int


@dataclass(slots=True)
class MemoryPart:
    """A memory in a document.

    ``content`` and ``summary`` are where their values stand, None where the key is missing.
    ``plain`` is what ``Content`` says of the messages; ``entries`` are the messages themselves,
    where they were to be kept.
    """

    path: str
    span: Span
    content: Span | None
    summary: Span | None
    text: str
    info: MemoryInfo
    plain: bool = False
    entries: list[StoredMessage] | None = None
    told_by_messages: bool = False
    """True where nothing says that it is a memory but its messages."""
    told_by_any: bool = True
    """True where each of them says so."""

    @property
    def summary_shape(self) -> str:
        """Return how an empty summary stands there: ``missing``, ``null``, or as a text."""
        if self.summary is None:
            return "missing"
        return "null" if not self.text and self.summary.end - self.summary.start == 4 else ""


@dataclass(slots=True)
class InsertionPoint:
    """The innermost object that exists on the way to a path, and whether it has no members.

    ``blocked`` says that the way goes on to something that is no object.
    """

    steps: Steps
    span: Span
    empty: bool
    blocked: bool


@dataclass(slots=True)
class DocumentIndex:
    """The memories that one pass over a document found.

    ``place`` is None where the document is not an object.
    """

    parts: dict[str, MemoryPart]
    place: InsertionPoint | None


async def find(source: Source, *, keep: bool = False, wanted: str = "") -> DocumentIndex:
    """All memories of a document, which is checked from end to end.

    ``keep`` holds on to their messages; ``wanted`` is the path whose place is to be found.

    Raises:
        BadData: the document is not JSON, is cut off, or a memory in it is broken.
    """
    return await _MemoryFinder(source, keep=keep, wanted=split(wanted)).run()


async def scan_contents(source: Source) -> dict[str, ItemScan]:
    """Return the lists of messages of a document that hold damaged ones, by their paths.

    Raises:
        BadData: something else in the document is damaged.
    """
    finder = _MemoryFinder(source, keep=False, wanted=(), tolerant=True)
    await finder.run()
    return finder.scanned


async def span_with_comma(source: Source, steps: Steps) -> Span | None:
    """Return the place of a member of an object, and of the comma that goes with it.

    Raises:
        BadData: the document is not JSON.
    """
    return await _member(Cursor(source), steps)


async def _member(cursor: Cursor, steps: Steps) -> Span | None:
    if await cursor.peek() != b"{":
        return None
    start = before = cursor.position + 1
    found: Span | None = None
    async for key in cursor.members():
        if key != steps[0]:
            await cursor.skip()
        elif len(steps) > 1:
            at = cursor.position
            found = await _member(cursor, steps[1:])
            cursor.seek(at)
            await cursor.skip()
        else:
            await cursor.skip()
            end = cursor.position
            if before == start and await cursor.peek() == b",":
                end = cursor.position + 1
            found = Span(before, end)
        before = cursor.position
    return found


@dataclass(slots=True)
class _OpenObject:
    """The state of an object while its members pass by."""

    steps: Steps
    start: int
    keys: set[str] = field(default_factory=set)
    """The keys that identify it; "" stands for all others."""
    content: Span | None = None
    summary: Span | None = None
    text: str = ""
    counts: MessageCounts = field(default_factory=MessageCounts)
    plain: bool = False
    authored: bool = True
    """``Content.authored``."""
    entries: list[StoredMessage] | None = None
    fault: BadData | None = None
    """The reason why ``content`` is not a list of messages."""
    scanned: ItemScan | None = None

    def is_memory(self) -> bool:
        if self.summary is not None:
            return True
        # A message has a list of that name too, and so may anything else that has one.
        if self.content is None or self.fault or self.keys >= AUTHOR:
            return False
        return bool(self.counts.messages) or self.keys == {CONTENT}


class _MemoryFinder:
    def __init__(
        self,
        source: Source,
        *,
        keep: bool,
        wanted: Steps,
        tolerant: bool = False,
    ) -> None:
        """A ``tolerant`` one goes on behind a damaged message."""
        self.scanned: dict[str, ItemScan] = {}
        self._tolerant = tolerant
        self._cursor = Cursor(source)
        self._keep = keep
        self._wanted = wanted
        self._marker = -1
        self._seen = -1
        self._blocked: Steps | None = None
        self._index = DocumentIndex({}, None)

    async def run(self) -> DocumentIndex:
        cursor = self._cursor
        await cursor.peek()
        if cursor.buffer.startswith(BYTE_ORDER_MARK, cursor.at):
            cursor.at += len(BYTE_ORDER_MARK)
        if await cursor.peek() == b"{":
            await self._object(())
        else:
            await cursor.skip()
        end = cursor.position
        if await cursor.peek():
            paths = frozenset((*self._index.parts, *self.scanned))
            raise TrailingData(cursor.source.name, end, cursor.source.size, paths)
        return self._index

    async def _object(self, steps: Steps) -> None:
        cursor = self._cursor
        here = _OpenObject(steps, cursor.position)
        on_the_way = len(steps) < len(self._wanted) and steps == self._wanted[: len(steps)]
        async for key in cursor.members():
            here.keys.add(key if key in _TELLING else "")
            first = await cursor.peek()
            if first != b"{" and (*steps, key) == self._wanted[: len(steps) + 1]:
                self._blocked = steps
            if key == CONTENT and first != b"[":
                here.fault = cursor.bad("a list of messages was expected")
            if key == SUMMARY:
                await self._summary(here)
            elif key == CONTENT and first == b"[":
                await self._content(here)
            elif first == b"{" and self._may_hold_memory((*steps, key)):
                await self._object((*steps, key))
            else:
                await cursor.skip()
                if not on_the_way:
                    cursor.leap(b"{", b"}", _IDENTIFYING)
        self._close(here, Span(here.start, cursor.position))

    def _close(self, here: _OpenObject, span: Span) -> None:
        path = join(here.steps)
        # Of a key that is given twice the last one counts, and what the first one held is gone.
        self._index.parts.pop(path, None)
        self.scanned.pop(path, None)
        is_one = here.summary is not None or here.counts.messages
        if here.scanned is not None and is_one:
            self.scanned[path] = here.scanned
        elif here.is_memory():
            if here.fault:
                raise here.fault
            info = here.counts.info()
            info.summary = bool(here.text)
            self._index.parts[path] = MemoryPart(
                *(path, span, here.content, here.summary, here.text, info, here.plain),
                *(here.entries, here.summary is None and here.keys != {CONTENT}, here.authored),
            )
        place = self._index.place
        on_the_way = here.steps == self._wanted[: len(here.steps)]
        if on_the_way and (place is None or len(here.steps) >= len(place.steps)):
            blocked = self._blocked == here.steps
            self._index.place = InsertionPoint(here.steps, span, not here.keys, blocked)

    def _may_hold_memory(self, steps: Steps) -> bool:
        if not steps[-1] or len(steps) > DEPTH:
            return False  # a path cannot name the first, and nobody nests a memory like the second
        if steps == self._wanted[: len(steps)]:
            return True
        cursor = self._cursor
        end = cursor.position + len(cursor.buffer) - cursor.at
        if end != self._seen or self._marker < cursor.position:
            found = _MARKER.search(cursor.buffer, cursor.at)
            self._seen = end
            self._marker = cursor.position + found.start() - cursor.at if found else end
        return not cursor.ends_before(self._marker - cursor.position + cursor.at)

    async def _summary(self, here: _OpenObject) -> None:
        cursor = self._cursor
        if await cursor.peek() not in (b'"', b"n"):
            raise cursor.bad("a summary (a string) was expected")
        start = cursor.position
        text = await cursor.take()
        if text is None:
            await cursor.skip()
            text = await cursor.source.read_at(start, cursor.position - start)
            value: Any = jsonio.loads(text)
        else:
            value = cursor.parsed(text)
        here.summary = Span(start, cursor.position)
        here.text = value or ""

    async def _content(self, here: _OpenObject) -> None:
        cursor = self._cursor
        start = cursor.position
        content = Content(cursor, keep=self._keep)
        here.counts = MessageCounts()
        here.entries = [] if self._keep else None
        here.fault = here.scanned = None
        try:
            async for batch in content.batches():
                # The summary says that it is a memory, or the first item does.
                if here.summary is None and not (content.keys or set()) >= AUTHOR:
                    raise cursor.bad("a list of messages was expected")
                here.counts.add(batch)
                if here.entries is not None:
                    here.entries += batch.entries()
        except BadData as error:
            if not self._tolerant and (here.summary is not None or here.counts.messages):
                raise
            here.fault = error
            cursor.seek(start)
            if self._tolerant:
                scan = await Content(cursor, keep=False).scan()
                here.scanned = scan if scan.cuts else None
            else:
                await cursor.skip()
        here.content = Span(start, cursor.position)
        here.plain, here.authored = content.plain, content.authored


async def damaged_contents(document: Document, chosen: str | None) -> dict[str, ItemScan]:
    """Return the lists that ``scan_contents`` does, but no others than that of a chosen path.

    A document that is itself a memory has no paths to choose from.

    Raises:
        BadData: something else in the document is damaged.
    """
    found = await scan_contents(document)
    return {path: one for path, one in found.items() if chosen is None or path in (chosen, "")}


async def may_be_cut(document: Document, tail: TrailingData, chosen: str | None) -> bool:
    """Return whether what follows a whole document may be cut off.

    The document must hold a memory, that at the ``chosen`` path if there is one.  If what follows
    is a document, too, nobody can tell which one is right.
    """
    held = tail.paths if chosen is None else tail.paths & {chosen, ""}
    if not held or document.size - tail.end > LARGE:
        return False
    try:
        jsonio.loads(await document.read_at(tail.end, document.size - tail.end))
    except ValueError:
        return True
    return False


async def damaged(
    owner: tuple[str, str], document: Document, error: BadData, chosen: str | None
) -> Finding:
    """A session state that is cut off, no JSON, or misshapen; the error names it.

    If nothing but messages is damaged, these are the finding; see ``damaged_contents``.
    """
    key = MemoryKey(*owner)
    try:
        found = await damaged_contents(document, chosen)
    except TrailingData as tail:
        code = TAIL if await may_be_cut(document, tail, chosen) else "damaged-state"
        return Finding(code, key, detail=tail.message)
    except BadData:
        found = {}
    if not found:
        return Finding("damaged-state", key, detail=error.message)
    count = sum(scan.items for scan in found.values())
    places = [
        f"{join((*split(path), CONTENT))}[{cut.index}]"
        for path, scan in found.items()
        for cut in scan.cuts
    ]
    return quarantine.finding(key, count, places, error.message)
