"""Holds: memories that no command may delete, for a reason and until a date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from hashlib import blake2b
from unicodedata import normalize

from memctl.errors import Failure
from memctl.location import visible
from memctl.model import MemoryKey

HELD = "held"
"""The code of the failure of a memory that a hold protects."""
LIST = "list the holds with: memctl hold list"
"""The hint of an error about held memories."""
_SHOWN = 200
"""The number of characters of a reason that a failure shows."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold on the memories of a user, of a session, or of one session of a user.

    ``until`` is the last day of the hold; None holds without an end.  ``store`` limits the hold to
    one store, by its name in the configuration, its URL or its path; None means every store.
    """

    reason: str
    user: str | None = None
    session: str | None = None
    store: str | None = None
    until: date | None = None
    id: str = field(default="", compare=False)
    """The name of the hold for ``memctl hold remove``."""
    place: str = field(default="", compare=False)
    """The URL or path that ``store`` meant when the hold was made; it may mean another by now."""

    def ended(self, today: date) -> bool:
        """Return whether the last day of the hold is over."""
        return self.until is not None and self.until < today

    def lasts_as_long_as(self, other: Hold) -> bool:
        """Return whether the last day of the hold is not before that of another."""
        return self.until is None or (other.until is not None and self.until >= other.until)

    @property
    def name(self) -> str:
        """The names in the hold as a text, such as ``user 'ada'``."""
        parts = (("user", self.user), ("session", self.session), ("store", self.store))
        return ", ".join(f"{what} {name!r}" for what, name in parts if name is not None)

    @property
    def digest(self) -> str:
        """A short text made from what the hold says: equal for equal holds."""
        text = repr((self.reason, self.user, self.session, self.store, self.until))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()

    @property
    def failure(self) -> Failure:
        """The reason why a memory is left alone, such as ``held: case 17, until 2027-06-30``."""
        reason = visible(self.reason)
        reason = reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}..."
        end = "" if self.until is None else f", until {self.until}"
        return Failure(HELD, f"held: {reason}{end}")


def _alone(key: MemoryKey) -> Iterable[MemoryKey]:
    return (key,)


def one_form(name: str | None) -> str | None:
    """Return a name in the form of Unicode in which names of holds are compared."""
    return None if name is None else normalize("NFC", name)


class Holds:
    """The holds that are in force on one store."""

    def __init__(
        self,
        holds: Iterable[Hold] = (),
        readings: Callable[[MemoryKey], Iterable[MemoryKey]] = _alone,
    ) -> None:
        """``readings`` returns a key and all other keys that the store writes under its name."""
        self._holds: dict[tuple[str | None, str | None], Hold] = {}
        for hold in holds:
            self._holds.setdefault((one_form(hold.user), one_form(hold.session)), hold)
        self._failures = {id(hold): hold.failure for hold in self._holds.values()}
        self.readings = readings

    def on(self, key: MemoryKey) -> Hold | None:
        """Return a hold on the memory ``key``, or None.

        Names are compared as people read them: their Unicode form does not count.
        """
        return next(self.every(key), None)

    def every(self, key: MemoryKey) -> Iterator[Hold]:
        """Yield the holds on the memory ``key``; of holds with the same names, the first."""
        if not self._holds:
            return
        for one in self.readings(key):
            user, session = one_form(one.user), one_form(one.session)
            for names in ((user, session), (user, None), (None, session), (None, None)):
                if (hold := self._holds.get(names)) is not None:
                    yield hold

    def failure(self, key: MemoryKey | None) -> Failure | None:
        """Return the failure of the memory ``key`` if there is a hold on it, else None.

        Data whose memory is not known, for which ``key`` is None, may be those of any hold.
        """
        hold = next(iter(self._holds.values()), None) if key is None else self.on(key)
        return None if hold is None else self._failures[id(hold)]
