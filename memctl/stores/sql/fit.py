"""Whether changes fit what is there, and what to do with which rows.  No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memctl.errors import Failure
from memctl.model import Change, StoredMessage
from memctl.stores.sql.places import Run


class Puts(NamedTuple):
    """Messages to be put in behind one other; ``place`` says where that is."""

    after: str | None
    place: Run
    entries: list[StoredMessage]


class Held(NamedTuple):
    """A message that is there."""

    row_id: str
    index: int  # type: ignore[assignment]
    marks: frozenset[str]


@dataclass
class Fit:
    """What is to be done with the rows of one memory."""

    doomed: list[str] = field(default_factory=list)
    indexes: set[int] = field(default_factory=set)
    """Where the doomed rows stood."""
    cleared: list[str] = field(default_factory=list)
    """Rows that lose a mark: all of theirs are taken away, and those that stay are given again."""
    marks: list[tuple[str, str]] = field(default_factory=list)
    puts: dict[str | None, list[Change]] = field(default_factory=dict)
    """What is to be put in behind which message."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Messages to be put in that are there, with their rows: those must go first."""

    def runs(self, held: Mapping[str, Held], last: tuple[str | None, int] | None) -> list[Puts]:
        """What is to be put in, in the order of the places.

        ``last`` says behind what the last message was put in before, and the index that it got.
        """
        found = []
        for after, changes in self.puts.items():
            at = None if after is None else held[after].index
            low = last[1] if last and last[0] == after else None
            place = Run(at, low, [change.position for change in changes])
            entries = [StoredMessage(one.id, one.message, one.new or ()) for one in changes]
            found.append(Puts(after, place, entries))
        return sorted(found, key=lambda one: (one.place.after is not None, one.place.after or 0))


def fit(changes: Sequence[Change], held: Mapping[str, Held]) -> Fit | Failure:
    """Compares changes of one memory with its messages, by id."""
    found = Fit()
    done: set[str] = set()
    for change in changes:
        if change.old is None:
            found.puts.setdefault(change.after, []).append(change)
            continue
        there = held.get(change.id)
        if there is None or change.id in done:
            return Failure("changed", f"there is no message {change.id!r} any more")
        if there.marks != set(change.old):
            return Failure("changed", f"the message {change.id!r} is marked otherwise")
        done.add(change.id)
        if change.new is None:
            found.doomed.append(there.row_id)
            found.indexes.add(there.index)
        else:
            _mark(found, there, change.new)
    return _put(found, held) or found


def _mark(found: Fit, there: Held, new: tuple[str, ...]) -> None:
    wanted = dict.fromkeys(new)
    if there.marks <= wanted.keys():
        added = [mark for mark in wanted if mark not in there.marks]
    else:
        found.cleared.append(there.row_id)
        added = list(wanted)
    found.marks += [(there.row_id, mark) for mark in added]


def _put(found: Fit, held: Mapping[str, Held]) -> Failure | None:
    """Looks at what is to be put in; why it cannot be."""
    doomed = set(found.doomed)
    ids: set[str] = set()
    for after, changes in found.puts.items():
        if after is not None and (after not in held or held[after].row_id in doomed):
            return Failure("changed", f"there is no message {after!r} to put others behind")
        for change in changes:
            if change.id in ids:
                return Failure("changed", f"the message {change.id!r} is to be put in twice")
            ids.add(change.id)
            there = held.get(change.id)
            if there and there.row_id not in doomed:
                found.blocked[change.id] = there.row_id
    return None
