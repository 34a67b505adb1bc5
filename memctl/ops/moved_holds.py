"""Holds that follow sessions to other names: what is held under the old name stays held.

A hold on the new name is recorded before the first session moves.  The hold on the old name is
removed after the last one, if it is on this store alone and holds nothing there any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from memctl.errors import Failure, Loss, NotFound
from memctl.holds import Hold, Holds, one_form
from memctl.journal.holds import HoldRecord
from memctl.journal.renames import Moves
from memctl.journal.runs import describe_run
from memctl.location import Location, visible
from memctl.model import MemoryKey
from memctl.ops.holds import HoldSource, names_in, nothing_but_held
from memctl.ops.names import list_names
from memctl.ops.same_store import is_at
from memctl.selection import Selection
from memctl.store import Store


@dataclass
class MovedHolds:
    """The holds of the record that follow a rename, by ``find``."""

    record: HoldRecord = field(default_factory=HoldRecord)
    notes: list[str] = field(default_factory=list)
    """A text for people about each hold that follows."""
    _new: list[tuple[Hold, str]] = field(default_factory=list)
    """The holds to record before the first session moves, with the ids of those on old names."""
    old: list[Hold] = field(default_factory=list)
    """The holds on the store alone, to remove after the last session has moved."""
    unheld: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    """Each held session that no hold would hold as long under its new name, by its old name."""
    _added: list[Hold] = field(default_factory=list)

    @classmethod
    async def find(
        cls, source: HoldSource, store: Store, moves: Moves, own: Location
    ) -> MovedHolds:
        """Return what follows ``moves`` of the sessions of an open store; nothing is recorded yet.

        ``own`` is the location of the store as the run names it.

        Raises:
            MemctlError: as ``HoldSource.read`` and ``Store.is_alone``.
        """
        found = cls(source.record)
        holds = source.in_force(store)
        recorded = {one.hold.id: one.follows for one in source.record.all()}
        for hold in holds:
            after = _renamed(hold, moves, names_in(store)) if hold.id in recorded else None
            if after is None:
                continue
            alone = await _is_alone(source, hold, store, own)
            if not alone:
                place = describe_run("hold", own.label, own).argument
                after = replace(after, store=place, place=place)
            there = [one for one in holds if _is_for(one, after)]
            goes = alone or any(one.id == recorded[hold.id] for one in there)  # a way back
            if goes:
                found.old.append(hold)
            if not any(_is_for(one, after) for one in (*there, *found._holds)):
                found._new.append((after, hold.id))
            found.notes.append(_told(hold, after, stays=not goes))
        found.unheld = _unheld(holds, [*holds, *found._holds], moves, names_in(store))
        return found

    @property
    def _holds(self) -> list[Hold]:
        return [hold for hold, _ in self._new]

    def refuse_unheld(self) -> None:
        """Refuse a rename after which a session would be held for a shorter time, or not at all.

        Raises:
            Loss: there is such a session, as a hold of the configuration does not follow.
        """
        if self.unheld:
            error = nothing_but_held([one for one in self.unheld if one[0].session] or self.unheld)
            raise Loss(
                error.message,
                "nothing was changed; hold the new name, too, where this hold is: memctl hold list",
            )

    def follow(self) -> None:
        """Record the holds on the new names, durably.

        Raises:
            MemctlError: as ``HoldRecord.add``; no session may move.
        """
        for hold, follows in self._new:
            self._added.append(self.record.add(hold, follows).hold)

    def stay(self) -> None:
        """Remove the holds on the new names again, as no session has moved.

        Raises:
            MemctlError: as ``HoldRecord.remove``.
        """
        self._remove(self._added, "nothing was renamed")

    async def leave(self, store: Store) -> None:
        """Remove each hold on an old name that holds nothing on the store any more.

        Raises:
            MemctlError: as ``HoldRecord.remove`` and ``Store.names``; the holds stay.
        """
        if not self.old:
            return
        names = await list_names(store, Selection())
        idle = [one for one in self.old if not any(map(Holds([one], names_in(store)).on, names))]
        self._remove(idle, "the name was renamed")

    def _remove(self, holds: Iterable[Hold], reason: str) -> None:
        for hold in holds:
            try:
                self.record.remove(hold.id, reason)
            except NotFound:  # the operator has removed it
                continue


async def _is_alone(source: HoldSource, hold: Hold, store: Store, own: Location) -> bool:
    """Return whether a hold is on the open store and on nothing else; ``own`` is as in ``find``."""
    if hold.store is None:
        return False
    places = [*source.places(hold), own]
    is_here = all(is_at(one, own) and not one.options for one in places)
    return is_here and await store.is_alone()


def _renamed(
    hold: Hold, moves: Moves, readings: Callable[[MemoryKey], Iterable[MemoryKey]]
) -> Hold | None:
    """Return a hold with the new name instead of the old name; None if it names nothing moved."""
    user = _new_name(hold.user, {old.user: new.user for old, new in moves.items()})
    session = _new_name(hold.session, {old.session: new.session for old, new in moves.items()})
    if (user, session) == (hold.user, hold.session):
        return None
    whole_users = {one_form(old.user) for old in moves if not old.session}
    if one_form(hold.user) not in whole_users and not any(map(Holds([hold], readings).on, moves)):
        return None
    return replace(hold, user=user, session=session)


def _new_name(name: str | None, names: Mapping[str, str]) -> str | None:
    found = {one_form(old): new for old, new in names.items() if old != new}
    return found.get(one_form(name), name)


def _is_for(hold: Hold, after: Hold) -> bool:
    """Return whether a hold is for the names and the reason of another, and lasts as long."""
    names = [(one_form(one.user), one_form(one.session), one.reason) for one in (hold, after)]
    return names[0] == names[1] and hold.lasts_as_long_as(after)


def _unheld(
    before: list[Hold],
    after: list[Hold],
    moves: Moves,
    readings: Callable[[MemoryKey], Iterable[MemoryKey]],
) -> list[tuple[MemoryKey, Failure]]:
    was, then = (  # of holds with the same names, the one that lasts longest
        Holds(sorted(holds, key=_end, reverse=True), readings) for holds in (before, after)
    )
    return [
        (old, hold.failure)
        for old, new in moves.items()
        for hold in was.every(old)
        if not any(one.lasts_as_long_as(hold) for one in then.every(new))
    ]


def _end(hold: Hold) -> date:
    return hold.until or date.max


def _told(hold: Hold, after: Hold, *, stays: bool) -> str:
    kept = "; it stays on the old name, too, which it may hold elsewhere" if stays else ""
    return f"the hold {hold.id} follows: {visible(replace(after, store=None).name)}{kept}"
