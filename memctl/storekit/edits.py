"""Edits applied to the messages of a memory.  No I/O.

``ChangeMatcher`` applies changes while the messages of a memory stream past.  ``apply_edit``
applies an edit to a ``Snapshot``, a memory held whole.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from msgspec import Struct, field, structs

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import Dialect
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.model import (
    PAGE_ENTRIES,
    Change,
    Edit,
    Memory,
    Page,
    StoredMessage,
    WriteResult,
)
from memctl.storekit.batching import BATCH_BYTES, Group, paginate

_SOME = 1 << 16

Marks = tuple[str, ...]
TextTest = Callable[[int, bytes], bool]
"""A function of an index and a text: returns whether the message at the index has the text."""


class Keep(NamedTuple):
    """A step that keeps the messages from index ``start`` up to but not including ``stop``."""

    start: int
    stop: int


class Drop(NamedTuple):
    """A step that deletes the message at index ``at``."""

    at: int


class Mark(NamedTuple):
    """A step that gives new marks to the message at index ``at``."""

    at: int
    marks: Marks
    shape: str = ""


class Put(NamedTuple):
    """An inserted message: ``entry``."""

    entry: StoredMessage


Step = Keep | Drop | Mark | Put


class ChangeMatcher:
    """Finds the message for each change of an edit, in one pass over changes and messages.

    A deletion or a change of marks matches a message with the same id and the same old marks, in
    any order of the marks.  A deletion with a text also compares the text, to protect a message
    that has changed since the edit was planned.  An insertion follows the message with the id
    ``after``.

    Ids may repeat.  A change with an index (``at`` or ``to``) takes the match nearest to this
    index.  A change without an index takes the first match after the previous change.

    ``give`` takes changes as they arrive.  ``apply`` takes the ids and marks of the messages.
    While ``needs_changes`` is true, ``apply`` cannot continue without further changes.  After the
    last message, ``failure`` returns why the changes do not fit, or None.  After a failure, the
    caller must leave the memory unchanged.
    """

    def __init__(self, shared_ids: Set[str] = frozenset()) -> None:
        """Create a matcher for the edit of one memory.

        An inserted message must have a new id, unless the id is in ``shared_ids``.
        """
        self.written = 0
        self.deleted = 0
        self._allowed = shared_ids
        self._passed = self._left = 0
        """The number of old messages processed, and the number kept or inserted so far."""
        self._dropped = array("q")
        self._names: list[str] = []
        """The ids of deleted messages: about the first 65,536."""
        self._waiting: deque[Change] = deque()
        self._complete = False
        self._last_kept: str | None = None
        # Hashes, to save RAM: a million ids take 70 MB, a million hashes 8 MB.
        self._kept = array("q")
        self._put = array("q")

    @property
    def needs_changes(self) -> bool:
        """Return whether all given changes are used up, so that ``give`` must be called again."""
        return not (self._waiting or self._complete)

    def give(self, changes: Iterable[Change], *, last: bool) -> None:
        """Add the next changes to match; ``last`` is True in the final call."""
        self._waiting.extend(changes)
        self._complete = last

    def apply(
        self,
        ids: Sequence[str],
        marks: Sequence[Marks],
        start: int = 0,
        *,
        has_text: TextTest = lambda at, text: True,  # noqa: ARG005
    ) -> tuple[list[Step], int]:
        """Return the steps for the messages from index ``start`` on, and the next index to process.

        A step keeps, deletes, marks or inserts messages.  ``ids`` and ``marks`` belong to the
        messages, in order.  Empty ``ids`` mean the end of the memory.  ``has_text(index, text)``
        returns whether the message at the index has this text.  The returned index is ``len(ids)``
        unless ``needs_changes`` is true.
        """
        steps: list[Step] = []
        at = start
        while self._waiting:
            change = self._waiting[0]
            found = self._place(change, ids, marks, at, has_text)
            if found is None:
                self._keep(steps, ids, at, len(ids))
                return steps, len(ids)
            self._waiting.popleft()
            self._keep(steps, ids, at, found)
            at = found
            if change.old is None:
                steps.append(self._put_in(change))
            else:
                steps.append(self._changed(change, at, marks[at]))
                at += 1
        if self._complete:
            self._keep(steps, ids, at, len(ids))
            at = len(ids)
        return steps, at

    def failure(self) -> Failure | None:
        """Return why the changes do not fit, or None if they fit; call after the last message."""
        if self._waiting:
            return Failure("changed", _misfit(self._waiting[0]))
        if len(self._dropped) > _SOME and self._shared():
            return Failure("repeated-id", "messages to keep share an id with messages to delete")
        for start in range(0, len(self._put), _SOME):
            if not set(self._put[start : start + _SOME]).isdisjoint(self._kept):
                return Failure("changed", "a message to insert already exists")
        return None

    def gone(self) -> Callable[[str], bool]:
        """Return a function that tells whether the memory loses all messages with a given id."""
        dropped = set(self._dropped)
        stay = dropped.intersection((*self._kept, *self._put)) if dropped else dropped
        return lambda id: hash(id) in dropped and hash(id) not in stay

    def shared_ids(self) -> dict[str, int]:
        """Return how many messages remain with the id of a deleted message, for each such id."""
        shared = Counter(self._shared())
        return {id: shared[hash(id)] for id in self._names if hash(id) in shared}

    def _shared(self) -> list[int]:
        found: list[int] = []
        for start in range(0, len(self._dropped), _SOME):
            gone = set(self._dropped[start : start + _SOME])
            if not gone.isdisjoint(self._kept):
                found += [each for each in self._kept if each in gone]
        return found

    def _place(
        self,
        change: Change,
        ids: Sequence[str],
        marks: Sequence[Marks],
        start: int,
        has_text: TextTest,
    ) -> int | None:
        """Return the index in ``ids`` to change or to insert at; None if the place is not there."""
        expected = self._expected(change, start)
        puts = change.old is None
        if expected is not None and ids and expected >= len(ids) + puts:
            return None  # it is still to come
        nearest = start if puts and change.after == self._last_kept else None
        name = change.after if puts else change.id
        if name is None or (nearest is not None and expected in (None, nearest)):
            return nearest
        stop = len(ids)
        at = _find(ids, name, start, stop)
        while at is not None:
            if puts or _fits(change, marks[at], partial(has_text, at)):
                found = at + puts
                if expected is None:
                    return found
                if nearest is None or abs(found - expected) < abs(nearest - expected):
                    nearest = found
                stop = min(stop, expected + abs(nearest - expected))
            at = _find(ids, name, at + 1, stop)
        return nearest

    def _expected(self, change: Change, start: int) -> int | None:
        """Return the index in ``ids`` of ``to`` or ``at`` of the change; None if both are None."""
        if change.to is not None:
            return start + change.to - self._left
        return None if change.at is None else start + change.at - self._passed

    def _keep(self, steps: list[Step], ids: Sequence[str], start: int, stop: int) -> None:
        if start < stop:
            self._passed += stop - start
            self._left += stop - start
            steps.append(Keep(start, stop))
            self._kept.extend(map(hash, ids[start:stop]))
            self._last_kept = ids[stop - 1]

    def _changed(self, change: Change, at: int, marks: Marks) -> Drop | Mark:
        self._passed += 1
        if change.new is None:
            self.deleted += 1
            self._dropped.append(hash(change.id))
            if len(self._names) <= _SOME:
                self._names.append(change.id)
            return Drop(at)
        self.written += 1
        self._left += 1
        self._kept.append(hash(change.id))
        self._last_kept = change.id
        new = _in_order(marks, change)
        return Mark(at, new, change.shape if new == change.new else "")

    def _put_in(self, change: Change) -> Put:
        self.written += 1
        self._left += 1
        if change.id not in self._allowed:
            self._put.append(hash(change.id))
        marks = tuple(dict.fromkeys(change.new or ()))
        return Put(StoredMessage(change.id, change.message, marks, change.position, change.shape))


def _find(ids: Sequence[str], id: str, start: int, stop: int) -> int | None:
    try:
        return ids.index(id, start, stop)
    except ValueError:
        return None


def _fits(change: Change, marks: Marks, has_text: Callable[[bytes], bool]) -> bool:
    text = change.message if change.new is None else b""
    return _same(marks, change.old or ()) and (not text or has_text(text))


def is_same_text(text: bytes, other: bytes) -> bool:
    """Return whether two messages, as JSON texts, have equal bytes or equal JSON values."""
    if text == other:
        return True
    try:
        return jsonio.canonical(text) == jsonio.canonical(other)
    except ValueError:  # nested too deeply to compare
        return False


def _same(marks: Marks, others: Marks) -> bool:
    return marks == others or set(marks) == set(others)


def _in_order(marks: Marks, change: Change) -> Marks:
    """Return the new marks of a message with the present ``marks``.

    If the present marks are in another order than the change expects, they keep this order.
    """
    new = tuple(dict.fromkeys(change.new or ()))
    if marks == change.old:
        return new
    staying = [mark for mark in marks if mark in new]
    return (*staying, *(mark for mark in new if mark not in marks))


def _misfit(change: Change) -> str:
    if change.old is None:
        where = "at the beginning" if change.after is None else f"after {change.after!r}"
        return f"no place {where} to insert {change.id!r}"
    marks = f"the marks {', '.join(map(repr, change.old))}" if change.old else "no marks"
    return f"there is no message {change.id!r} with {marks} where it was"


class Snapshot(Struct, frozen=True):
    """A memory with all of its messages in RAM: its properties, and its messages in order.

    ::

        Snapshot(Memory(key, version=digest), messages)
    """

    memory: Memory
    messages: list[StoredMessage] = field(default_factory=list)
    exists: bool = True
    """False if the store does not contain the memory."""

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the messages of the memory in pages; one empty page if it has no messages."""
        for page in paginate(self.memory, self.messages, empty=True):
            yield page


class LargeEdit(Struct, frozen=True):
    """The edit of a memory with many changes: ``edit`` has none, ``pieces`` yields all of them.

    The caller of ``batch_edits`` must read ``pieces`` to the end before it takes the next item:
    both read from the same source.
    """

    edit: Edit
    pieces: AsyncGenerator[list[Change]]

    @property
    def memory(self) -> Memory:
        """Return the memory to edit."""
        return self.edit.memory

    async def whole(self) -> Edit:
        """Read the remaining changes; return the edit with these changes."""
        changes = [change async for some in self.pieces for change in some]
        return structs.replace(self.edit, changes=changes, last=True)

    async def drain(self) -> None:
        """Consume and drop the changes that were not consumed yet."""
        async for _ in self.pieces:
            pass


async def batch_edits(
    edits: AsyncGenerator[Edit],
    *,
    large: int = PAGE_ENTRIES,
    most_changes: int = PAGE_ENTRIES,
    most: int = PAGE_ENTRIES,
) -> AsyncGenerator[list[Edit] | LargeEdit]:
    """Yield lists of small edits, and one ``LargeEdit`` for each large edit.

    The edits of one memory are joined first.  An edit is large if it has more than ``large``
    changes or more than ``BATCH_BYTES`` of messages.  A list holds at most ``most`` edits, and
    about ``most_changes`` changes or ``BATCH_BYTES`` of messages.  The generator keeps no reference
    to a yielded edit: one message may take most of the RAM in use.
    """
    batch: Group[Edit] = Group(BATCH_BYTES, most_changes, most)
    pending = _PendingEdits(large)
    async for edit in edits:
        pending.add(edit)
        first = structs.replace(edit, changes=[], last=False)
        del edit
        await pending.fill(edits)
        size, count = pending.size, pending.count + 1
        too_many = batch.size + size > BATCH_BYTES or batch.count + count > most_changes
        if batch.items and (pending.full or too_many):
            yield batch.take()
        if pending.full:
            yield LargeEdit(first, _pieces(pending, edits))
        elif batch.add(structs.replace(first, changes=pending.take(), last=True), size, count):
            yield batch.take()
    if batch.items:
        yield batch.take()


async def _pieces(
    pending: _PendingEdits, rest: AsyncGenerator[Edit]
) -> AsyncGenerator[list[Change]]:
    """Yield the changes of a large memory in lists of one batch each."""
    while True:
        last = pending.last
        yield pending.take()
        if last:
            return
        pending.add(await anext(rest))
        await pending.fill(rest)


class _PendingEdits:
    """Collects consecutive ``Edit`` objects of one memory."""

    def __init__(self, large: int) -> None:
        self.size = self.count = 0
        self.last = False
        self._large = large
        self._changes: list[Change] = []

    def add(self, edit: Edit) -> None:
        self.last = edit.last
        self.size += sum([len(change.message) for change in edit.changes])
        self.count += len(edit.changes)
        self._changes += edit.changes

    async def fill(self, edits: AsyncGenerator[Edit]) -> None:
        """Add further edits from ``edits``, until the memory ends or ``full`` is true."""
        while not (self.last or self.full):
            self.add(await anext(edits))

    @property
    def full(self) -> bool:
        """Return whether the changes exceed the limits of a small edit."""
        return self.size > BATCH_BYTES or self.count > self._large

    def take(self) -> list[Change]:
        """Return the collected changes and release them."""
        changes = self._changes
        self._changes, self.size, self.count = [], 0, 0
        return changes


async def whole_edits(edits: AsyncGenerator[Edit]) -> AsyncGenerator[Edit]:
    """Join the consecutive edits of each memory into one edit for each memory."""
    parts: list[Edit] = []
    async for edit in edits:
        parts.append(edit)
        if edit.last:
            changes = [change for part in parts for change in part.changes]
            yield structs.replace(parts[0], changes=changes, last=True)
            parts = []


def without_summary(edit: Edit) -> Edit:
    """Return the edit without new and expected summary, for a store without summaries."""
    return structs.replace(edit, memory=replace(edit.memory, summary=None), summary=None)


def apply_edit(
    edit: Edit, there: Snapshot, dialect: Dialect = AGENTSCOPE1
) -> tuple[Snapshot | None, WriteResult]:
    """Return the memory after the edit, and the result of the edit.

    If the edit does not fit, the memory is None and the result has the reason.  ``there`` is the
    present memory, ``dialect`` the dialect of its messages.  The returned memory keeps the version
    of ``there``.
    """
    key = edit.memory.key
    summary = there.memory.summary
    if edit.summary is not None and edit.summary != (summary or ""):
        return None, WriteResult(key, failure=Failure("changed", "the summary differs"))
    matcher = ChangeMatcher(edit.shared_ids)
    matcher.give(edit.changes, last=True)
    ids, marks = [one.id for one in there.messages], [one.marks for one in there.messages]
    steps, at = matcher.apply(
        ids, marks, has_text=lambda at, text: is_same_text(there.messages[at].message, text)
    )
    steps += matcher.apply([], [])[0] if at == len(ids) else []
    failure = matcher.failure()
    if failure is not None:
        return None, WriteResult(key, failure=failure)
    memory = replace(edit.memory, version=there.memory.version)
    if there.exists:
        memory = replace(
            there.memory,
            summary=summary if edit.memory.summary is None else edit.memory.summary,
            extra=dialect.without(there.memory.extra, matcher.gone()),
        )
    result = WriteResult(key, matcher.written, matcher.deleted, shared_ids=matcher.shared_ids())
    return Snapshot(memory, list(_carried_out(steps, there.messages))), result


def _carried_out(steps: list[Step], messages: list[StoredMessage]) -> Iterator[StoredMessage]:
    for step in steps:
        match step:
            case Keep(start, stop):
                yield from messages[start:stop]
            case Mark(at, marks, shape):
                yield messages[at]._replace(marks=marks, shape=shape)
            case Put(entry):
                yield entry
            case Drop():
                pass
