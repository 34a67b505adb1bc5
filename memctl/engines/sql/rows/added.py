"""The columns that an application added to the tables of a layout.

A deleted row takes their values along.  The change of the memory notes these values in
``WriteResult.before``, and the undo gives them back to the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database
from memctl.engines.sql.inspector import column_names
from memctl.engines.sql.rows.tables import Delta, Key, RowTable, by_key
from memctl.json import jsonio
from memctl.storekit.simple import Rejected

if TYPE_CHECKING:
    from memctl.engines.sql.columns import Column

Values = list[tuple[list[Any], dict[str, Any]]]
"""The primary keys of rows, each with the values of added columns as JSON."""
Noted = Mapping[str, Values]
"""The values of added columns by table."""
Restored = tuple[RowTable, Key, dict[str, Any]]
"""A row, and the values of added columns to give back to it, as the driver takes them."""
_NOTED, _LAYOUT = "added", "before"


class AddedColumns:
    """The columns of tables that no ``RowTable.columns`` name."""

    def __init__(self, database: Database, tables: Sequence[RowTable]) -> None:
        self._database = database
        self._tables = [table for table in tables if table.session]
        self._columns: dict[str, list[Column]] = {}

    async def find(self) -> None:
        """Look for the added columns, once; call this outside of a transaction."""
        for table in self._tables:
            await self.of(table)

    async def of(self, table: RowTable) -> list[Column]:
        """Return the added columns of a table; call this outside of a transaction."""
        if table.name not in self._columns:
            found = await self._database.look(partial(column_names, table.name))
            there = found.difference(table.columns)
            self._columns[table.name] = await self._described(table, there) if there else []
        return self._columns[table.name]

    async def _described(self, table: RowTable, names: Collection[str]) -> list[Column]:
        from memctl.engines.sql.columns import columns_of  # by SQLAlchemy

        columns = await self._database.run(partial(columns_of, self._database, table.name))
        return [one for one in columns.values() if one.name in names and not one.computed]

    async def noted(self, connection: AsyncConnection, delta: Delta) -> Noted:
        """Return the values of the rows that a change is going to delete."""
        noted = {}
        for table in self._tables:
            columns, gone = self._columns.get(table.name), delta.gone.get(table.name)
            if columns and gone:
                noted[table.name] = await self._read(connection, table, columns, gone)
        return {name: rows for name, rows in noted.items() if rows}

    async def _read(
        self,
        connection: AsyncConnection,
        table: RowTable,
        columns: Sequence[Column],
        keys: Sequence[Key],
    ) -> Values:
        from memctl.engines.sql.columns import shown  # loaded already, with the columns

        quoted = self._database.syntax.quoted
        selected = [*map(quoted, table.key), *(one.selected(quoted(one.name)) for one in columns)]
        sql = f"SELECT {', '.join(selected)} FROM {quoted(table.name)} WHERE "
        found: Values = []
        for where, values in by_key(self._database.syntax, table, keys):
            for row in await self._database.execute(connection, sql + where, values):
                own = zip(columns, row[len(table.key) :], strict=True)
                kept = {
                    one.name: shown(one.read(value))
                    for one, value in own
                    if value is not None or one.default
                }
                if kept:
                    found.append((list(table.key_of(row)), kept))
        return found

    def restoring(self, noted: Noted, rows: Mapping[str, Collection[Key]]) -> list[Restored]:
        """Return the noted values of ``rows``, as the database takes them.

        A column that the application has dropped meanwhile is left out.

        Raises:
            Rejected: a column has another type now, which cannot hold the value.
        """
        found = []
        for table in self._tables:
            columns = {one.name: one for one in self._columns.get(table.name, ())}
            present = rows.get(table.name, ())
            for key, values in noted.get(table.name, ()):
                if tuple(key) not in present:
                    continue
                try:
                    stored = {
                        name: columns[name].bound(columns[name].stored(value))
                        for name, value in values.items()
                        if name in columns
                    }
                except ValueError as error:
                    raise Rejected("refused", str(error)) from error
                if stored:
                    found.append((table, tuple(key), stored))
        return found

    async def restore(self, connection: AsyncConnection, rows: Iterable[Restored]) -> None:
        """Give values back to rows, which exist.

        Raises:
            RejectedValue: the database refused a value, or did not change each row.
        """
        quoted = self._database.syntax.quoted
        for (table, names), several in groupby(rows, lambda one: (one[0], tuple(one[2]))):
            columns = {one.name: one for one in self._columns[table.name]}
            sets = ", ".join(
                f"{quoted(name)} = {columns[name].placed(f':v{at}')}"
                for at, name in enumerate(names)
            )
            where = " AND ".join(f"{quoted(name)} = :k{at}" for at, name in enumerate(table.key))
            sql = f"UPDATE {quoted(table.name)} SET {sets} WHERE {where}"
            values = [
                {f"k{at}": value for at, value in enumerate(key)}
                | {f"v{at}": value for at, value in enumerate(stored.values())}
                for _, key, stored in several
            ]
            updated = await self._database.change_each(connection, sql, values)
            self._database.check_updated(table.name, len(values), updated)


def with_noted(before: str, noted: Noted) -> str:
    """Return ``WriteResult.before`` with noted values; ``before`` is the text of the layout."""
    return jsonio.dumps({_NOTED: noted, _LAYOUT: before}).decode() if noted else before


def without_noted(before: str) -> tuple[str, Noted]:
    """Return the text of the layout and the noted values, from a result of ``with_noted``."""
    if not before.startswith(f'{{"{_NOTED}":'):
        return before, {}
    found = jsonio.loads(before.encode())
    return found[_LAYOUT], found[_NOTED]
