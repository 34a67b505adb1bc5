"""Holds: memories that no command may delete, for a reason and until a date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from memctl.model import MemoryKey


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold on the memories of a user, of a session, or of one session of a user.

    ``until`` is the last day of the hold; None holds without an end.  ``store`` limits the hold to
    one store, by its name in the configuration or its URL; None means every store.
    """

    reason: str
    user: str | None = None
    session: str | None = None
    store: str | None = None
    until: date | None = None

    def covers(self, key: MemoryKey) -> bool:
        """Return whether the hold is on the memory ``key``, in any store."""
        return self.user in (None, key.user) and self.session in (None, key.session)

    def ended(self, today: date) -> bool:
        """Return whether the last day of the hold is over."""
        return self.until is not None and self.until < today


class Holds:
    """The holds that are in force on one store."""

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self._holds = tuple(holds)

    def on(self, key: MemoryKey) -> Hold | None:
        """Return a hold on the memory ``key``, or None."""
        return next((hold for hold in self._holds if hold.covers(key)), None)

    def __bool__(self) -> bool:
        return bool(self._holds)
