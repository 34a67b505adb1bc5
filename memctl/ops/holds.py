"""The holds on a store, as every operation that deletes memories reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from functools import partial

from memctl.errors import MemctlError, UsageError
from memctl.holds import Hold, Holds
from memctl.journal.holds import HoldRecord
from memctl.location import Location, visible
from memctl.ops.places import Locate, is_at
from memctl.ops.subject import readings
from memctl.registry import parse
from memctl.store import Store


class HoldSource:
    """The source of all holds: those in the record of ``memctl hold``, and given ones.

    ::

        holds = HoldSource().read(store)
        if failure := holds.failure(key):
            ...  # leave the memory alone

    An operation reads the holds before it plans, and again before it deletes.
    """

    def __init__(
        self,
        given: Iterable[Hold] | Callable[[], Iterable[Hold]] = (),
        locate: Locate = parse,
        note: Callable[[str], None] | None = None,
        record: HoldRecord | None = None,
    ) -> None:
        """``given`` are further holds, or a function that reads them anew each time.

        ``locate`` returns the location of the store that a hold names.  ``note`` gets one text
        about holds that have ended.  ``record`` is None for the usual record.
        """
        self._given = given if callable(given) else partial(iter, tuple(given))
        self._locate = locate
        self._note = note
        self._record = record or HoldRecord()

    def read(self, store: Store) -> Holds:
        """Return the holds that are in force on an open store, read anew.

        Raises:
            BadData: the record of the holds is damaged.
            UsageError: a hold is not valid, or names a store that is not known.
            Unavailable: the operating system refuses to read the record.
        """
        recorded = [one.hold for one in self._record.all() if one.removed is None]
        found = [hold for hold in (*self._given(), *recorded) if self._is_on(hold, store.location)]
        today = date.today()
        self._note_ended([hold for hold in found if hold.ended(today)])
        in_force = (hold for hold in found if not hold.ended(today))
        return Holds(in_force, partial(readings, store.kind))

    def _is_on(self, hold: Hold, location: Location) -> bool:
        """Return whether a hold is on the store at ``location``.

        The name of the store in the hold may mean another store by now: both are held.
        """
        if hold.store is None:
            return True
        known = []
        for locate, text in ((self._locate, hold.store), (parse, hold.place)):
            with suppress(MemctlError):
                known += [locate(text)] if text else []
        if not known:
            raise UsageError(
                f"the hold {hold.id} is on a store that is not known: {visible(hold.store)}",
                "name the store in the configuration again, or remove the hold",
            )
        return any(is_at(one, location) for one in known)

    def _note_ended(self, ended: list[Hold]) -> None:
        """Note, once, that holds have ended and no longer hold."""
        if not ended or self._note is None:
            return
        last = max(ended, key=lambda hold: hold.until or date.min)
        when = f"on {last.until} ({visible(last.reason)})"
        if len(ended) == 1:
            self._note(f"a hold ended {when}: its memories are no longer held")
        else:
            self._note(
                f"{len(ended):,} holds ended, the last {when}: their memories are no longer held"
            )
        self._note = None


class NoHolds(HoldSource):
    """The source for an operation that holds do not hinder, such as an undo."""

    def __init__(self) -> None:
        super().__init__()

    def read(self, store: Store) -> Holds:  # noqa: ARG002 - there are none on any store
        """Return no holds."""
        return Holds()
