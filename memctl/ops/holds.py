"""The holds on a store, as every operation that deletes memories reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial

from memctl.errors import Failure, Loss, MemctlError, NotFound, UsageError
from memctl.holds import HELD, LIST, Hold, Holds
from memctl.journal.holds import HoldRecord
from memctl.layouts.files import SUFFIX, split_stem
from memctl.location import Location, same_file, visible
from memctl.model import MemoryKey
from memctl.ops.data_subject import readings
from memctl.ops.names import list_names, refuse_absent
from memctl.ops.observer import Observer, opened
from memctl.ops.same_store import Locate, is_at
from memctl.registry import file_of, make_store, parse
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.named_file import NamedFile

_OF_SESSIONS = {"state", "sessions", "agentscope2-files"}
"""The kinds of folders of sessions, and of the files in them."""


def all_held(failures: Sequence[tuple[MemoryKey, Failure]]) -> bool:
    """Return whether memories have failed, all of them because they are held."""
    return bool(failures) and all(failure.code == HELD for _, failure in failures)


def nothing_but_held(failures: Sequence[tuple[MemoryKey, Failure]]) -> Loss:
    """Return the error of a run that did nothing, because all that was selected is held."""
    key, failure = failures[0]
    first = f"{key}: {failure.message}"
    number = len(failures)
    return Loss(
        first if number == 1 else f"{number:,} memories are held; the first: {first}",
        f"nothing was changed; {LIST}",
    )


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
        self.record = record or HoldRecord()

    def read(self, store: Store) -> Holds:
        """Return the holds that are in force on an open store, read anew.

        Raises:
            BadData: the record of the holds is damaged.
            UsageError: a hold is not valid, or names a store that is not known.
            Unavailable: the operating system refuses to read the record.
        """
        return Holds(self.in_force(store), names_in(store))

    def in_force(self, store: Store) -> list[Hold]:
        """Return each hold that is in force on an open store, as the store names its memories.

        Raises:
            MemctlError: as ``read``.
        """
        found = [one for hold in self._all() if (one := self._on(hold, store.location)) is not None]
        today = date.today()
        self._note_ended([hold for hold in found if hold.ended(today)])
        return [hold for hold in found if not hold.ended(today)]

    def on_file(self, file: NamedFile) -> Failure | None:
        """Return why an archive must not be replaced or removed: a hold names it as its store.

        Raises:
            MemctlError: as ``read``.
        """
        today = date.today()
        for hold in self._all():
            if hold.store is not None and not hold.ended(today):
                files = (file_of(one) for one in self.places(hold) if one.kind == "archive")
                if any(one.identity == file.identity for one in files):
                    return hold.failure
        return None

    def _all(self) -> list[Hold]:
        recorded = (one.hold for one in self.record.all() if one.removed is None)
        return [*self._given(), *recorded]

    def places(self, hold: Hold) -> list[Location]:
        """Return the locations that the store of a hold means: as it is named now, and was then.

        Raises:
            UsageError: the store is not known.
        """
        known = []
        for locate, text in ((self._locate, hold.store), (parse, hold.place)):
            with suppress(MemctlError):
                known += [locate(text)] if text else []
        if not known:
            raise UsageError(
                f"the hold {hold.id} is on a store that is not known: {visible(hold.store or '')}",
                "name the store in the configuration again, or remove the hold",
            )
        return known

    def _on(self, hold: Hold, location: Location) -> Hold | None:
        """Return a hold as it is on the store at ``location``; None if it is on another store.

        The name of the store in the hold may mean another store by now: both are held.  A hold on a
        folder of sessions is on each file of the folder.  A hold on a file is on the session of the
        file in the folder.
        """
        if hold.store is None:
            return hold
        known = self.places(hold)
        if any(is_at(one, location) or _is_in(location, one) for one in known):
            return hold
        file = next((one for one in known if _is_in(one, location)), None)
        if file is None or hold.user is not None or hold.session is not None:
            return None if file is None else hold
        stem = os.path.relpath(same_file(file.path), same_file(location.path))
        user, session = split_stem(stem.removesuffix(SUFFIX))
        return replace(hold, user=user, session=session)

    def _note_ended(self, ended: list[Hold]) -> None:
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


async def note_nowhere(
    hold: Hold, stores: Iterable[str], locate: Locate, observer: Observer
) -> None:
    """Note that no store has a memory of the user or session of a hold, with similar names."""
    users, sessions = (frozenset(filter(None, [one])) for one in (hold.user, hold.session))
    where = Selection(users, sessions)
    asked: list[Location] = []
    names: list[MemoryKey] = []
    for text in stores:
        try:
            place = locate(text)
            async with opened(make_store(place), observer) as store:
                some = await list_names(store, Selection())
                if any(map(Holds([hold], names_in(store)).on, some)):
                    return
        except MemctlError as error:
            observer.note(f"{visible(text)} was not asked for the held names: {error.message}")
        else:
            names += some
            asked.append(place)
    try:
        if asked:
            refuse_absent(where, 0, *asked, names=names)
    except NotFound as error:
        observer.note(f"{error.message}: {error.hint}")


def _is_in(file: Location, folder: Location) -> bool:
    """Return whether one location is a file in the folder of sessions at the other."""
    if not {file.kind, folder.kind} <= _OF_SESSIONS:
        return False
    return same_file(file.path).startswith(os.path.join(same_file(folder.path), ""))


def names_in(store: Store) -> Callable[[MemoryKey], Iterable[MemoryKey]]:
    """Return a function that yields all keys that a memory of a store may have, as ``readings``.

    The user may give other names to the memory of a file of sessions than the name of the file.
    """
    return partial(_readings, store)


def _readings(store: Store, key: MemoryKey) -> Iterable[MemoryKey]:
    yield from readings(store.kind, key)
    if store.kind in _OF_SESSIONS and store.location.path.suffix == SUFFIX:
        named = MemoryKey(*split_stem(store.location.path.stem), key.part)
        yield from readings("sessions", named)
