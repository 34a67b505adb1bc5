"""Stores of coding agents that keep their sessions in the rows of a SQLite file.

memctl reads sessions, deletes whole sessions, and undoes such deletions.

A message is a row as the program stores it: its content has the value of each column, and in
``parts`` the rows of another table that belong to the message::

    {"id": "7", "content": {"id": 7, "session_id": "s1", "role": "user", "content": "Hi"}}

``Memory.extra`` is a JSON object with the other rows of the session, by table.  With both, memctl
puts back each row with all its columns, whatever a new version of the program adds.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from memctl.dialects.agentscope import CONTENT, ID
from memctl.dialects.rows import EXTRA, PARTS, utc_of
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import RejectedValue, is_text
from memctl.engines.sql.inspector import inspect
from memctl.engines.sql.rows.store import Listed, RowStore
from memctl.engines.sql.rows.tables import FILLED, Key, Row, Rows, RowTable
from memctl.engines.sql.side_effects import Trigger
from memctl.engines.sql.sqlite import SqliteDatabase
from memctl.engines.sql.syntax import MAX_PUSHED_VALUES, pieces
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.json.located import Steps
from memctl.layouts.sql import of_shape
from memctl.location import Location, visible
from memctl.model import Edit, Memory, MemoryInfo, MemoryKey, StoredMessage, WriteResult
from memctl.selection import EVERYTHING, Selection
from memctl.shard import Shard
from memctl.store import Deletion, Features, OpenMode
from memctl.storekit.batching import Small
from memctl.storekit.edits import Snapshot
from memctl.storekit.files import system_errors
from memctl.storekit.projects import (
    FoundProject,
    MovedText,
    ProjectMove,
    move_paths,
)
from memctl.storekit.simple import MADE, Rejected
from memctl.storekit.text_files import files_below, rewrite_files
from memctl.storekit.texts import Rewriter, TextResult

_QUIET = 60.0
"""The seconds without a message after which the program is not taken to be at work on a session."""
_CHILDREN, _RESTORED = "children of sessions", "restored children"
"""The names for pairs of a session and its parent: those stored, and those to put back."""


class TableOf(NamedTuple):
    """A table of the program: its primary key, and the column that names the session."""

    name: str
    key: tuple[str, ...]
    session: str
    order: tuple[str, ...] = ()
    """The columns that order the rows of a session; the key if empty."""


class FolderColumn(NamedTuple):
    """A column with paths of folders: a path, or JSON with paths at ``places``.

    ``id`` is the column that names a row, ``session`` the column that names its session; empty if
    no column does.  ``rooted`` is a column with the absolute path of a folder; ``column`` may have
    the same path without its first ``/``.
    """

    table: str
    id: str
    session: str
    column: str
    places: tuple[Steps, ...] = ()
    rooted: str = ""


class _MovedRow(NamedTuple):
    """The value of a ``FolderColumn`` after the move of a folder."""

    number: int
    session: MemoryKey | None
    value: str
    moved: MovedText


class _Counts(NamedTuple):
    """The counts of the messages of a session, and the times of the first and the last."""

    messages: int = 0
    bytes: int = 0
    first: Any = None
    last: Any = None


class SessionRowsStore(RowStore):
    """The sessions of a program in a SQLite file.

    ``?project=`` names the folder whose sessions alone the store shows.
    """

    features = Features(
        marks=frozenset(),
        empty=True,
        duplicate_ids=True,
        whole_memories=True,
        renames=frozenset({"project"}),
        selects_texts=True,
    )
    misnamed = "its id is not a text"
    file: ClassVar[str]
    """The name of the file in the folder of the program."""
    program: ClassVar[str]
    beside: ClassVar[str]
    """The folder with files of sessions beside the database."""
    heads: ClassVar[TableOf]
    """The table with a row for each session."""
    messages: ClassVar[TableOf]
    part: ClassVar[tuple[TableOf, str] | None] = None
    """The table with the parts of messages, and its column with the id of the message."""
    others: ClassVar[tuple[TableOf, ...]] = ()
    """Further tables with rows of a session, which ``Memory.extra`` keeps; all may be missing."""
    dropped: ClassVar[tuple[TableOf, ...]] = ()
    """Tables whose rows go with a session, and do not come back; all may be missing."""
    owner: ClassVar[tuple[str, str] | None] = None
    """The column of a session with the id of its project, and the table of projects."""
    parent: ClassVar[str]
    """The column of a session that names its parent."""
    folder: ClassVar[str]
    """The column of a session with the folder in which the program worked."""
    folders: ClassVar[tuple[FolderColumn, ...]]
    """The columns with folders; all may be missing."""
    created: ClassVar[tuple[str, float]]
    """The column of a message with its time, and its units in a second."""
    updated: ClassVar[tuple[str, float]]
    """The column of a message with the time of its last change, and its units in a second."""
    indexes: ClassVar[tuple[str, ...]] = ()
    """The tables of FTS5 that the program keeps by triggers."""
    triggers: ClassVar[tuple[str, ...]] = ()
    """The triggers of the program at a deletion of messages."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode, self._database_of)
        self._project = location.options.get("project", "")

    def _database_of(self, location: Location, label: str) -> SqliteDatabase:
        path = location.path
        found = path if path.is_file() else path / self.file
        self.place = found.parent
        return SqliteDatabase(replace(location, path=found), label)

    def files_of(self, session: str) -> Iterable[Path]:
        """Return the files of a session beside the database, which an erase removes."""
        folder = self.place / self.beside
        for path in folder.iterdir() if folder.is_dir() else ():
            if self.is_file_of(session, path.name):
                yield path

    @abstractmethod
    def is_file_of(self, session: str, name: str) -> bool:
        """Return whether the file with this name in ``beside`` is one of a session."""

    async def prepare(self) -> None:
        there = await self.database.look(_columns_by_table)
        part = (self.part[0],) if self.part else ()
        for needed in (self.heads, self.messages, *part):
            lacking = {*needed.key, needed.session} - {*there.get(needed.name, ())}
            if lacking:
                what = f"table {needed.name!r}" if needed.name not in there else min(lacking)
                raise BadData(f"{self.label} has no {what}: it is no database of {self.program}")
        found = {
            one.name: _row_table(one, there[one.name])
            for one in (self.heads, self.messages, *part, *self.others, *self.dropped)
            if one.name in there
        }
        self.head, self.log = found[self.heads.name], found[self.messages.name]
        dropped = {one.name for one in self.dropped}
        self.tables = tuple(table for name, table in found.items() if name not in dropped)
        self.erased = tuple(table for name, table in found.items() if name in dropped)
        self.own_tables = frozenset(found)
        self._there = {name: frozenset(columns) for name, columns in there.items()}

    @property
    def text_tables(self) -> Sequence[str]:
        return sorted(self.own_tables)

    # Reading

    async def listed(self, connection: AsyncConnection, where: Selection) -> AsyncGenerator[Listed]:
        counts = await self._counts(connection, where)
        for session in await self._titles(connection):
            found = counts.get(session, _Counts())
            yield Listed(session, "", found.bytes, found.messages)

    async def stored(self, shard: Shard | None = None) -> list[Listed]:
        async with self.database.snapshot(shard) as connection:
            return [Listed(session, "") for session in await self._titles(connection)]

    async def _titles(self, connection: AsyncConnection) -> dict[Any, tuple[str, str]]:
        """Return the title and the folder of each session of the project, by its id, in order."""
        quoted = self.database.syntax.quoted
        session, folder = map(quoted, (self.head.session, self.folder))
        sql = f"SELECT {session}, title, {folder} FROM {quoted(self.head.name)} "
        sql += f"WHERE {folder} = :project " if self._project else ""
        sql += f"ORDER BY {session}"
        rows = await self.database.fetch_all(connection, sql, {"project": self._project})
        return {id: (title or "", project or "") for id, title, project in rows}

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield the counts of sessions; without roles, unless messages or sessions are selected."""
        is_quick = where.whole and not where.sessions and where.keys is None
        async with self.database.snapshot() as connection:
            titles = await self._titles(connection)
            counts = await self._counts(connection, where) if is_quick else {}
        if not is_quick:
            async with aclosing(super().list_memories(where)) as infos:
                async for info in infos:
                    info.title, info.project = titles.get(info.key.session, ("", ""))
                    yield info
            return
        for session, (title, project) in titles.items():
            one, found = Listed(session, ""), counts.get(session, _Counts())
            if one.is_named and where.has_key(one.key):
                yield MemoryInfo(
                    one.key,
                    found.messages,
                    found.bytes,
                    first=self._time(found.first),
                    last=self._time(found.last),
                    title=title,
                    project=project,
                )

    def _time(self, stored: Any) -> str | None:
        return utc_of(stored / self.created[1]) if isinstance(stored, int | float) else None

    async def _counts(self, connection: AsyncConnection, where: Selection) -> dict[Any, _Counts]:
        """Return the counts of the selected sessions, and perhaps of others."""
        found: dict[Any, _Counts] = {}
        sessions = where.sessions or {key.session for key in where.keys or ()}
        names = sorted(sessions) if len(sessions) <= MAX_PUSHED_VALUES else []
        for table in self.tables:
            if table is not self.log and (self.part is None or table.name != self.part[0].name):
                continue
            quoted = self.database.syntax.quoted
            session, created = quoted(table.session), quoted(self.created[0])
            size = " + ".join(
                f"COALESCE(LENGTH(CAST({quoted(name)} AS BLOB)), 0)" for name in table.columns
            )
            sql = (
                f"SELECT {session}, COUNT(*), SUM({size}), MIN({created}), MAX({created}) "
                f"FROM {quoted(table.name)} "
            )
            sql += f"WHERE {session} IN :names " if names else ""
            values = {"names": names} if names else {}
            rows = await self.database.fetch_all(connection, f"{sql}GROUP BY {session}", values)
            for name, messages, size_, *times in rows:
                if table is self.log:
                    found[name] = _Counts(messages, size_, *times)
                elif name in found:
                    found[name] = found[name]._replace(bytes=found[name].bytes + size_)
        return found

    def about_messages(
        self,
        session: dict[str, Any],  # noqa: ARG002 - most say nothing about messages
        contents: list[dict[str, Any]],  # noqa: ARG002
    ) -> dict[int, dict[str, Any]]:
        """Return what the row of a session says about its messages, by their indexes."""
        return {}

    def keys_in(self, session: str, rows: Rows) -> list[MemoryKey]:
        return [MemoryKey("", session)] if rows[self.head.name] else []

    def read_rows(self, key: MemoryKey, rows: Rows, bad: list[str]) -> Snapshot | None:
        try:
            parts = self._parts(rows)
            contents = [_values(self.log, row) for row in rows[self.log.name].values()]
            for content in contents if self.part is not None else ():
                content[PARTS] = parts.pop(content[self.log.key[0]], [])
            [session] = (_values(self.head, row) for row in rows[self.head.name].values())
            about = self.about_messages(session, contents)
            messages = [
                _entry(content[self.log.key[0]], content, about.get(at, {}))
                for at, content in enumerate(contents)
            ]
            if parts:
                raise BadData(f"the message {min(parts)!r} is missing, of which there are parts")
            others = [one for one in self.tables if one.name in self._kept]
            kept = {
                one.name: [_values(one, row) for row in rows[one.name].values()] for one in others
            }
        except BadData as error:
            bad.append(error.message)
            return None
        extra = jsonio.dumps({name: values for name, values in kept.items() if values}).decode()
        return Snapshot(Memory(key, extra=extra), messages)

    @property
    def _kept(self) -> set[str]:
        return {self.head.name, *(one.name for one in self.others)}

    def _parts(self, rows: Rows) -> dict[Any, list[dict[str, Any]]]:
        """Return the rows of parts by the id of their message."""
        found: dict[Any, list[dict[str, Any]]] = {}
        if self.part is not None:
            of, column = self.part
            [table] = [one for one in self.tables if one.name == of.name]
            for row in rows[of.name].values():
                found.setdefault(row[table.at(column)], []).append(_values(table, row))
        return found

    # Changing

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        if key.user:
            return self._not_its_own
        return super().name_refusal(key)

    def refusal(self, messages: Sequence[StoredMessage]) -> Failure | None:
        for entry in messages:
            content = jsonio.loads(entry.message).get(CONTENT)
            if not isinstance(content, dict) or self.log.session not in content:
                return self._not_its_own
        return None

    @property
    def _not_its_own(self) -> Failure:
        return Failure(
            "refused",
            f"{self.program} writes its sessions itself, and memctl puts back only those; write "
            f"others for its import: memctl export STORE --as {self.kind}",
        )

    async def around(self, connection: AsyncConnection, tasks: Sequence[Small | Edit]) -> Rows:
        quoted = self.database.syntax.quoted
        sql = (
            f"SELECT {quoted(self.head.session)}, {quoted(self.parent)} "
            f"FROM {quoted(self.head.name)} WHERE {quoted(self.parent)} IN :names"
        )
        found: dict[Key, Row] = {}
        for some in pieces(sorted({task.memory.key.session for task in tasks})):
            rows = await self.database.fetch_all(connection, sql, {"names": some})
            found |= {(child,): (child, parent) for child, parent in rows}
        return {_CHILDREN: found}

    def changed_rows(
        self, key: MemoryKey, rows: Rows, there: Snapshot, new: Snapshot, undone: str | None
    ) -> tuple[Rows, str]:
        updated = self.log.at(self.updated[0])
        if why := self._at_work(row[updated] for row in rows[self.log.name].values()):
            raise Rejected("locked", why)
        if there.exists and not new.messages:
            pairs = rows[_CHILDREN].values()
            children = [child for child, parent in pairs if parent == key.session]
            before = {"extra": there.memory.extra, "children": children}
            return {table.name: {} for table in self.tables}, jsonio.dumps(before).decode()
        about = of_shape(undone or "")
        kept = of_shape(new.memory.extra or about.get("extra", ""))
        head = kept.get(self.head.name)
        if not head or head[0].get(self.head.session) != key.session:
            failure = self._not_its_own
            raise Rejected(failure.code, failure.message)
        contents = [jsonio.loads(entry.message)[CONTENT] for entry in new.messages]
        if self.part is not None:
            kept[self.part[0].name] = [part for one in contents for part in one.pop(PARTS, ())]
        kept[self.log.name] = contents
        tables = {table.name: table for table in self.tables}
        if unknown := sorted(kept.keys() - tables.keys()):
            raise Rejected("refused", f"the database has no table {visible(unknown[0])!r}")
        found = {name: _rows(table, kept.get(name, ())) for name, table in tables.items()}
        found[_RESTORED] = {(id,): (id, key.session) for id in about.get("children", ())}
        return found, "" if there.exists else MADE

    def _at_work(self, times: Iterable[Any]) -> str:
        """Return why a session must be left alone, by the times of its messages; empty if not."""
        last = max((one for one in times if isinstance(one, int | float)), default=0)
        age = time.time() - last / self.updated[1]
        if abs(age) >= _QUIET:
            return ""
        return f"{self.program} wrote it {max(age, 0):.0f} seconds ago; try it later"

    async def settled(self, connection: AsyncConnection, rows: Rows, new: Rows) -> Rows:
        database, quoted = self.database, self.database.syntax.quoted
        fresh = {id for (id,) in new[self.log.name].keys() - rows[self.log.name].keys()}
        for (id,) in await self.rows.find(connection, self.log, fresh) if fresh else ():
            raise Rejected("refused", f"another session has the message {id!r} already")
        for row in new[self.head.name].values() if fresh else ():
            if self.owner is None:
                break
            column, projects = self.owner
            name = row[self.head.at(column)]
            sql = f"SELECT 1 FROM {quoted(projects)} WHERE id = :name"
            if not await database.fetch_all(connection, sql, {"name": name}):
                raise Rejected("refused", f"the {projects} {name!r} of the session is not there")
        head, parent, session = map(quoted, (self.head.name, self.parent, self.head.session))
        if gone := [id for (id,) in rows[self.head.name].keys() - new[self.head.name].keys()]:
            for table in self.erased:
                sql = f"DELETE FROM {quoted(table.name)} WHERE {quoted(table.session)} IN :gone"
                await database.change(connection, sql, {"gone": gone})
            sql = f"UPDATE {head} SET {parent} = NULL WHERE {parent} IN :gone"
            await database.change(connection, sql, {"gone": gone})
            self._tell_size()
        for child, of in new.pop(_RESTORED, {}).values():
            sql = f"UPDATE {head} SET {parent} = :of WHERE {session} = :child AND {parent} IS NULL"
            await database.change(connection, sql, {"of": of, "child": child})
        return new

    def _tell_size(self) -> None:
        text = (
            f"{self.label} stays as large as it is; with {self.program} stopped, "
            "VACUUM INTO writes a smaller copy"
        )
        self.warnings += [] if text in self.warnings else [text]

    # Folders that have moved

    async def find_project(self, move: ProjectMove) -> FoundProject:
        found, sessions = FoundProject(), dict[MemoryKey, None]()
        async with self.database.snapshot() as connection:
            for column in self.folders:
                async with aclosing(self._moved_rows(connection, column, move)) as rows:
                    async for row in rows:
                        found.kept += row.moved.kept
                        if row.session is None:
                            found.further = found.further or bool(row.moved.paths)
                        elif row.moved.paths:
                            sessions[row.session] = None
            names = [key.session for key in sessions]
            found.failures |= await self._at_work_in(connection, names)
        found.sessions = [key for key in sessions if key not in found.failures]
        return found

    async def _moved_rows(
        self, connection: AsyncConnection, of: FolderColumn, move: ProjectMove
    ) -> AsyncGenerator[_MovedRow]:
        """Yield the rows with the old or the new path that the move may change."""
        if not {of.id, of.column} <= self._there.get(of.table, frozenset()):
            return
        table, id, column = map(self.database.syntax.quoted, (of.table, of.id, of.column))
        session = self.database.syntax.quoted(of.session) if of.session else "NULL"
        values = {
            name: (jsonio.dumps(path).decode()[1:-1] if of.places else path)
            for name, path in (("old", move.old), ("new", move.new))
        }
        stored = column
        if of.rooted:
            stored, rooted = f"'/' || {column}", self.database.syntax.quoted(of.rooted)
            stored = f"CASE WHEN {stored} = {rooted} THEN {stored} END"
        sql = f"SELECT rowid FROM {table} WHERE instr({stored}, :old) OR instr({stored}, :new)"
        numbers = [row[0] for row in await self.database.fetch_all(connection, sql, values)]
        sql = f"SELECT rowid, {id}, {session}, {stored} FROM {table} WHERE rowid IN :numbers"
        for some in pieces(numbers):
            rows = await self.database.fetch_all(connection, sql, {"numbers": some})
            for number, name, of_session, value in rows:
                key = None if of_session is None else MemoryKey("", of_session)
                moved = _moved(of, value, move, f"{of.table}:{name}:{of.column}")
                if (key is None or move.takes(key)) and (moved.paths or moved.kept):
                    yield _MovedRow(number, key, value, moved)

    async def rename_project(
        self, move: ProjectMove, found: FoundProject
    ) -> AsyncGenerator[WriteResult]:
        """Change all rows in one transaction; sessions that an agent is at work on stay."""
        async with self.database.connect() as connection, self.database.erasing(connection):
            names = [key.session for key in found.sessions]
            found.failures |= await self._at_work_in(connection, names)
            for column in self.folders:
                async with aclosing(self._moved_rows(connection, column, move)) as rows:
                    async for row in rows:
                        stays = (
                            found.is_at_work
                            if row.session is None
                            else row.session in found.failures
                        )
                        if row.moved.paths and not stays:
                            await self._move_row(connection, column, row, found)
        for key in found.sessions:
            yield WriteResult(key, failure=found.failures.get(key))

    async def _move_row(
        self, connection: AsyncConnection, of: FolderColumn, row: _MovedRow, found: FoundProject
    ) -> None:
        table, column = map(self.database.syntax.quoted, (of.table, of.column))
        sql = f"UPDATE OR IGNORE {table} SET {column} = :value WHERE rowid = :number"
        value = row.moved.text.decode("utf-8", "surrogateescape")
        values = {"value": value[1:] if of.rooted else value, "number": row.number}
        if not await self.database.change(connection, sql, values):
            found.left.append(f"the table {of.table} for {row.value}")

    async def _at_work_in(
        self, connection: AsyncConnection, names: Sequence[str]
    ) -> dict[MemoryKey, Failure]:
        """Return why sessions must be left alone, if an agent is at work on them."""
        quoted = self.database.syntax.quoted
        session, updated = map(quoted, (self.log.session, self.updated[0]))
        sql = (
            f"SELECT {session}, MAX({updated}) FROM {quoted(self.log.name)} "
            f"WHERE {session} IN :names GROUP BY {session}"
        )
        found = {}
        for some in pieces(names):
            for name, last in await self.database.fetch_all(connection, sql, {"names": some}):
                if why := self._at_work([last]):
                    found[MemoryKey("", name)] = Failure("locked", why)
        return found

    # Rewriting

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite the rows, then the files beside the database."""
        async with aclosing(super().rewrite_texts(rewriter, where, writes=writes)) as results:
            async for result in results:
                yield result
        files = files_below(self.place, [self.beside])
        if where != EVERYTHING:
            sessions = [one.session for one in await self.stored() if where.has_key(one.key)]
            files = chain.from_iterable(map(self.files_of, sessions))
        rewriting = rewrite_files(files, self.place, rewriter, writes=writes)
        async with aclosing(rewriting) as results:
            async for result in results:
                yield result

    # Erasing

    async def _erase_sessions(
        self, connection: AsyncConnection, keys: Sequence[MemoryKey]
    ) -> dict[MemoryKey, int]:
        quoted, names = self.database.syntax.quoted, [key.session for key in keys]
        head, parent = quoted(self.head.name), quoted(self.parent)
        found = await super()._erase_sessions(connection, keys)
        sql = f"UPDATE {head} SET {parent} = NULL WHERE {parent} IN :names"
        async with self.database.transaction(connection):
            await self.database.change(connection, sql, {"names": names})
        for path in (path for key in found for path in self.files_of(key.session)):
            with system_errors(path, "remove"):
                path.unlink(missing_ok=True)
        return found

    async def count_messages(
        self, connection: AsyncConnection, rows: dict[str, int]
    ) -> dict[str, int]:
        for failure in (await self._at_work_in(connection, sorted(rows))).values():
            raise RejectedValue(failure.message, failure.code)
        return rows

    async def erase_users(self, connection: AsyncConnection, users: Iterable[str]) -> None:  # noqa: ARG002
        await self.forget_words(connection)
        self._tell_size()

    async def forget_words(self, connection: AsyncConnection) -> None:
        quoted = self.database.syntax.quoted
        async with self.database.transaction(connection):
            for name in map(quoted, self._there.keys() & set(self.indexes)):
                sql = f"INSERT INTO {name}({name}) VALUES ('optimize')"
                await self.database.change(connection, sql, {})

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        own = {Trigger(self.log.name, "trigger", name).text for name in self.triggers}
        return [text for text in await super().side_effects(where, deletion) if text not in own]


def _moved(of: FolderColumn, value: Any, move: ProjectMove, spot: str) -> MovedText:
    if not isinstance(value, str):
        return MovedText(b"", [], [], [])
    if of.places:
        return move_paths(value.encode("utf-8", "surrogateescape"), of.places, move, spot)
    new = "" if spot in move.kept else move.path(value)
    paths = [value] if new not in ("", value) else []
    return MovedText(
        new.encode("utf-8", "surrogateescape"), paths, [spot] if move.has_moved(value) else [], []
    )


def _columns_by_table(connection: Any) -> dict[str, list[str]]:
    found = inspect(connection)
    return {
        name: [one["name"] for one in found.get_columns(name)] for name in found.get_table_names()
    }


def _row_table(of: TableOf, columns: Sequence[str]) -> RowTable:
    others = tuple(name for name in columns if name not in of.key)
    return RowTable(of.name, of.key, (*of.key, *others), of.session, order=of.order or of.key)


def _values(table: RowTable, row: Row) -> dict[str, Any]:
    """Return a row as values by column.

    Raises:
        BadData: a value is no text, number or NULL.
    """
    found = dict(zip(table.columns, row, strict=True))
    for name, value in found.items():
        if not isinstance(value, str | int | float | None) or not is_text(str(value)):
            raise BadData(f"{name!r} in a row of {table.name!r} is neither text nor number")
    return found


def _rows(table: RowTable, found: Iterable[dict[str, Any]]) -> dict[Key, Row]:
    """Return rows for values by column.

    Raises:
        Rejected: the table lacks a column.
    """
    rows = [tuple(one.get(name, FILLED) for name in table.columns) for one in found]
    for one in found:
        if unknown := sorted(one.keys() - {*table.columns}):
            text = f"the table {table.name!r} has no column {visible(unknown[0])!r}"
            raise Rejected("refused", text)
    return {table.key_of(row): row for row in rows}


def _entry(id: Any, content: dict[str, Any], about: dict[str, Any]) -> StoredMessage:
    value = {ID: str(id), CONTENT: content} | ({EXTRA: about} if about else {})
    return StoredMessage(str(id), jsonio.compact(value))
