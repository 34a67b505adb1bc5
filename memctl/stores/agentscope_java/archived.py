"""The archived memory files of workspaces in a database: old files go, and come back.

An agent moves the file of a day, such as ``/2026-11-20.md`` in the folder ``memory``, to
``/archive/`` when the file is old.  The framework neither deletes nor reads archived files.

Source in agentscope-java of 22 August 2026: ``MemoryMaintenanceMiddleware.java`` of
agentscope-harness.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from functools import partial
from typing import Any

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Contended, Database, RejectedValue
from memctl.engines.sql.inspector import column_names
from memctl.errors import BadData, UsageError
from memctl.json import jsonio
from memctl.layouts.sql import JAVA_FILES
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.storekit.prunable import JAVA, OldItems, Prunable, Pruned, PrunedRow, PutBack
from memctl.stores.agentscope_java.workspace import Scope

_COLUMNS = ("namespace_path", "item_key", "value_json", "version", "updated_at")
_FOLDER, _ARCHIVE, _END = "memory", "/archive/", ".md"
_DAY = timedelta(days=1)


class ArchivedFiles(Prunable):
    """The files of ``memory/archive``; the files in one ``namespace_path`` are a group."""

    engine = JAVA

    def __init__(self, database: Database) -> None:
        self._database = database
        exact = database.syntax.exact
        self._of_group, of_file = (
            f"{exact(name)} = {exact(f':{name}')}" for name in ("namespace_path", "item_key")
        )
        self._delete = f"DELETE FROM {JAVA_FILES} WHERE {self._of_group} AND {of_file}"

    def key_of(self, group: str) -> MemoryKey:
        scope = Scope.of(group)
        return MemoryKey(scope.user or "", scope.session or "")

    async def _prepare(self) -> None:
        """Look for the table.

        Raises:
            UsageError: it is missing, or has other columns than the framework makes.
        """
        found = await self._database.look(partial(column_names, JAVA_FILES))
        if found != {*_COLUMNS}:
            why = f"has no table {JAVA_FILES!r}" if not found else f"has changed {JAVA_FILES!r}"
            raise UsageError(
                f"{self._database.label} {why}",
                "name the database with the workspaces of AgentScope Java, as it makes them",
            )

    async def old(self, where: Selection) -> AsyncGenerator[OldItems]:
        await self._prepare()
        groups = f"SELECT DISTINCT namespace_path FROM {JAVA_FILES} ORDER BY 1"
        async with self._database.snapshot() as connection:
            for (group,) in await self._database.fetch_all(connection, groups, {}):
                if Scope.of(group).folder != _FOLDER or not where.has_key(self.key_of(group)):
                    continue
                if rows := _old(await self._files(connection, group), where.until):
                    yield OldItems(group, len(rows), rows=_lines(rows))

    async def _files(
        self, connection: AsyncConnection, group: str, lock: str = ""
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of the archived files of a group, in order."""
        sql = (
            f"SELECT {', '.join(_COLUMNS)} FROM {JAVA_FILES} WHERE {self._of_group} "
            f"AND item_key LIKE '{_ARCHIVE}%' ORDER BY item_key {lock}"
        )
        return list(await self._database.execute(connection, sql, {"namespace_path": group}))

    async def prune(
        self, group: str, until: datetime | None, is_archived: Callable[[bytes], bool]
    ) -> Pruned:
        await self._prepare()
        result, database = Pruned(), self._database
        try:
            async with database.connect() as connection, database.transaction(connection):
                there = await self._files(connection, group, database.syntax.row_lock)
                for row in _old(there, until):
                    if not is_archived(_line(row)):
                        result.left += 1
                        continue
                    names = dict(zip(_COLUMNS[:2], row, strict=False))
                    deleted = await database.change(connection, self._delete, names)
                    database.check_deleted(JAVA_FILES, 1, deleted)
                    result.items += 1
                    result.rows += 1
        except (Contended, RejectedValue) as error:
            return Pruned(failure=error.failure)
        return result

    async def put_back(
        self, group: str, lines: Sequence[bytes], *, dry_run: bool = False
    ) -> PutBack:
        await self._prepare()
        database, result = self._database, PutBack()
        if dry_run:
            async with database.snapshot() as connection:
                await self._missing(connection, group, lines, result)
            return result
        async with database.connect() as connection, database.transaction(connection):
            if rows := await self._missing(connection, group, lines, result):
                await database.insert_rows(connection, JAVA_FILES, _COLUMNS, rows, {})
        return result

    async def _missing(
        self, connection: AsyncConnection, group: str, lines: Iterable[bytes], result: PutBack
    ) -> list[tuple[Any, ...]]:
        """Return the rows of lines that the group lacks, and count all in ``result``."""
        there = {row[1]: _line(row) for row in await self._files(connection, group)}
        missing = []
        for line in lines:
            row = _row(group, line)
            stored = there.get(row[1])
            if stored is None:
                missing.append(row)
            result.there += stored == line
            result.others += stored not in (None, line)
        result.items = result.rows = len(missing)
        return missing


def _row(group: str, line: bytes) -> tuple[Any, ...]:
    """Return the values of the row in a line.

    Raises:
        BadData: it is not the row of a file of the group.
    """
    match jsonio.loads(line):
        case {"table": str() as table, "row": dict() as row} if (
            table == JAVA_FILES and {*row} == {*_COLUMNS} and row["namespace_path"] == group
        ):
            return tuple(row[name] for name in _COLUMNS)
    raise BadData(f"the archive has a row that is no file of {visible(group)!r}")


def _day_of(file: str) -> datetime | None:
    """Return the beginning of the day of an archived file; None for other files."""
    if file.startswith(_ARCHIVE) and file.endswith(_END):
        with suppress(ValueError):  # the framework archives files of days alone
            day = date.fromisoformat(file.removeprefix(_ARCHIVE).removesuffix(_END))
            return datetime.combine(day, time())
    return None


def _old(rows: Iterable[Sequence[Any]], until: datetime | None) -> list[Sequence[Any]]:
    """Return the rows of the files whose day has ended before ``until``."""
    days = ((row, _day_of(row[1])) for row in rows)
    return [row for row, day in days if day and (until is None or day + _DAY <= until)]


async def _lines(rows: Iterable[Sequence[Any]]) -> AsyncGenerator[PrunedRow]:
    for row in rows:
        yield PrunedRow(_line(row), True, _day_of(row[1]))


def _line(row: Sequence[Any]) -> bytes:
    return jsonio.dumps({"table": JAVA_FILES, "row": dict(zip(_COLUMNS, row, strict=True))})
