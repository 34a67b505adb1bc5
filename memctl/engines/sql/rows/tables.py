"""The rows of sessions in the tables of a layout: statements to load and to change them.

A layout describes its tables by ``RowTable``.  ``RowTables`` loads the rows of sessions, and writes
the difference (``Delta``) between the present rows and the wanted rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database
from memctl.engines.sql.executor import BATCH_MESSAGES
from memctl.engines.sql.syntax import SMALL_BYTES, Syntax, pieces
from memctl.json import jsonio
from memctl.storekit.batching import BATCH_BYTES, grouped

if TYPE_CHECKING:
    from memctl.engines.sql.columns import Column

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Rows = dict[str, dict[Key, Row]]
"""Rows by table and primary key, in the order of the table."""

FILLED: Any = type("Filled", (), {"__repr__": lambda _: "FILLED"})()
"""The value of a column of a new row that the database fills by its default."""


class RowTable(Struct, frozen=True):
    """A table of a layout.

    ``columns`` are the columns to read and write; the first ones are ``key``, the primary key.
    ``session`` is the column that names the session of a row.  Without ``session``,
    sessions share the rows of a table: a row is found by its key, and inserted if it is missing.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    session: str = ""
    owner: str = ""
    """The column that names the user of a row."""
    order: tuple[str, ...] = ()
    """The columns that order the rows of a session."""
    text: str = ""
    """The column with the JSON of a message or a session, as bytes."""
    times: frozenset[str] = frozenset()
    """The columns with times, which are None if the driver cannot return them."""
    casts: frozenset[str] = frozenset()
    """The columns to read as texts."""
    typed: Mapping[str, Column] = field(default_factory=dict)
    """The columns whose values need a conversion for the driver."""
    tail: int | None = None
    """The number of first columns that are enough to append messages; None for all columns."""
    deletable: str = ""
    """A condition in SQL on the rows that may be deleted; without it, all may."""

    def key_of(self, row: Sequence[Any]) -> Key:
        """Return the primary key of a row."""
        return tuple(row[: len(self.key)])

    def at(self, column: str) -> int:
        """Return the place of a column in a row."""
        return self.columns.index(column)

    def measure(self, row: Row) -> tuple[int, int]:
        """Return the bytes of the text of a row, and 1 for the row."""
        return len(row[self.at(self.text)]) if self.text else 0, 1

    def parameters(self, columns: Iterable[str], row: Row) -> dict[str, Any]:
        """Return the parameters for the key of a row, and for some of its columns."""
        found = {f"k{at}": value for at, value in enumerate(self.key_of(row))}
        for name in columns:
            at = self.at(name)
            value = self.typed[name].bound(row[at]) if name in self.typed else row[at]
            found["json" if name == self.text else f"v{at}"] = value
        return found


class Delta:
    """The changes of the rows of a session, by table: deleted keys, new rows, changed rows."""

    def __init__(self, tables: Iterable[RowTable], old: Rows, new: Rows) -> None:
        """Compare the present rows ``old`` with the wanted rows ``new``.

        A table that ``new`` lacks stays as it is.  A row that stays should be the same object.  A
        row that was loaded in part and is to be whole is deleted and inserted.
        """
        self.gone: dict[str, list[Key]] = {}
        self.put: dict[str, list[Row]] = {}
        self.changed: dict[str, list[tuple[Row, Row]]] = {}
        self.size = 0
        """The bytes of the texts to write."""
        for table in tables:
            before = old.get(table.name, {})
            after = new.get(table.name, before)
            if after is before:
                continue
            both = [(before[key], row) for key, row in after.items() if key in before]
            differ = [(was, row) for was, row in both if was is not row and was != row]
            changed = [(was, row) for was, row in differ if len(was) == len(row)]
            whole = {table.key_of(row): row for was, row in differ if len(was) < len(row)}
            self.gone[table.name] = [key for key in before if key not in after or key in whole]
            put = [row for key, row in after.items() if key not in before or key in whole]
            self.put[table.name], self.changed[table.name] = put, changed
            if table.text:
                at = table.at(table.text)
                self.size += sum([len(row[at]) for row in (*put, *(row for _, row in changed))])


class RowTables:
    """The tables of a layout in a database."""

    def __init__(self, database: Database, tables: Sequence[RowTable]) -> None:
        """``tables`` are in an order in which rows can be inserted."""
        self._database = database
        self._syntax = database.syntax
        self._tables = tables

    async def lock(
        self, connection: AsyncConnection, table: RowTable, sessions: Collection[str]
    ) -> None:
        """Lock the rows of sessions in a table, if the database locks rows."""
        if lock := self._syntax.row_lock:
            quoted = self._syntax.quoted
            key = ", ".join(map(quoted, table.key))
            where = f"{quoted(table.session)} IN :sessions"
            sql = f"SELECT {key} FROM {quoted(table.name)} WHERE {where} ORDER BY {key} {lock}"
            for some in pieces(sorted(sessions)):
                await self._database.execute(connection, sql, {"sessions": some})

    async def load(
        self, connection: AsyncConnection, sessions: Collection[str], *, tail: bool = False
    ) -> dict[str, Rows]:
        """Return the rows of sessions, by session; with ``tail``, those columns of a row."""
        own = [table for table in self._tables if table.session]
        found: dict[str, Rows] = {name: {table.name: {} for table in own} for name in sessions}
        for table in own:
            columns = table.columns[: table.tail if tail else None]
            group = f"m.{self._syntax.quoted(table.session)}"
            order = ", ".join([group, *(f"m.{self._syntax.quoted(one)}" for one in table.order)])
            sql = f"{self._select(table, columns, group)} WHERE {group} IN :names ORDER BY {order}"
            for some in pieces(sorted(sessions)):
                rows = self._database.rows(connection, sql, {"names": some})
                async with aclosing(rows) as partitions:
                    async for partition in partitions:
                        for name, *row in partition:
                            if name in found:  # the database may compare names loosely
                                found[name][table.name][table.key_of(row)] = tuple(row)
            if table.text in columns:
                for each in found.values():
                    await self._complete(connection, table, each[table.name])
        return found

    async def find(
        self, connection: AsyncConnection, table: RowTable, keys: Collection[Any]
    ) -> dict[Key, Row]:
        """Return the rows with some of ``keys``, of any session; the key is one column."""
        [key] = table.key
        columns = table.columns[: table.tail]
        sql = f"{self._select(table, columns)} WHERE m.{self._syntax.quoted(key)} IN :keys"
        found: dict[Key, Row] = {}
        for some in pieces(list(keys)):
            rows = await self._database.execute(connection, sql, {"keys": some})
            found |= {table.key_of(row): tuple(row) for row in rows}
        return found

    def _select(self, table: RowTable, columns: Iterable[str], *first: str) -> str:
        syntax = self._syntax

        def one(name: str) -> str:
            column = f"m.{syntax.quoted(name)}"
            if name == table.text:
                small = f"{syntax.json_size(column)} <= {SMALL_BYTES}"
                return f"CASE WHEN {small} THEN {syntax.json_text(column)} END"
            if name in table.times:
                return syntax.readable_time(column)
            if name in table.casts:
                return f"CAST({column} AS {syntax.text_type})"
            return table.typed[name].selected(column) if name in table.typed else column

        return (
            f"SELECT {', '.join([*first, *map(one, columns)])} FROM {syntax.quoted(table.name)} m"
        )

    async def _complete(
        self, connection: AsyncConnection, table: RowTable, rows: dict[Key, Row]
    ) -> None:
        """Make bytes of the texts, and fetch the large ones, which the drivers fetch singly."""
        at = table.at(table.text)
        where = " AND ".join(f"m.{name} = :{name}" for name in table.key)
        text = self._syntax.json_text(f"m.{table.text}")
        sql = f"SELECT {text} FROM {self._syntax.quoted(table.name)} m WHERE {where}"
        for key, row in rows.items():
            value = row[at]
            if type(value) is bytes:
                continue
            if value is None:
                names = dict(zip(table.key, key, strict=True))
                found = await self._database.fetch_all(connection, sql, names)
                value = found[0][0] if found else None
            value = b"" if value is None else jsonio.encoded(value)
            rows[key] = (*row[:at], value, *row[at + 1 :])

    # Changing

    async def apply(self, connection: AsyncConnection, deltas: Sequence[Delta]) -> None:
        """Delete, change and insert the rows of several sessions.

        Raises:
            RejectedValue: the database refused a value, or did not change each row.
        """
        for table in reversed(self._tables):
            gone = [key for delta in deltas for key in delta.gone.get(table.name, ())]
            await self._delete(connection, table, gone)
        for table in self._tables:
            changed = [pair for delta in deltas for pair in delta.changed.get(table.name, ())]
            await self._update(connection, table, changed)
            put = (row for delta in deltas for row in delta.put.get(table.name, ()))
            for some in grouped(put, table.measure, BATCH_BYTES, BATCH_MESSAGES):
                await self._insert(connection, table, some)

    async def _delete(
        self, connection: AsyncConnection, table: RowTable, keys: Sequence[Key]
    ) -> None:
        more = f" AND {table.deletable}" if table.deletable else ""
        for where, values in by_key(self._syntax, table, keys):
            sql = f"DELETE FROM {self._syntax.quoted(table.name)} WHERE {where}{more}"
            deleted = await self._database.change(connection, sql, values)
            if not table.deletable:
                self._database.check_deleted(table.name, len(values["last"]), deleted)

    async def _update(
        self, connection: AsyncConnection, table: RowTable, changed: Sequence[tuple[Row, Row]]
    ) -> None:
        """Update the columns that differ: an application may have changed others."""
        quoted = self._syntax.quoted
        kinds: dict[tuple[str, ...], list[Row]] = {}
        for pair in changed:
            columns = zip(table.columns, *pair, strict=True)
            names = tuple(name for name, was, now in columns if was != now)
            kinds.setdefault(names, []).append(pair[1])
        where = " AND ".join(f"{quoted(name)} = :k{at}" for at, name in enumerate(table.key))
        for names, rows in kinds.items():
            sets = ", ".join(f"{quoted(name)} = " + self._place(table, name) for name in names)
            sql = f"UPDATE {quoted(table.name)} SET {sets} WHERE {where}"
            for some in grouped(rows, table.measure, BATCH_BYTES):
                values = [table.parameters(names, row) for row in some]
                updated = await self._database.change_each(connection, sql, values)
                self._database.check_updated(table.name, len(some), updated)

    async def _insert(self, connection: AsyncConnection, table: RowTable, rows: list[Row]) -> None:
        database = self._database
        if not table.session:
            await self._insert_shared(connection, table, rows)
        elif table.text:
            await database.insert(connection, table.name, table.columns, rows)
        else:
            by_filled = groupby(rows, lambda row: [value is FILLED for value in row])
            for filled, several in by_filled:
                names = [
                    one
                    for one, is_filled in zip(table.columns, filled, strict=True)
                    if not is_filled
                ]
                values = [tuple(one for one in row if one is not FILLED) for row in several]
                types = _types_of(table, names, values)
                await database.insert_rows(connection, table.name, names, values, types)

    async def _insert_shared(
        self, connection: AsyncConnection, table: RowTable, rows: Iterable[Row]
    ) -> None:
        """Insert rows; a row that another run inserts at the same time is left as it is."""
        quoted = self._syntax.quoted
        places = ", ".join(self._place(table, name) for name in table.columns)
        names = ", ".join(map(quoted, table.columns))
        sql = f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({places})"
        sql = self._syntax.insert_free(sql, table.key[0])
        values = [table.parameters(table.columns, row) for row in rows]
        await self._database.change_each(connection, sql, values)

    def _place(self, table: RowTable, name: str) -> str:
        """Return SQL for a new value of a column, which ``RowTable.parameters`` has."""
        if name == table.text:
            return self._syntax.json_place
        place = f":v{table.at(name)}"
        return table.typed[name].placed(place) if name in table.typed else place


def _types_of(table: RowTable, names: Sequence[str], rows: Sequence[Row]) -> dict[str, str]:
    if not table.typed:
        return {}
    from memctl.engines.sql.columns import types_of  # by SQLAlchemy

    return types_of(table.typed, names, rows)


def by_key(
    syntax: Syntax, table: RowTable, keys: Sequence[Key]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield conditions that select rows by primary key, each with its parameters.

    The parameter ``last`` has the last column of some keys whose other columns are equal.
    """
    *fixed, last = map(syntax.quoted, table.key)
    tests = [f"{name} = :k{at}" for at, name in enumerate(fixed)] + [f"{last} IN :last"]
    where = " AND ".join(tests)
    for start, several in groupby(keys, lambda key: key[:-1]):
        values: dict[str, Any] = {f"k{at}": value for at, value in enumerate(start)}
        for some in pieces([key[-1] for key in several]):
            yield where, values | {"last": some}
