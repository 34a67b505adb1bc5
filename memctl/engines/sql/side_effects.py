"""What a database does to the data of an application when rows of a memory are deleted.

An application may refer to the rows of a memory by foreign keys, whose rows the database deletes
or changes with the memory.  Triggers and rules may do anything.  No undo of memctl brings such data
back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from memctl.engines.sql.syntax import Condition, Syntax
from memctl.errors import UsageError
from memctl.location import Location, visible

ACTIONS = {
    "CASCADE": "deletes",
    "SET NULL": "changes",
    "SET DEFAULT": "changes",
    "": "may change",
}
"""The actions of a foreign key at a deletion that change the referring row, each as a verb.

The empty action is one that the login may not see.
"""


SIDE_EFFECTS, ALLOW = "side_effects", "allow"
"""The option in a URL that accepts changes of other data by a deletion, and its value."""


def has_option(location: Location, label: str, name: str, value: str) -> bool:
    """Return whether the URL of a store has an option, whose only value is ``value``.

    Raises:
        UsageError: the option has another value.
    """
    found = location.options.get(name)
    if found not in (None, value):
        raise UsageError(
            f"{label}: {name}={visible(found)} is unknown",
            f"write {name}={value}, or leave it out",
        )
    return found is not None


class ReferringColumn(NamedTuple):
    """A column of a foreign key that refers to a table."""

    referred: str
    """The table that the key refers to."""
    key: str
    """A name of the foreign key, unique in the database."""
    schema: str
    table: str
    column: str
    referred_column: str
    action: str
    """A key of ``ACTIONS``."""
    hides: str = ""
    """Not empty if row-level security may hide rows of ``table`` from the login.

    An action of a foreign key reaches these rows, too.
    """


class Reference(NamedTuple):
    """A foreign key whose rows the database changes when rows of the referred table are deleted."""

    columns: tuple[ReferringColumn, ...]

    @property
    def referred(self) -> str:
        """The name of the table that the foreign key refers to."""
        return self.columns[0].referred

    @property
    def text(self) -> str:
        """A description of what a deletion does to the rows with the foreign key."""
        one = self.columns[0]
        action = f"ON DELETE {one.action}" if one.action else "by an action hidden from this login"
        hidden = ", also those that row-level security hides" if one.hides else ""
        return (
            f"deleting rows of {visible(one.referred)!r} {ACTIONS[one.action]} rows of "
            f"{visible(one.table)!r} ({action}){hidden}"
        )

    @property
    def hides(self) -> bool:
        """True if row-level security may hide rows with the foreign key from the login."""
        return bool(self.columns[0].hides)

    def query(self, where: Condition, syntax: Syntax) -> str:
        """Return a query with a result if a row with the foreign key refers to a selected row.

        ``where`` selects the rows to delete; it calls their table ``m``.
        """
        one = self.columns[0]
        place = ".".join(map(syntax.identifier, filter(None, (one.schema, one.table))))
        same = " AND ".join(
            f"r.{syntax.identifier(each.column)} = m.{syntax.identifier(each.referred_column)}"
            for each in self.columns
        )
        rows = f"SELECT * FROM {syntax.identifier(one.referred)} m WHERE {where.sql}"
        return f"SELECT 1 FROM {place} r JOIN ({rows}) m ON {same} LIMIT 1"


class Trigger(NamedTuple):
    """A trigger or a rule that runs when rows of a table are deleted."""

    table: str
    kind: str
    """``trigger`` or ``rule``."""
    name: str

    @property
    def text(self) -> str:
        """A description of what the trigger runs at a deletion."""
        return (
            f"deleting rows of {visible(self.table)!r} runs the {self.kind} {visible(self.name)!r}"
        )


def references(
    rows: Iterable[Iterable[str]], tables: Mapping[str, Condition], own: Collection[str]
) -> list[Reference]:
    """Return the foreign keys that refer to ``tables`` from tables that are not in ``own``.

    ``rows`` has the values of a ``ReferringColumn`` for each column of a foreign key.  ``own``
    holds the names of the tables of the layout; a foreign key from such a table is returned only
    if row-level security may hide its rows.
    """
    found = [ReferringColumn(*row) for row in rows]
    concerned = [
        one for one in found if one.referred in tables and (one.hides or one.table not in own)
    ]
    by_key = attrgetter("referred", "key")
    return [Reference(tuple(some)) for _, some in groupby(sorted(concerned), by_key)]


async def find_side_effects(
    fetch: Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Any]]],
    triggers: Iterable[Trigger],
    referring: Iterable[Iterable[str]],
    tables: Mapping[str, Condition],
    own: Collection[str],
    syntax: Syntax,
) -> list[str]:
    """Describe what the database changes besides when rows are deleted.

    ``tables`` and ``own`` are as in ``Database.side_effects``.  ``fetch`` returns the rows of a
    query with parameters, ``triggers`` are all triggers of deletions, and ``referring`` are all
    rows for ``references``.
    """
    found = [one.text for one in triggers if one.table in tables]
    for one in references(referring, tables, {*tables, *own}):
        where = tables[one.referred]
        if one.hides or await fetch(one.query(where, syntax), where.values):
            found.append(one.text)
    return found
