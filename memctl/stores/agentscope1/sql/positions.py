"""The positions of messages to insert into a session.  No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct, field


class InsertRun(NamedTuple):
    """Messages to insert next to each other.

    ``after`` is the index of the preceding message, None at the beginning of the memory.  ``low``
    is the last index that an earlier run got after the same message; None without such a run.
    ``wanted`` has the index that each message had before; None if unknown.
    """

    after: int | None
    low: int | None
    wanted: Sequence[int | None]


class Shift(NamedTuple):
    """Adds ``by`` to the stored indexes from ``low`` up to the ``low`` of the next shift."""

    low: int
    by: int


class PositionAllocator(Struct):
    """Chooses indexes for new messages in a session.

    ``own`` are the sorted indexes of the memory, ``others`` the sorted indexes of other users in
    the session.  Example::

        allocator = PositionAllocator(array("q", [0, 1]), array("q"))
        allocator.insert([InsertRun(0, None, [None])])  # ([[1]], [Shift(low=1, by=1)])
    """

    own: array[int] = field(default_factory=lambda: array("q"))
    others: array[int] = field(default_factory=lambda: array("q"))

    def sort(self) -> None:
        """Sort ``own`` and ``others``."""
        self.own = array("q", sorted(self.own))
        self.others = array("q", sorted(self.others))

    def remove(self, deleted: set[int]) -> None:
        """Remove the indexes of deleted messages of the memory."""
        self.own = array("q", [index for index in self.own if index not in deleted])

    def shared(self, indexes: Iterable[int], least: int) -> set[int]:
        """Return the indexes that at least ``least`` messages of the memory have."""
        return {index for index in indexes if _count_of(self.own, index) >= least}

    def follows(
        self,
        after: tuple[int, bytes] | None,
        wanted: Sequence[tuple[int, bytes]],
        rows: Mapping[int, Sequence[bytes]],
    ) -> bool:
        """Return whether new messages at the places ``wanted`` directly follow ``after``, in order.

        A place is an index and a row id.  ``after`` is the place of the message before the new
        messages, None at the beginning of the memory.  ``rows`` has the row ids of messages with
        the same index, by index.
        """

        def rank(place: tuple[int, bytes]) -> int:
            index, row_id = place
            return bisect_left(self.own, index) + sum([one < row_id for one in rows.get(index, ())])

        first = 0 if after is None else rank(after) + 1
        rising = all(one < other for one, other in pairwise(wanted))
        return rising and all(rank(place) == first for place in wanted)

    def insert(self, runs: Sequence[InsertRun]) -> tuple[list[list[int]], list[Shift]]:
        """Choose an index for each message of the runs, which are in the order of the memory.

        Returns the indexes of each run, and the shifts that make room between the stored messages.
        A message keeps the index that it had before, if this still fits the order.

        Raises:
            OverflowError: an index would exceed 64 bits.
        """
        shift = 0
        shifts: list[Shift] = []
        allocated = []
        for run in runs:
            at = _count_before(self.own, run)
            high = self.own[at] + shift if at < len(self.own) else None
            taken = self._taken(run, at, shift)
            indexes = _allocate(run.wanted, self._low(run, shift), high, taken)
            allocated.append(array("q", indexes).tolist())
            if high is not None and indexes[-1] >= high:
                shift += indexes[-1] + 1 - high
                shifts.append(Shift(self.own[at], shift))
        self._apply(shifts)
        return allocated, shifts

    def _low(self, run: InsertRun, shift: int) -> int:
        """Return the index that all indexes of a run must exceed.

        ``shift`` is the distance by which earlier runs shift the message before the run.
        """
        if run.low is not None:
            return run.low
        if run.after is not None:
            return run.after + shift
        # Without former indexes, a new memory of the session follows the last message, as in
        # AgentScope's ``_get_next_index``.
        if not self.own and self.others and None in run.wanted:
            return self.others[-1]
        # Indexes before the first message may be negative, because agents read only the highest
        # index.
        number = len(run.wanted)
        if self.own and None in run.wanted and self._room() < number:
            return min([self.own[0], *self.others[:1]]) - number - 1
        return -1

    def _room(self) -> int:
        first = self.own[0]
        return first - bisect_left(self.others, first) + bisect_left(self.others, 0)

    def _taken(self, run: InsertRun, at: int, shift: int) -> set[int]:
        """Return the indexes of other users between the messages before and after a run.

        ``at`` is the number of the memory's messages before the run.  ``shift`` is the distance by
        which earlier runs shift these indexes.
        """
        begin = _count_before(self.others, run)
        end = bisect_left(self.others, self.own[at]) if at < len(self.own) else len(self.others)
        return {index + shift for index in self.others[begin:end]}

    def _apply(self, shifts: list[Shift]) -> None:
        for indexes in (self.own, self.others) if shifts else ():
            ends = [bisect_left(indexes, shift.low) for shift in shifts] + [len(indexes)]
            for shift, start, end in zip(shifts, ends[:-1], ends[1:], strict=True):
                indexes[start:end] = array("q", [index + shift.by for index in indexes[start:end]])


def _count_of(indexes: array[int], index: int) -> int:
    return bisect_right(indexes, index) - bisect_left(indexes, index)


def _count_before(indexes: array[int], run: InsertRun) -> int:
    before = run.after if run.low is None else run.low
    return 0 if before is None else bisect_right(indexes, before)


def _allocate(
    wanted: Sequence[int | None], low: int, high: int | None, taken: Container[int]
) -> list[int]:
    """Return an index for each of ``wanted``, in rising order above ``low``.

    Keeps a wanted index if possible.  A new index is not in ``taken``, and if possible below
    ``high``.
    """
    if None not in wanted:
        kept = [index for index in wanted if index is not None]
        if all(one < other for one, other in zip([low, *kept], kept, strict=False)):
            return kept
    indexes: list[int] = []
    for place, index in enumerate(wanted):
        rest = len(wanted) - place - 1
        if index is None or index <= low or (high is not None and index + rest >= high):
            index = low + 1
            while index in taken:
                index += 1
        low = index
        indexes.append(low)
    return indexes
