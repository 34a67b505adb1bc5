"""The texts in the columns of tables, given to a rewriter and replaced row by row.

Each row is read again, locked and changed in a transaction.  Columns of keys stay, and so do values
that are neither text nor JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from memctl.engines.sql.chosen import RowTest
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database
from memctl.engines.sql.inspector import engine_of, has_class, inspect
from memctl.engines.sql.sqlite import SqliteDatabase
from memctl.errors import BadData, UsageError
from memctl.location import Location, visible
from memctl.store import OpenMode
from memctl.storekit.batching import grouped
from memctl.storekit.binary import rewrite_bytes
from memctl.storekit.texts import (
    CHANGED_MEANWHILE,
    IS_NAME,
    Rewriter,
    TextResult,
)

_BATCH_ROWS = 200
_UNTYPED_KEY = {"sqlite": "rowid", "postgresql": "ctid"}
"""The name of the number of a row in a table without a primary key."""
_IS_ARRAY = "it is in a column that memctl does not rewrite"


async def rewrite_file(
    path: Path,
    label: str,
    rewriter: Rewriter,
    warnings: list[str],
    names: Mapping[str, Collection[str]] = MappingProxyType({}),
    chosen: Mapping[str, RowTest] | None = None,
    *,
    writes: bool,
) -> AsyncGenerator[TextResult]:
    """Rewrite the texts in all tables of a SQLite file beside a store, which ``label`` names.

    ``names`` maps a table to its columns with names.  ``chosen`` is as for ``RowTexts``.  A text is
    added to ``warnings`` if another program keeps free pages from being cleared.

    Raises:
        MemctlError: as ``RowTexts.rewrite``.
    """
    location = Location("sqlite", str(path), path=path)
    database = SqliteDatabase(location, f"{label} ({visible(path.name)})")
    tables: list[str] = []

    async def prepare() -> None:
        tables.extend(await database.look(lambda one: inspect(one).get_table_names()))

    try:
        await database.start(OpenMode.CHANGE if writes else OpenMode.READ, prepare)
        named = {one: names.get(one, ()) for one in tables}
        texts = RowTexts(database, named, {}, rewriter, chosen)
        changed = False
        async with aclosing(texts.rewrite(writes=writes)) as results:
            async for result in results:
                changed = changed or bool(result.hits)
                place = f"{visible(path.name)}, {result.place}"
                yield result._replace(place=place)
        if writes and changed:
            await database.clear_free_space(warnings)
    finally:
        await database.close()


class _Column(NamedTuple):
    """A column with texts; ``selected`` and ``placed`` are SQL to read and to store its text."""

    name: str
    selected: str
    placed: str
    stays: str = ""
    """Why its values cannot be replaced; empty if they can."""


class _Table(NamedTuple):
    name: str
    key: tuple[str, ...]
    columns: list[_Column]
    test: RowTest | None
    """The test of the rows to rewrite; None if all are."""

    def passes(self, row: Sequence[Any]) -> bool:
        """Return whether to rewrite a row: the columns of the test follow those of the key."""
        if self.test is None:
            return True
        start = len(self.key)
        return self.test.passes(*row[start : start + len(self.test.columns)])

    def values(self, row: Sequence[Any]) -> Sequence[Any]:
        """Return the values of the columns with texts."""
        return row[-len(self.columns) :]


class RowTexts:
    """The texts in tables of a database.

    ``tables`` maps the name of each table to its columns with names of users and sessions.
    ``versions`` maps a table to the column that counts the changes of a row.  With ``chosen``, only
    the rows that pass their test are rewritten, and no row of a table without a test.
    """

    def __init__(
        self,
        database: Database,
        tables: Mapping[str, Collection[str]],
        versions: Mapping[str, str],
        rewriter: Rewriter,
        chosen: Mapping[str, RowTest] | None = None,
    ) -> None:
        self._database = database
        self._names = {name: of for name, of in tables.items() if chosen is None or name in chosen}
        self._chosen = chosen or {}
        self._versions = versions
        self._rewriter = rewriter

    async def rewrite(self, *, writes: bool) -> AsyncGenerator[TextResult]:
        """Rewrite all texts, or, unless ``writes``, tell what a rewrite would do.

        Raises:
            UsageError: a table has no primary key, and its engine numbers no rows.
            MemctlError: as ``Store.read`` and ``Store.edit``.
        """
        tables = await self._database.look(self._tables)
        for table in tables:
            found: list[tuple[Any, ...]] = []
            async with aclosing(self._suspects(table)) as rows:
                async for key, values in rows:
                    if writes:
                        found.append(key)
                        continue
                    for result in self._row(table, key, values)[0]:
                        yield result
            async with aclosing(self._change(table, found)) as results:
                async for result in results:
                    yield result

    def _tables(self, connection: Any) -> list[_Table]:
        inspector, engine = inspect(connection), engine_of(connection)
        found = []
        for name in self._names:
            if not inspector.has_table(name):
                continue
            key = list(inspector.get_pk_constraint(name)["constrained_columns"])
            key = key or [_UNTYPED_KEY[engine]] if engine in _UNTYPED_KEY else key
            if not key:
                raise UsageError(
                    f"{self._database.label}: the table {visible(name)!r} has no primary key",
                    "give it one: memctl changes texts row by row",
                )
            ties = {*key, *self._names[name]}
            for one in inspector.get_foreign_keys(name):
                ties.update(one["constrained_columns"])
            columns = [
                column
                for one in inspector.get_columns(name)
                if not one.get("computed")
                and (column := self._column(one["name"], one["type"], engine, ties)) is not None
            ]
            if columns:
                found.append(_Table(name, tuple(key), columns, self._chosen.get(name)))
        return found

    def _column(self, name: str, type_: Any, engine: str, ties: set[str]) -> _Column | None:
        quoted = self._database.syntax.quoted(name)
        stays = IS_NAME if name in ties else ""
        if engine == "sqlite":
            return _Column(name, quoted, ":text{}", stays)
        if has_class(type_, "JSON"):
            if engine == "postgresql":
                placed = f"CAST(CAST(:text{{}} AS TEXT) AS {str(type_).lower()})"
                return _Column(name, f"CAST({quoted} AS TEXT)", placed, stays)
            return _Column(name, f"CAST({quoted} AS CHAR)", "CAST(:text{} AS JSON)", stays)
        if has_class(type_, "String") or has_class(type_, "_Binary"):
            return _Column(name, quoted, ":text{}", stays)
        if has_class(type_, "ARRAY") or has_class(type_, "HSTORE"):
            return _Column(name, f"CAST({quoted} AS TEXT)", "", _IS_ARRAY)
        return None

    # Reading

    def _select(self, table: _Table) -> str:
        quoted = self._database.syntax.quoted
        tested = () if table.test is None else map(quoted, table.test.columns)
        names = [*map(self._key, table.key), *tested, *(one.selected for one in table.columns)]
        return f"SELECT {', '.join(names)} FROM {quoted(table.name)}"

    def _key(self, name: str) -> str:
        return name if name in _UNTYPED_KEY.values() else self._database.syntax.quoted(name)

    async def _suspects(
        self, table: _Table
    ) -> AsyncGenerator[tuple[tuple[Any, ...], Sequence[Any]]]:
        """Yield the key and the values of each row that the rewriter may change."""
        keys, database, test = len(table.key), self._database, table.test
        sql, names = self._select(table), dict[str, Any]()
        if test is not None and test.names is not None:
            if not test.names:
                return
            sql += f" WHERE {database.syntax.quoted(test.named)} IN :names"
            names["names"] = list(test.names)
        async with (
            database.snapshot(long=True) as connection,
            aclosing(database.rows(connection, sql, names)) as batches,
        ):
            async for rows in batches:
                chosen = filter(table.passes, rows)
                for some in grouped(chosen, lambda row: (sum(map(_size, row[keys:])), 1)):
                    texts = [_as_bytes(value) for row in some for value in table.values(row)]
                    values = len(table.columns)
                    for at in sorted({at // values for at in self._rewriter.suspects(texts)}):
                        yield tuple(some[at][:keys]), table.values(some[at])

    def _rewritten(
        self, table: _Table, key: Sequence[Any], column: _Column, value: Any
    ) -> tuple[TextResult, Any]:
        """Return the result for a value, and the new value; None if the value stays."""
        row = ", ".join(visible(str(one)) for one in key)
        place = f"{visible(table.name)}.{visible(column.name)} of the row {row}"
        if not isinstance(value, str | bytes | bytearray | memoryview):
            return TextResult(place, [], []), None
        name = "" if column.stays else column.name
        new = rewrite_bytes(_as_bytes(value), self._rewriter, name)
        result = new.at(place)
        if column.stays:
            return result.failed(column.stays), None
        if not new.hits:
            return result, None
        is_text = isinstance(value, str)
        return result, new.text.decode("utf-8", "surrogateescape") if is_text else new.text

    # Changing

    async def _change(
        self, table: _Table, keys: Sequence[tuple[Any, ...]]
    ) -> AsyncGenerator[TextResult]:
        database = self._database
        if not keys:
            return
        async with database.connect() as connection:
            await database.prepare_erasing(connection)
            for start in range(0, len(keys), _BATCH_ROWS):
                some = keys[start : start + _BATCH_ROWS]
                try:
                    results = await self._attempt(connection, table, some)
                except BadData:
                    results = []
                    for key in some:
                        results += await self._alone(connection, table, key)
                for result in results:
                    yield result
            await database.finish_erasing(connection)

    async def _alone(
        self, connection: AsyncConnection, table: _Table, key: tuple[Any, ...]
    ) -> list[TextResult]:
        try:
            return await self._attempt(connection, table, [key])
        except BadData as error:
            sql = f"{self._select(table)} WHERE {self._where(table)}"
            rows = await self._database.fetch_all(connection, sql, _named(key))
            await connection.rollback()
            why = f"the database refuses the new text: {error.message}"
            found = [self._row(table, key, table.values(row))[0] for row in rows]
            return [one.failed(why) for some in found for one in some]

    async def _attempt(
        self, connection: AsyncConnection, table: _Table, keys: Sequence[tuple[Any, ...]]
    ) -> list[TextResult]:
        """Change rows in one transaction."""
        database, results = self._database, list[TextResult]()
        select = f"{self._select(table)} WHERE {self._where(table)} {database.syntax.row_lock}"
        async with database.transaction(connection):
            for key in keys:
                rows = await database.execute(connection, select, _named(key))
                for row in filter(table.passes, rows):
                    found, changes = self._row(table, key, table.values(row))
                    done = not changes or await self._update(connection, table, key, changes)
                    results += [
                        one if done or not one.hits else one.failed(CHANGED_MEANWHILE)
                        for one in found
                    ]
        return results

    def _row(
        self, table: _Table, key: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[TextResult], dict[_Column, Any]]:
        """Return what there is to report of a row, and its new values by column."""
        results: list[TextResult] = []
        changes: dict[_Column, Any] = {}
        for column, value in zip(table.columns, values, strict=True):
            result, new = self._rewritten(table, key, column, value)
            results += [result] if result.changes else []
            if new is not None:
                changes[column] = new
        return results, changes

    async def _update(
        self,
        connection: AsyncConnection,
        table: _Table,
        key: tuple[Any, ...],
        changes: Mapping[_Column, Any],
    ) -> bool:
        """Store new values in a row; return False if a trigger or a rule kept it from changing."""
        quoted = self._database.syntax.quoted
        parts = [
            f"{quoted(column.name)} = {column.placed.format(number)}"
            for number, column in enumerate(changes)
        ]
        if (version := self._versions.get(table.name)) is not None:
            parts.append(f"{quoted(version)} = {quoted(version)} + 1")
        sql = f"UPDATE {quoted(table.name)} SET {', '.join(parts)} WHERE {self._where(table)}"
        texts = {f"text{number}": new for number, new in enumerate(changes.values())}
        return bool(await self._database.change(connection, sql, _named(key) | texts))

    def _where(self, table: _Table) -> str:
        return " AND ".join(
            f"{self._key(name)} = :key{number}" for number, name in enumerate(table.key)
        )


def _named(key: Sequence[Any]) -> dict[str, Any]:
    return {f"key{number}": one for number, one in enumerate(key)}


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 0


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""
