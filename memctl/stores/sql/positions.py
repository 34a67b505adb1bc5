"""Where messages can be put in among those of a session: the arithmetic of positions.  No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Run(NamedTuple):
    """Messages to be put in next to each other.

    ``after`` is the index of the message that they follow, None at the beginning.  ``low`` is the
    last index that was given away behind it.  ``wanted`` are the indexes that they had.
    """

    after: int | None
    low: int | None
    wanted: Sequence[int | None]


class Move(NamedTuple):
    """Rows with an index of ``low`` or above move up by ``by``, up to the next move."""

    low: int
    by: int


@dataclass
class Places:
    """The indexes of a session in order: those of one memory, and those of other users."""

    own: array[int] = field(default_factory=lambda: array("q"))
    others: array[int] = field(default_factory=lambda: array("q"))

    def sort(self) -> None:
        """Brings them in order, after they were collected in any."""
        self.own = array("q", sorted(self.own))
        self.others = array("q", sorted(self.others))

    def forget(self, gone: set[int]) -> None:
        """Messages of the memory with these indexes were deleted."""
        self.own = array("q", [index for index in self.own if index not in gone])

    def put(self, runs: Sequence[Run]) -> tuple[list[list[int]], list[Move]]:
        """An index for each message of the runs, which are in order, and what must move for them.

        A message keeps the index that it had where its place still is there.
        """
        shift = 0
        moves: list[Move] = []
        given = []
        for run in runs:
            at = _behind(self.own, run)
            high = self.own[at] + shift if at < len(self.own) else None
            numbers = _numbers(run.wanted, self._low(run, shift), high, self._taken(run, at, shift))
            given.append(numbers)
            if high is not None and numbers[-1] >= high:
                shift += numbers[-1] + 1 - high
                moves.append(Move(self.own[at], shift))
        self._move(moves)
        return given, moves

    def _low(self, run: Run, shift: int) -> int:
        """The index that the messages of a run come behind."""
        if run.low is not None:
            return run.low
        if run.after is not None:
            return run.after + shift
        # A memory that is new in the session follows what there is, as AgentScope's
        # ``_get_next_index`` has it, unless it knows better.
        if not self.own and self.others and None in run.wanted:
            return self.others[-1]
        # In front of all others there is always room, below zero if need be, and nothing has to
        # move: agents look for the highest index alone.
        number = len(run.wanted)
        if self.own and None in run.wanted and self.own[0] < number:
            return min([self.own[0], *self.others[:1]]) - number - 1
        return -1

    def _taken(self, run: Run, at: int, shift: int) -> set[int]:
        """The indexes of other users that are in the way."""
        begin = _behind(self.others, run)
        end = bisect_left(self.others, self.own[at]) if at < len(self.own) else len(self.others)
        return {index + shift for index in self.others[begin:end]}

    def _move(self, moves: list[Move]) -> None:
        for indexes in (self.own, self.others) if moves else ():
            ends = [bisect_left(indexes, move.low) for move in moves] + [len(indexes)]
            for move, start, end in zip(moves, ends[:-1], ends[1:], strict=True):
                indexes[start:end] = array("q", [index + move.by for index in indexes[start:end]])


def _behind(indexes: array[int], run: Run) -> int:
    """How many of the indexes come before the place of a run."""
    before = run.after if run.low is None else run.low
    return 0 if before is None else bisect_right(indexes, before)


def _numbers(
    wanted: Sequence[int | None], low: int, high: int | None, taken: Container[int]
) -> list[int]:
    """Rising numbers above ``low``, below ``high`` where that is possible."""
    if None not in wanted:
        kept = [number for number in wanted if number is not None]
        if all(one < other for one, other in zip([low, *kept], kept, strict=False)):
            return kept
    numbers: list[int] = []
    for place, number in enumerate(wanted):
        rest = len(wanted) - place - 1
        if number is None or number <= low or (high is not None and number + rest >= high):
            number = low + 1
            while number in taken:
                number += 1
        low = number
        numbers.append(low)
    return numbers
