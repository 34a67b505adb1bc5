"""The archived memory files of workspaces in a database: old ones go, rows of an archive come back.

An agent moves the file of a day, such as ``/2026-11-20.md`` in the folder ``memory``, to
``/archive/`` when it is old.  Nothing in the framework deletes it there, or reads it again.

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
        self._here = f"{self._of_group} AND {of_file}"
        self._select = f"SELECT {', '.join(_COLUMNS)} FROM {JAVA_FILES}"

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
        async with self._database.snapshot() as connection:
            for group, files in (await self._old(connection, where.until)).items():
                if where.has_key(self.key_of(group)):
                    yield OldItems(group, len(files), rows=self._rows(connection, group, files))

    async def _old(
        self, connection: AsyncConnection, until: datetime | None, group: str | None = None
    ) -> dict[str, list[str]]:
        """Return the names of the old files by ``namespace_path``, or of one such group."""
        where = "1 = 1" if group is None else self._of_group
        values = {} if group is None else {"namespace_path": group}
        sql = f"SELECT namespace_path, item_key FROM {JAVA_FILES} WHERE {where} ORDER BY 1, 2"
        found: dict[str, list[str]] = {}
        for path, file in await self._database.fetch_all(connection, sql, values):
            day = _day_of(path, file)
            if day is not None and (until is None or day + _DAY <= until):
                found.setdefault(path, []).append(file)
        return found

    async def _rows(
        self, connection: AsyncConnection, group: str, files: Iterable[str]
    ) -> AsyncGenerator[PrunedRow]:
        for file in files:
            for row in await self._found(connection, group, file):
                yield PrunedRow(_line(row), True, _day_of(group, file))

    async def _found(
        self, connection: AsyncConnection, group: str, file: str, lock: str = ""
    ) -> Sequence[Sequence[Any]]:
        at = {"namespace_path": group, "item_key": file}
        sql = f"{self._select} WHERE {self._here} {lock}"
        return list(await self._database.execute(connection, sql, at))

    async def prune(
        self, group: str, until: datetime | None, is_archived: Callable[[bytes], bool]
    ) -> Pruned:
        await self._prepare()
        result, database = Pruned(), self._database
        try:
            async with database.connect() as connection, database.transaction(connection):
                for file in (await self._old(connection, until, group)).get(group, ()):
                    lock = database.syntax.row_lock
                    for row in await self._found(connection, group, file, lock):
                        if is_archived(_line(row)):
                            at = {"namespace_path": group, "item_key": file}
                            sql = f"DELETE FROM {JAVA_FILES} WHERE {self._here}"
                            database.check_deleted(
                                JAVA_FILES, 1, await database.change(connection, sql, at)
                            )
                            result.items += 1
                            result.rows += 1
                        else:
                            result.left += 1
        except (Contended, RejectedValue) as error:
            return Pruned(failure=error.failure)
        return result

    async def put_back(
        self, group: str, lines: Sequence[bytes], *, dry_run: bool = False
    ) -> PutBack:
        await self._prepare()
        result, database = PutBack(), self._database
        async with database.connect() as connection, database.transaction(connection):
            for line in lines:
                row = self._row(group, line)
                there = await self._found(connection, group, row[1])
                result.there += any(_line(one) == line for one in there)
                result.others += any(_line(one) != line for one in there)
                if not there:
                    result.items += 1
                    result.rows += 1
                    if not dry_run:
                        await database.insert_rows(connection, JAVA_FILES, _COLUMNS, [row], {})
        return result

    def _row(self, group: str, line: bytes) -> tuple[Any, ...]:
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


def _day_of(path: str, file: str) -> datetime | None:
    """Return the beginning of the day of an archived file; None for other files."""
    if Scope.of(path).folder == _FOLDER and file.startswith(_ARCHIVE) and file.endswith(_END):
        with suppress(ValueError):  # the framework archives files of days alone
            day = date.fromisoformat(file.removeprefix(_ARCHIVE).removesuffix(_END))
            return datetime.combine(day, time())
    return None


def _line(row: Sequence[Any]) -> bytes:
    return jsonio.dumps({"table": JAVA_FILES, "row": dict(zip(_COLUMNS, row, strict=True))})
