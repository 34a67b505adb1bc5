"""Rows that get other names: the rows of a session or of a user, in all tables of a layout."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, RejectedValue
from memctl.engines.sql.inspector import inspect
from memctl.errors import UsageError
from memctl.location import visible


class Renamed(NamedTuple):
    """Rows of a table that get other names.

    ``where`` is a condition on the rows, without an alias of the table.  ``new`` has SQL for the
    new values by column.
    """

    table: str
    where: str
    new: Mapping[str, str]


class Named(NamedTuple):
    """The columns of a table that name the session and the user of a row; each may be empty.

    ``app`` is a further column that a row must have this value in.
    """

    table: str
    session: str = ""
    user: str = ""
    app: tuple[str, str] = ("", "")


class _Table(NamedTuple):
    columns: list[str]
    """The columns that hold values of their own."""
    key: frozenset[str]


class Renaming:
    """The renaming of rows in the tables of a layout, with the columns that an application added.

    A row whose primary key has a new name is copied, and the old row deleted: foreign keys of the
    layout hold at each moment.  SQLite checks no foreign keys, and its rows are updated.
    """

    def __init__(self, database: Database, tables: Collection[str]) -> None:
        """``tables`` are all tables of the layout whose rows may get other names."""
        self._database = database
        self._names = frozenset(tables)
        self._tables: dict[str, _Table] = {}

    async def find(self) -> None:
        """Look at the columns and keys of the tables, outside of a transaction.

        Raises:
            UsageError: a table of an application refers to the tables of the layout.
        """
        self._tables, others = await self._database.look(partial(_examine, self._names))
        if others:
            raise UsageError(
                f"{self._database.label}: the table {visible(others[0])!r} of an application "
                "refers to rows that would get another name",
                "take its foreign key off, rename, change its rows, and add the key again",
            )

    def columns(self, table: str) -> list[str]:
        """Return the columns of a table that hold values of their own."""
        return self._tables[table].columns

    async def rename(
        self, connection: AsyncConnection, steps: Sequence[Renamed], values: Mapping[str, Any]
    ) -> None:
        """Rename rows in a transaction; ``values`` are the parameters of all ``steps``.

        The steps are in an order in which rows can be inserted.  A step whose table or column is
        missing is left out.

        Raises:
            RejectedValue: the database did not delete each old row.
        """
        database, quoted = self._database, self._database.syntax.quoted
        checks_keys = database.syntax.typed
        copied: list[tuple[Renamed, int]] = []
        for step in steps if checks_keys else reversed(steps):
            table = self._tables.get(step.table)
            if table is None or not step.new or not step.new.keys() <= {*table.columns}:
                continue
            name = quoted(step.table)
            if checks_keys and table.key.intersection(step.new):
                selected = (step.new.get(one, quoted(one)) for one in table.columns)
                sql = (
                    f"INSERT INTO {name} ({', '.join(map(quoted, table.columns))}) "
                    f"SELECT {', '.join(selected)} FROM {name} WHERE {step.where}"
                )
                copied.append((step, await self._run(connection, sql, values)))
            else:
                sets = ", ".join(f"{quoted(one)} = {new}" for one, new in step.new.items())
                sql = f"UPDATE {name} SET {sets} WHERE {step.where}"
                await self._run(connection, sql, values)
        for step, number in reversed(copied):
            sql = f"DELETE FROM {quoted(step.table)} WHERE {step.where}"
            gone = await self._run(connection, sql, values)
            if gone != number:
                text = f"{gone:,} of {number:,} rows of {visible(step.table)!r} got another name"
                raise RejectedValue(f"{database.label}: {text}", "refused")

    async def rename_names(
        self,
        connection: AsyncConnection,
        places: Sequence[Named],
        old: tuple[str, str],
        new: tuple[str, str],
        *,
        by_user: bool,
    ) -> None:
        """Rename the rows with the user and the session ``old`` in a transaction.

        ``places`` are in an order in which rows can be inserted.  With ``by_user``, sessions of
        several users may have one name.

        Raises:
            RejectedValue: as ``rename``.
        """
        syntax = self._database.syntax
        values = {"user": old[0], "session": old[1], "new_user": new[0], "new_session": new[1]}
        steps = []
        for at, place in enumerate(places):
            tests, changed = [], {}
            for name, column, is_same in (
                ("session", place.session, old[1] == new[1]),
                ("user", place.user, old[0] == new[0]),
            ):
                if column and not is_same:
                    changed[column] = syntax.text(f"new_{name}")
                if column and (name == "session" or by_user or not is_same):
                    tests.append((column, name))
            if place.app[0]:
                tests.append((place.app[0], f"app{at}"))
                values[f"app{at}"] = place.app[1]
            where = " AND ".join(self._equal(*test) for test in tests)
            steps.append(Renamed(place.table, where, changed))
        await self.rename(connection, steps, values)

    def _equal(self, column: str, parameter: str) -> str:
        exact, quoted = self._database.syntax.exact, self._database.syntax.quoted(column)
        return f"{quoted} = :{parameter} AND {exact(quoted)} = {exact(f':{parameter}')}"

    async def _run(self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]) -> int:
        used = {name: value for name, value in values.items() if f":{name}" in sql}
        return await self._database.change(connection, sql, used)


def _examine(names: frozenset[str], connection: Any) -> tuple[dict[str, _Table], list[str]]:
    """Return the tables ``names`` that exist, and other tables with foreign keys to them."""
    inspector = inspect(connection)
    there = inspector.get_table_names()
    found = {
        name: _Table(
            [one["name"] for one in inspector.get_columns(name) if not one.get("computed")],
            frozenset(inspector.get_pk_constraint(name)["constrained_columns"]),
        )
        for name in there
        if name in names
    }
    others = [
        name
        for name in there
        if name not in names
        and any(key["referred_table"] in found for key in inspector.get_foreign_keys(name))
    ]
    return found, others
