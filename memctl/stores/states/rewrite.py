"""Writes a new document from the bytes of the old document, splices and messages."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import ClassVar

from memctl.errors import Failure
from memctl.json import jsonio
from memctl.model import Change, Edit, Memory, StoredMessage
from memctl.storekit.edits import ChangeMatcher, Drop, Keep, Mark, Put, Step
from memctl.stores.states.document import Document, DocumentTooLarge, ForeignId
from memctl.stores.states.memories import MemoryPart
from memctl.stores.states.messages import BARE, Messages, marks_of_shape
from memctl.stores.states.splices import BETWEEN, RewritePlan

_LARGE_MESSAGE = 1024 * 1024
_BATCH = 1000


class Draft(ABC):
    """A draft of a new document, which later replaces the old document."""

    @abstractmethod
    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the draft.

        Raises:
            DocumentTooLarge: the draft is larger than the store accepts.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Remove the draft, unless it has replaced the old document."""


class HeldDraft(Draft):
    """A draft that is held in memory.

    A subclass sets ``largest``, the maximum size in bytes, and ``too_large``, the error text for a
    larger document.
    """

    largest: ClassVar[int]
    too_large: ClassVar[str]

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self._size = 0

    def data(self) -> bytes:
        """Return the bytes of the draft."""
        return b"".join(self.pieces)

    async def write(self, data: bytes | memoryview) -> None:
        self._size += len(data)
        if self._size > self.largest:
            raise DocumentTooLarge(self.too_large)
        self.pieces.append(data)

    async def discard(self) -> None:
        self.pieces.clear()


class Rewrite:
    """Writes a new document in which one memory is changed.

    Call ``add`` with the new messages of each page, then ``finish``, which completes the draft.
    """

    def __init__(
        self, memory: Memory, draft: Draft, old: Document | None, plan: RewritePlan
    ) -> None:
        """``plan`` has the splices for the document ``old``; ``old`` is None for a new document."""
        self.memory = memory
        self.draft = draft
        self.written = 0
        self.deleted = plan.deleted
        self.before = plan.before
        self.shared_ids: dict[str, int] = {}
        self._old = memoryview(old.data if old else b"")
        self._splices = sorted(plan.splices, key=lambda splice: splice.start)
        self._copied = 0
        """The number of bytes of the old document that were copied or replaced."""
        self._first = plan.first
        self._tail: bytes | None = None
        """The bytes after the messages; None before the first message."""
        self._fault: DocumentTooLarge | ForeignId | None = None

    async def add(self, entries: list[StoredMessage]) -> None:
        """Append new messages to the list of messages in the draft.

        The first call also writes the bytes of the document that precede these messages.
        """
        if self._fault or not entries:
            return
        try:
            if self._tail is None:
                await self._begin()
            await self._add(entries)
        except (DocumentTooLarge, ForeignId) as error:
            self._fault = error  # later pages are consumed, and ``finish`` returns the failure

    async def _add(self, entries: list[StoredMessage]) -> None:
        pieces: list[bytes] = []
        for entry in entries:
            _check_id(entry)
            bare = entry.shape == BARE and not entry.marks
            opening = b"" if bare else b"["
            pieces.append(opening if self._first else BETWEEN + opening)
            self._first = False
            if len(entry.message) > _LARGE_MESSAGE:  # do not copy it with the others
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
        """Complete the draft: write the bytes that follow the new messages.

        Returns None if the draft is complete.  Returns the failure ``refused`` if the document is
        too large for the store, or if the JSON of a message has another id than
        ``StoredMessage.id``.
        """
        try:
            if self._fault:
                raise self._fault
            await self._finish()
        except (DocumentTooLarge, ForeignId) as error:
            return Failure("refused", error.message)
        return None

    async def _finish(self) -> None:
        if self._tail is None:
            await self._begin()
        await self.draft.write(self._tail or b"")
        while self._splices:
            await self._apply()
        await self._copy_to(len(self._old))

    async def _begin(self) -> None:
        self._tail = b""
        while self._splices:
            splice = self._splices[0]
            await self._apply()
            if splice.stream:
                self._tail = splice.tail
                return

    async def _apply(self) -> None:
        splice = self._splices.pop(0)
        await self._copy_to(splice.start)
        await self.draft.write(splice.text)
        self._copied = splice.end

    async def _copy_to(self, end: int) -> None:
        if self._copied < end:
            await self.draft.write(self._old[self._copied : end])
            self._copied = end


def _check_id(entry: StoredMessage) -> None:
    """Check that the id in the JSON of a message is ``StoredMessage.id``.

    Raises:
        ForeignId: the ids differ.
    """
    own = jsonio.field(entry.message, "id") or ""
    if own != entry.id:
        raise ForeignId(f"the message {entry.id!r} has the id {own!r} in its text")


class EditRewrite(Rewrite):
    """Writes a new document in which the changes of an edit are made to one memory.

    The bytes of unchanged messages are copied.
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
        """``part`` is the memory in the document ``old``; None for a new memory.

        ``pieces`` yields the changes that follow ``edit.changes``; None if no changes follow.
        """
        super().__init__(edit.memory, draft, old, plan)
        self._is_empty = edit.last and not edit.changes
        self._pieces = pieces
        self._content = part.content if part else None
        self._messages = part.messages if part else Messages(b"")
        self._changes = ChangeMatcher(edit.shared_ids)
        self._changes.give(edit.changes, last=edit.last)
        self._untouched = True
        """True if the next message to copy directly follows the bytes in the draft."""
        self._misfit: Failure | None = None

    async def finish(self) -> Failure | None:
        """Complete the draft: write the changed memory, and the bytes that follow it.

        Returns None if the draft is complete.  Returns the failure ``changed`` if the edit does not
        fit the stored memory, or the failure ``refused`` as ``Rewrite.finish`` does.
        """
        return await super().finish() or self._misfit

    async def _finish(self) -> None:
        if not self._is_empty:
            await self._begin()
            await self._change()
            self.written, self.deleted = self._changes.written, self._changes.deleted
            self._misfit = self._changes.failure()
            self.shared_ids = {} if self._misfit else self._changes.shared_ids()
        if self._misfit is None:
            await super()._finish()

    async def _change(self) -> None:
        count = len(self._messages)
        for start in range(0, count, _BATCH):
            await self._change_some(range(start, min(start + _BATCH, count)))
            await asyncio.sleep(0)
        await self._change_some(range(count, count))
        if self._content is not None and not self._untouched:
            self._copied = self._content.end - 1

    async def _change_some(self, indexes: range) -> None:
        """Write the messages with these indexes, and apply the changes to them.

        The empty range at the end of the memory stands for new messages after the last message.
        """
        changes = self._changes
        ids, marks = self._messages.ids(indexes), self._messages.marks(indexes)
        at = 0
        while True:
            if changes.needs_changes and self._pieces is not None:
                piece = await anext(self._pieces, None)
                changes.give(piece or (), last=piece is None)
                del piece
            steps, at = changes.apply(
                ids,
                marks,
                at,
                has_text=lambda each, text: self._messages.has_text(indexes.start + each, text),
            )
            for step in steps:
                await self._step(step, indexes.start)
            if not changes.needs_changes:
                return

    async def _step(self, step: Step, base: int) -> None:
        messages = self._messages
        match step:
            case Keep(start, stop):
                await self._go_to(messages.item_start(base + start))
                await self._copy_to(messages.item_ends[base + stop - 1])
            case Mark(at, marks, shape):
                await self._go_to(messages.item_start(base + at))
                await self._mark(base + at, marks, shape)
            case Put(entry):
                await self._add([entry])
                self._untouched = False
            case Drop():
                self._untouched = False

    async def _go_to(self, start: int) -> None:
        """Prepare to copy the message that starts at ``start``; write a missing comma."""
        if not self._untouched:
            if not self._first:
                await self.draft.write(BETWEEN)
            self._copied = start
        self._untouched, self._first = True, False

    async def _mark(self, at: int, marks: tuple[str, ...], shape: str) -> None:
        messages = self._messages
        start, end = messages.item_start(at), messages.item_ends[at]
        span = messages.marks_span(at)
        text = marks_of_shape(shape, marks) or jsonio.dumps(marks)
        if shape == BARE and not marks and span is not None:
            await self._copy_to(start)
            self._copied += len(b"[")
            await self._copy_to(messages.ends[at])
            self._copied = end
        elif [marks] == messages.marks(range(at, at + 1)):
            await self._copy_to(end)
        elif span is None:  # a bare message becomes a pair
            await self._copy_to(start)
            await self.draft.write(b"[")
            await self._copy_to(end)
            await self.draft.write(BETWEEN + text + b"]")
        else:
            await self._copy_to(span.start)
            await self.draft.write(text)
            self._copied = span.end
            await self._copy_to(end)
