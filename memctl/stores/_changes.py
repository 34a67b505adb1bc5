"""The changes of one memory, fitted to its messages as they stream past.  No I/O."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memctl.errors import Failure
from memctl.model import Change, Entry

_SOME = 1 << 16

Marks = tuple[str, ...]


class Keep(NamedTuple):
    """Messages that stay as they are: those from ``start``, before ``stop``."""

    start: int
    stop: int


class Drop(NamedTuple):
    """A message that goes."""

    at: int


class Mark(NamedTuple):
    """A message that stays, with these marks."""

    at: int
    marks: Marks


class Put(NamedTuple):
    """A message that comes here."""

    entry: Entry


Step = Keep | Drop | Mark | Put


class Changes:
    """Fits the changes of an edit to the messages of a memory, in one pass over both.

    A change waits for the next message with its id and its old marks, whatever their order.  One
    that puts a message in waits until the message ``after`` is the last that stays.  Ids may
    repeat: a change is for the first message that it fits, behind that of the change before it.

    ``give`` takes the changes as they come, ``apply`` the ids and marks of the messages; more
    changes are needed where it is ``hungry``.  When all messages have passed, ``failure`` tells
    whether each change found its place: if not, the memory must be left alone.
    """

    def __init__(self) -> None:
        self.written = 0
        self.deleted = 0
        self._waiting: deque[Change] = deque()
        self._complete = False
        self._last_kept: str | None = None
        # As hashes: the ids of a million messages would take 70 MB, these 8.
        self._kept = array("q")
        self._put = array("q")

    @property
    def hungry(self) -> bool:
        """Whether there are changes to come, and none in hand."""
        return not (self._waiting or self._complete)

    def give(self, changes: Iterable[Change], *, last: bool) -> None:
        """Takes the next changes of the memory; ``last`` says that no more will come."""
        self._waiting.extend(changes)
        self._complete = last

    def apply(
        self, ids: Sequence[str], marks: Sequence[Marks], start: int = 0
    ) -> tuple[list[Step], int]:
        """What becomes of the next messages, from ``start`` on, and how many are settled then.

        All of them are, unless it is hungry.  Without messages it is the end of the memory that
        comes next.
        """
        steps: list[Step] = []
        at = start
        while self._waiting:
            change = self._waiting[0]
            found = self._place(change, ids, marks, at)
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
        """Why the changes do not fit the memory, now that all of its messages have passed."""
        if self._waiting:
            return Failure("changed", _misfit(self._waiting[0]))
        for start in range(0, len(self._put), _SOME):
            if not set(self._put[start : start + _SOME]).isdisjoint(self._kept):
                return Failure("changed", "a message that was to be put in is there already")
        return None

    def _place(
        self, change: Change, ids: Sequence[str], marks: Sequence[Marks], start: int
    ) -> int | None:
        """Where the change belongs: at the message, or before it where one is put in."""
        if change.old is not None:
            at = _find(ids, change.id, start)
            while at is not None and not _same(marks[at], change.old):
                at = _find(ids, change.id, at + 1)
            return at
        if change.after == self._last_kept:
            return start
        at = None if change.after is None else _find(ids, change.after, start)
        return None if at is None else at + 1

    def _keep(self, steps: list[Step], ids: Sequence[str], start: int, stop: int) -> None:
        if start < stop:
            steps.append(Keep(start, stop))
            self._kept.extend(map(hash, ids[start:stop]))
            self._last_kept = ids[stop - 1]

    def _changed(self, change: Change, at: int, marks: Marks) -> Drop | Mark:
        if change.new is None:
            self.deleted += 1
            return Drop(at)
        self.written += 1
        self._kept.append(hash(change.id))
        self._last_kept = change.id
        return Mark(at, _in_order(marks, change))

    def _put_in(self, change: Change) -> Put:
        self.written += 1
        self._put.append(hash(change.id))
        marks = tuple(dict.fromkeys(change.new or ()))
        return Put(Entry(change.id, change.message, marks, change.index))


def _find(ids: Sequence[str], id: str, start: int) -> int | None:
    try:
        return ids.index(id, start)
    except ValueError:
        return None


def _same(marks: Marks, others: Marks) -> bool:
    return marks == others or set(marks) == set(others)


def _in_order(marks: Marks, change: Change) -> Marks:
    """The new marks; where the old ones had come into another order, those that stay keep it."""
    new = tuple(dict.fromkeys(change.new or ()))
    if marks == change.old:
        return new
    staying = [mark for mark in marks if mark in new]
    return (*staying, *(mark for mark in new if mark not in marks))


def _misfit(change: Change) -> str:
    if change.old is None:
        where = "at the beginning" if change.after is None else f"behind {change.after!r}"
        return f"there is no place {where} to put in {change.id!r}"
    marks = f"the marks {', '.join(map(repr, change.old))}" if change.old else "no marks"
    return f"there is no message {change.id!r} with {marks} where it was"
