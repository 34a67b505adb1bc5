"""Writing one memory into a JSON document: its values change, the rest is copied as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from memctl import codec
from memctl.errors import Failure
from memctl.json_stream import WINDOW, Source
from memctl.model import Memory, StoredMessage, WriteMode
from memctl.stores.state.document import (
    CONTENT,
    SUMMARY,
    Changed,
    Index,
    Part,
    Place,
    TooLarge,
    join,
    split,
)

BETWEEN = b", "


class Draft(ABC):
    """The new document in the making."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Appends.

        Raises:
            TooLarge: the store does not take so much.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Removes it, unless it has taken its place."""


@dataclass(frozen=True, slots=True)
class Splice:
    """New bytes for a span of the document; with ``stream`` the messages go between the two."""

    start: int
    end: int
    text: bytes
    stream: bool = False
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to change, and whether the first message written is the first of its list."""

    splices: list[Splice]
    first: bool = True
    deleted: int = 0


class Rewrite:
    """One memory on its way into a document.

    ``add`` with each page, then ``finish``: the draft is complete.
    """

    def __init__(self, memory: Memory, draft: Draft, old: Source | None, plan: Plan) -> None:
        self.memory = memory
        self.draft = draft
        self.written = 0
        self.deleted = plan.deleted
        self._old = old
        self._splices = sorted(plan.splices, key=lambda splice: splice.start)
        self._copied = 0
        self._first = plan.first
        self._tail: bytes | None = None
        self._fault: Changed | TooLarge | None = None

    async def add(self, entries: list[StoredMessage]) -> None:
        """Writes the messages of a page, the first one's behind what stands before them."""
        if self._fault or not entries:
            return
        try:
            if self._tail is None:
                await self._begin()
            await self._add(entries)
        except (Changed, TooLarge) as error:
            self._fault = error  # what follows is taken, and ``finish`` tells

    async def _add(self, entries: list[StoredMessage]) -> None:
        pieces: list[bytes] = []
        for entry in entries:
            pieces.append(b"[" if self._first else BETWEEN + b"[")
            self._first = False
            if len(entry.message) > WINDOW:  # not to be copied with the others
                await self.draft.write(b"".join(pieces))
                await self.draft.write(entry.message)
                pieces.clear()
            else:
                pieces.append(entry.message)
            marks = codec.dumps(entry.marks) if entry.marks else b"[]"
            pieces.append(BETWEEN + marks + b"]")
        await self.draft.write(b"".join(pieces))
        self.written += len(entries)

    async def finish(self) -> Failure | None:
        """Writes the rest of the document; why that cannot be, where it cannot.

        ``changed``: the document was written to since the rewrite was planned; ``refused``: the
        store does not take so large a document.
        """
        try:
            if self._fault:
                raise self._fault
            await self._finish()
        except Changed as error:
            return Failure("changed", error.message)
        except TooLarge as error:
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
                raise Changed(self._old.name)
            await self.draft.write(data)
            self._copied += len(data)


def plan(
    index: Index | None, path: str, memory: Memory, mode: WriteMode, offset: int, *, messages: bool
) -> Plan | Failure:
    """The splices that write a memory at a path; none where it is there already.

    ``index`` is what the document holds, None where there is no document yet; ``messages`` says
    whether any will come.  A memory that is new in an existing document, and has a summary but no
    messages, gets no ``content``: beside SQL or Redis memory the session state holds the
    summary alone.
    """
    part = index.parts.get(path) if index else None
    held = part.info.messages if part else 0
    if mode is WriteMode.ADD and held != offset:
        return Failure("changed", f"the target holds {held} messages, not {offset}")
    if part is not None:
        splices = [*_summary(part, memory), *_content(part, mode, messages=messages)]
        replaced = mode is WriteMode.REPLACE
        return Plan(splices, replaced or not held, held if replaced else 0)
    if any(not step for step in split(path)):
        return Failure("bad-name", f"the path {path!r} has a name without letters")
    if index is None:
        head, tail = _nested(split(path), memory, content=True)
        return Plan([Splice(0, 0, head, True, tail)])
    return _insertion(index.place, path, memory, content=messages or not memory.summary)


def revision(part: Part, memory: Memory, *, messages: bool) -> Plan:
    """The splices that change a memory which is there, whose messages are written one by one.

    None where there is nothing to change.
    """
    if part.content is None or not messages:
        return Plan([*_summary(part, memory), *_content(part, WriteMode.ADD, messages=messages)])
    start = part.content.start + 1
    return Plan([*_summary(part, memory), Splice(start, start, b"", True)])


def _summary(part: Part, memory: Memory) -> list[Splice]:
    if memory.summary is None or (part.summary and part.text == memory.summary):
        return []
    text = codec.dumps(memory.summary)
    if part.summary:
        return [Splice(*part.summary, text)]
    start = part.span.start + 1
    return [Splice(start, start, _key(SUMMARY) + text + BETWEEN)]


def _content(part: Part, mode: WriteMode, *, messages: bool) -> list[Splice]:
    if part.content is None:
        end = part.span.end - 1
        head = BETWEEN + _key(CONTENT) + b"["
        return [Splice(end, end, head, True, b"]")] if messages else []
    if mode is WriteMode.REPLACE:
        return [Splice(*part.content, b"[", True, b"]")]
    end = part.content.end - 1
    return [Splice(end, end, b"", True)] if messages else []


def _insertion(place: Place | None, path: str, memory: Memory, *, content: bool) -> Plan | Failure:
    if place is None:
        return Failure("refused", "the document there is no session state: it is no JSON object")
    if place.blocked:
        taken = join(split(path)[: len(place.steps) + 1])
        return Failure("bad-name", f"{taken!r} is something else there, not a memory")
    rest = split(path)[len(place.steps) :]
    head, tail = _nested(rest, memory, content=content)
    # The members go behind those that are there, within the braces that are there.
    head = (b"" if place.empty else BETWEEN) + head[1:]
    end = place.span.end - 1
    return Plan([Splice(end, end, head, content, tail[:-1])])


def _nested(steps: tuple[str, ...], memory: Memory, *, content: bool) -> tuple[bytes, bytes]:
    """A new memory within objects of these names: what is before its messages, and behind."""
    head = b"{" + b"".join(_key(step) + b"{" for step in steps)
    head += _key(SUMMARY) + codec.dumps(memory.summary or "")
    tail = b"}" * (len(steps) + 1)
    if content:
        return head + BETWEEN + _key(CONTENT) + b"[", b"]" + tail
    return head + tail[:-1], tail[-1:]


def _key(name: str) -> bytes:
    return codec.dumps(name) + b": "
