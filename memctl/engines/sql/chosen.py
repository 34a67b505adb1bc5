"""Rows that belong to selected memories alone, by the names in their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from memctl.engines.sql.database import shown_name
from memctl.engines.sql.renaming import Named
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES
from memctl.model import MemoryKey
from memctl.selection import Selection


class RowTest(NamedTuple):
    """A test of the rows of a table: ``passes`` gets the values of ``columns``, in order.

    ``names`` has the values of the column ``named`` in the rows that may pass; None for any.
    """

    columns: tuple[str, ...]
    passes: Callable[..., bool]
    named: str = ""
    names: Collection[str] | None = None


class Chosen:
    """The names of selected memories, among those of all memories."""

    def __init__(self, where: Selection) -> None:
        self._where = where
        self._users: dict[str, tuple[str, ...]] = {}

    def add(self, key: MemoryKey) -> None:
        """Add the name of a memory; those of all memories are needed."""
        users = self._users.get(key.session, ())
        if key.user not in users:
            self._users[key.session] = (*users, key.user)

    def users(self, session: str) -> Collection[str]:
        """Return the users who have a session of this name."""
        return self._users.get(session, ())

    @property
    def sessions(self) -> list[str] | None:
        """The names of the sessions that are selected, if few; None if there are many."""
        found = [
            one for one, users in self._users.items() if any(self.has(one, [u]) for u in users)
        ]
        return found if len(found) <= MAX_PUSHED_VALUES else None

    def has(self, session: str, users: Collection[str]) -> bool:
        """Return whether the sessions of this name of all these users are selected."""
        return all(self._where.has_key(MemoryKey(user, session)) for user in users)

    def test(self, place: Named) -> RowTest:
        """Return the test of the rows of a table by the columns with the names.

        A row of a session belongs to the user that it names, if that user has the session, else to
        all users who have it.  A row without a session belongs to its user, with all sessions.
        """
        app, wanted = place.app
        columns = tuple(filter(None, (place.session, place.user, app)))

        def passes(*values: Any) -> bool:
            row = dict(zip(columns, values, strict=True))
            session, user = (_name(row.get(one)) for one in (place.session, place.user))
            if _name(row.get(app)) != wanted:
                return False
            if not session:
                return bool(user) and self.has("", [user])
            users = self.users(session) or [user]
            return self.has(session, [user] if user in users else users)

        return RowTest(columns, passes)


def _name(value: Any) -> str:
    return "" if value is None else shown_name(value)
