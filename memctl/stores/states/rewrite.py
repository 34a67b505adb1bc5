"""Writing one memory into a JSON document: its values change, the rest is copied as it is."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from memctl import jsonio
from memctl.errors import BadData, Failure
from memctl.json_stream import WINDOW, Cursor, Source
from memctl.model import Change, Edit, Memory, StoredMessage, WriteMode
from memctl.storekit.edits import ChangeMatcher, Drop, Keep, Mark, Put, Step, is_same_text
from memctl.storekit.paths import join, split
from memctl.stores.states.content import BARE, PlacedContent, PlacedMessages, marks_of_shape
from memctl.stores.states.document import (
    CONTENT,
    SUMMARY,
    Document,
    DocumentChanged,
    DocumentIndex,
    DocumentTooLarge,
    ForeignId,
    InsertionPoint,
    MemoryPart,
)

BETWEEN = b", "


class Draft(ABC):
    """The new document in the making."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Append.

        Raises:
            DocumentTooLarge: the store does not take so much.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Remove it, unless it has taken its place."""


@dataclass(frozen=True, slots=True)
class Splice:
    """New bytes for a span of the document; with ``stream`` the messages go between the two."""

    start: int
    end: int
    text: bytes
    stream: bool = False
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The splices of a document, and whether the first message written is the first of its list."""

    splices: list[Splice]
    first: bool = True
    deleted: int = 0
    before: str = ""
    """See ``WriteResult.before``."""


class Rewrite:
    """One memory on its way into a document.

    ``add`` with each page, then ``finish``: the draft is complete.
    """

    def __init__(self, memory: Memory, draft: Draft, old: Source | None, plan: RewritePlan) -> None:
        self.memory = memory
        self.draft = draft
        self.written = 0
        self.deleted = plan.deleted
        self.before = plan.before
        self.shared_ids: dict[str, int] = {}
        self._old = old
        self._splices = sorted(plan.splices, key=lambda splice: splice.start)
        self._copied = 0
        self._first = plan.first
        self._tail: bytes | None = None
        self._fault: DocumentChanged | DocumentTooLarge | ForeignId | None = None

    async def add(self, entries: list[StoredMessage]) -> None:
        """Write the messages of a page, the first one's after what stands before them."""
        if self._fault or not entries:
            return
        try:
            if self._tail is None:
                await self._begin()
            await self._add(entries)
        except (DocumentChanged, DocumentTooLarge, ForeignId) as error:
            self._fault = error  # what follows is taken, and ``finish`` tells

    async def _add(self, entries: list[StoredMessage]) -> None:
        pieces: list[bytes] = []
        for entry in entries:
            _check_id(entry)
            bare = entry.shape == BARE and not entry.marks
            opening = b"" if bare else b"["
            pieces.append(opening if self._first else BETWEEN + opening)
            self._first = False
            if len(entry.message) > WINDOW:  # not to be copied with the others
                await self.draft.write(b"".join(pieces))
                await self.draft.write(entry.message)
                pieces.clear()
            else:
                pieces.append(entry.message)
            if not bare:
                marks = marks_of_shape(entry.shape, entry.marks) or jsonio.dumps(entry.marks)
                pieces.append(BETWEEN + marks + b"]")
        await self.draft.write(b"".join(pieces))
        self.written += len(entries)

    async def finish(self) -> Failure | None:
        """Write the rest of the document; why that cannot be, where it cannot.

        ``changed``: the document was written to since the rewrite was planned; ``refused``: the
        store does not take so large a document, or a message under another id than its own.
        """
        try:
            if self._fault:
                raise self._fault
            await self._finish()
        except DocumentChanged as error:
            return Failure("changed", error.message)
        except (DocumentTooLarge, ForeignId) as error:
            return Failure("refused", error.message)
        return None

    async def _finish(self) -> None:
        if self._tail is None:
            await self._begin()
        await self.draft.write(self._tail or b"")
        for splice in self._splices:
            await self._apply(splice)
        if self._old is not None:
            await self._copy_to(self._old.size)

    async def _begin(self) -> None:
        self._tail = b""
        while self._splices:
            splice = self._splices.pop(0)
            await self._apply(splice)
            if splice.stream:
                self._tail = splice.tail
                return

    async def _apply(self, splice: Splice) -> None:
        await self._copy_to(splice.start)
        await self.draft.write(splice.text)
        self._copied = splice.end

    async def _copy_to(self, end: int) -> None:
        while self._old is not None and self._copied < end:
            data = await self._old.read_at(self._copied, min(WINDOW, end - self._copied))
            if not data:
                raise DocumentChanged(self._old.name)
            await self.draft.write(data)
            self._copied += len(data)


def _check_id(entry: StoredMessage) -> None:
    """Raise ForeignId where a document would not give a message the id that it goes by."""
    own = jsonio.field(entry.message, "id") or ""
    if own != entry.id:
        raise ForeignId(f"the message {entry.id!r} has the id {own!r} in its text")


def plan(
    index: DocumentIndex | None,
    path: str,
    memory: Memory,
    mode: WriteMode,
    offset: int,
    *,
    messages: bool,
) -> RewritePlan | Failure:
    """The splices that write a memory at a path; none where it is there already.

    ``index`` is what the document holds, None where there is no document yet; ``messages`` says
    whether any will come.  A memory that is new in an existing document, and has a summary but no
    messages, gets no ``content``: next to SQL or Redis memory the session state holds the
    summary alone.
    """
    part = index.parts.get(path) if index else None
    held = part.info.messages if part else 0
    if mode is WriteMode.ADD and held != offset:
        return Failure("changed", f"the target holds {held} messages, not {offset}")
    if part is not None:
        splices = [*summary_splices(part, memory), *_content(part, mode, messages=messages)]
        replaced = mode is WriteMode.REPLACE
        before = before_of(part, memory, messages=messages)
        return RewritePlan(splices, replaced or not held, held if replaced else 0, before)
    if any(not step for step in split(path)):
        return Failure("bad-name", f"the path {path!r} has a name without letters")
    if index is None:
        head, tail = _nested(split(path), memory, content=True)
        return RewritePlan([Splice(0, 0, head, True, tail)], before='{"made": "document"}')
    return _insertion(index.place, path, memory, content=messages or not memory.summary)


def revision(part: MemoryPart, memory: Memory, *, messages: bool) -> RewritePlan:
    """The splices that change a memory which is there, whose messages are written one by one.

    None where there is nothing to change.
    """
    before = before_of(part, memory, messages=messages)
    if part.content is None or not messages:
        return RewritePlan(
            [*summary_splices(part, memory), *_content(part, WriteMode.ADD, messages=messages)],
            before=before,
        )
    start = part.content.start + 1
    return RewritePlan(
        [*summary_splices(part, memory), Splice(start, start, b"", True)], before=before
    )


def before_of(part: MemoryPart, memory: Memory, *, messages: bool) -> str:
    """Return what the reverse of a change of a memory would not restore."""
    found = {}
    shape = part.summary_shape
    # The reverse may add one, lest what it leaves is no memory any more.
    if shape and (summary_splices(part, memory) or (messages and shape == "missing")):
        found["summary"] = shape
    if messages and part.content is None:
        found["content"] = "missing"
    return json.dumps(found) if found else ""


def summary_splices(part: MemoryPart, memory: Memory) -> list[Splice]:
    """Return the splices that give a memory its summary; none where it has that."""
    if memory.summary is None or (part.summary and part.text == memory.summary):
        return []
    text = jsonio.dumps(memory.summary)
    if part.summary:
        return [Splice(*part.summary, text)]
    start = part.span.start + 1
    return [Splice(start, start, _key(SUMMARY) + text + BETWEEN)]


def _content(part: MemoryPart, mode: WriteMode, *, messages: bool) -> list[Splice]:
    if part.content is None:
        end = part.span.end - 1
        head = BETWEEN + _key(CONTENT) + b"["
        return [Splice(end, end, head, True, b"]")] if messages else []
    if mode is WriteMode.REPLACE:
        return [Splice(*part.content, b"[", True, b"]")]
    end = part.content.end - 1
    return [Splice(end, end, b"", True)] if messages else []


def _insertion(
    place: InsertionPoint | None, path: str, memory: Memory, *, content: bool
) -> RewritePlan | Failure:
    if place is None:
        return Failure(
            "refused", "the existing document is not a session state: it is not a JSON object"
        )
    if place.blocked:
        taken = join(split(path)[: len(place.steps) + 1])
        return Failure("bad-name", f"{taken!r} exists and is not a memory")
    rest = split(path)[len(place.steps) :]
    head, tail = _nested(rest, memory, content=content)
    # The members go after those that are there, within the braces that are there.
    head = (b"" if place.empty else BETWEEN) + head[1:]
    end = place.span.end - 1
    before = json.dumps({"made": split(path)[: len(place.steps) + 1]})
    return RewritePlan([Splice(end, end, head, content, tail[:-1])], before=before)


def _nested(steps: tuple[str, ...], memory: Memory, *, content: bool) -> tuple[bytes, bytes]:
    """A new memory within objects of these names: what is before its messages, and after."""
    head = b"{" + b"".join(_key(step) + b"{" for step in steps)
    head += _key(SUMMARY) + jsonio.dumps(memory.summary or "")
    tail = b"}" * (len(steps) + 1)
    if content:
        return head + BETWEEN + _key(CONTENT) + b"[", b"]" + tail
    return head + tail[:-1], tail[-1:]


def _key(name: str) -> bytes:
    return jsonio.dumps(name) + b": "


class EditRewrite(Rewrite):
    """A memory of a document on its way into the draft, with the changes of an edit.

    What stays of its messages is copied as it stands.
    """

    def __init__(
        self,
        edit: Edit,
        pieces: AsyncGenerator[list[Change]] | None,
        draft: Draft,
        old: Document | None,
        plan: RewritePlan,
        part: MemoryPart | None,
    ) -> None:
        """Take the memory as it is, ``part``, and the changes that follow those of the edit."""
        super().__init__(edit.memory, draft, old, plan)
        self._is_empty = edit.last and not edit.changes
        self._pieces = pieces
        self._document = old
        self._content = part.content if part else None
        self._plain = part is not None and part.plain
        self._changes = ChangeMatcher(edit.shared_ids)
        self._changes.give(edit.changes, last=edit.last)
        self._places = PlacedMessages()
        self._untouched = True
        """True where the next copy directly follows the last one."""
        self._misfit: Failure | None = None

    async def finish(self) -> Failure | None:
        """Copy the document, changed; see ``Rewrite.finish``.

        ``changed`` is also what becomes of changes that do not fit the memory.
        """
        return await super().finish() or self._misfit

    async def _finish(self) -> None:
        if not self._is_empty:
            await self._begin()
            await self._messages()
            self.written, self.deleted = self._changes.written, self._changes.deleted
            self._misfit = self._changes.failure()
            self.shared_ids = {} if self._misfit else self._changes.shared_ids()
        if self._misfit is None:
            await super()._finish()

    async def _messages(self) -> None:
        if self._content is not None and self._document is not None:
            content = PlacedContent(Cursor(self._document, self._content.start))
            try:
                async for places in content.places(plain=self._plain):
                    await self._take(places)
                    await asyncio.sleep(0)
            except BadData:
                await self._document.verify()  # it was whole a moment ago: somebody writes to it
                raise
        await self._take(PlacedMessages())
        if self._content is not None and not self._untouched:
            self._copied = self._content.end - 1

    async def _take(self, places: PlacedMessages) -> None:
        """Copy some messages, changed; none at the end."""
        self._places = places
        changes = self._changes
        at = 0
        while True:
            if changes.needs_changes and self._pieces is not None:
                piece = await anext(self._pieces, None)
                changes.give(piece or (), last=piece is None)
                del piece
            if places.texts == [b""] and (text := changes.next_to_go(places.ids[0])):
                await self._compare(places, text)
            steps, at = changes.apply(places.ids, places.marks, at, has_text=self._has_text)
            for step in steps:
                await self._step(step)
            if not changes.needs_changes:
                return

    async def _compare(self, places: PlacedMessages, text: bytes) -> None:
        """Read a large message, piece by piece, so that a text which it has is not held twice."""
        assert self._document is not None
        start, end = places.told[0] - places.sizes[0], places.told[0]
        at = start
        if end - start == len(text):
            while at < end:
                piece = await self._document.read_at(at, min(WINDOW, end - at))
                if not piece or not text.startswith(piece, at - start):
                    break
                at += len(piece)
        if at < end:
            found = jsonio.utf8(await self._document.read_at(start, end - start))
            places.texts = [found]
        else:
            places.texts = [text]

    def _has_text(self, at: int, text: bytes) -> bool:
        """Return whether one of the messages at hand has this text."""
        places = self._places
        if places.texts:
            return is_same_text(places.texts[at], text)
        start, end = places.starts[at] + 1 - places.base, places.told[at] - places.base
        return is_same_text(places.buffer[start:end], text)

    async def _step(self, step: Step) -> None:
        places = self._places
        match step:
            case Keep(start, stop):
                await self._go_to(places.starts[start])
                await self._copy_to(places.ends[stop - 1])
            case Mark(at, marks, shape):
                await self._go_to(places.starts[at])
                await self._mark(at, marks, shape)
            case Put(entry):
                await self._add([entry])
                self._untouched = False
            case Drop():
                self._untouched = False

    async def _go_to(self, start: int) -> None:
        """Go to a message that stays, after those that stand in the draft."""
        if not self._untouched:
            if not self._first:
                await self.draft.write(BETWEEN)
            self._copied = start
        self._untouched, self._first = True, False

    async def _mark(self, at: int, marks: tuple[str, ...], shape: str) -> None:
        places = self._places
        marked, unmarked = places.marked[at], places.unmarked[at]
        if shape == BARE and not marks and marked is not None:
            await self._copy_to(places.starts[at])
            self._copied += 1
            await self._copy_to(places.told[at])
            self._copied = places.ends[at]
        elif marks != places.marks[at]:
            text = marks_of_shape(shape, marks) or jsonio.dumps(marks)
            if marked is None or unmarked is None:  # a bare message, of AgentScope before 1.0.12
                await self._copy_to(places.starts[at])
                await self.draft.write(b"[")
                await self._copy_to(places.ends[at])
                await self.draft.write(BETWEEN + text + b"]")
            else:
                await self._copy_to(marked)
                await self.draft.write(text)
                self._copied = unmarked
        await self._copy_to(places.ends[at])

    async def _copy_to(self, end: int) -> None:
        places = self._places
        limit = places.base + len(places.buffer)
        if self._copied < places.base < end:
            await super()._copy_to(places.base)
        if places.base <= self._copied < limit:
            stop = min(end, limit)
            await self.draft.write(places.buffer[self._copied - places.base : stop - places.base])
            self._copied = max(self._copied, stop)
        await super()._copy_to(end)
