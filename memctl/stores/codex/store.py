"""The sessions of Codex CLI, which calls them rollouts.

::

    sessions/2026/11/20/rollout-2026-11-20T10-00-00-01a1f866-0d05-7111-8111-000000000001.jsonl
    archived_sessions/rollout-2026-11-20T10-00-00-01a1f866-0d05-7111-8111-000000000001.jsonl

Codex keeps an index of its rollouts in SQLite files, and makes missing rows again.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from memctl.dialects.codex import CODEX, CodexView
from memctl.dialects.session_lines import SessionLineView
from memctl.dialects.view import text_of
from memctl.engines.sql.chosen import RowTest
from memctl.engines.sql.texts import rewrite_file
from memctl.errors import Unavailable
from memctl.json.located import EACH
from memctl.layouts.session_files import UUID, Pairs, SessionFile, SessionFilesStore
from memctl.location import visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryInfo
from memctl.selection import EVERYTHING, Selection
from memctl.storekit.files import system_errors
from memctl.storekit.projects import FoundProject, ProjectMove
from memctl.storekit.texts import Rewriter, TextResult

_SESSIONS, _ARCHIVED = "sessions", "archived_sessions"
_LOGS = ("history.jsonl", "session_index.jsonl")
"""The files with a line for each prompt, and for each name of a session."""
_NAME = re.compile(rf"rollout-\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d-({UUID.pattern})\.jsonl(\.zst)?")
_OF_THREAD = frozenset({"thread_id", "parent_thread_id", "child_thread_id", "session_id"})
"""The columns of the SQLite files with the id of a session, besides ``threads.id``."""
_FOLDERS = (("threads", "id", "cwd"), ("project_roots", "project_id", "path"))
"""The tables with the path of a folder, and the columns with the id and the path."""
_RENAME = "rename a project in"
_PROJECTION = frozenset({"thread_items", "thread_turns", "thread_history_projection_state"})
"""The tables that Codex makes of a session file, with the bytes at which its lines are."""


class CodexStore(SessionFilesStore):
    """The folder of Codex CLI: ``CODEX_HOME``, or ``~/.codex``."""

    kind = "codex"
    dialect = CODEX
    text_roots = (_SESSIONS, _ARCHIVED, *_LOGS, "memories")
    folders = (f"{_SESSIONS}/*/*/*", _ARCHIVED)
    folder_places = (
        ("payload", "cwd"),
        ("payload", "runtime_workspace_roots", EACH),
        ("payload", "thread_settings", "cwd"),
        ("payload", "thread_settings", "runtime_workspace_roots", EACH),
    )

    def places(self) -> Iterator[str]:
        for top in (_SESSIONS, _ARCHIVED):
            for folder, below, names in os.walk(self.folder / top):
                below.sort()
                for name in sorted(names):
                    yield os.path.relpath(os.path.join(folder, name), self.folder)

    def id_in(self, place: str) -> str | None:
        match place.split("/"):
            case ["sessions", _, _, _, name] | ["archived_sessions", name]:
                found = _NAME.fullmatch(name)
                return found[1] if found else None
        return None

    def beside(self, session: SessionFile) -> list[str]:  # noqa: ARG002
        return []

    def new_place(self, id: str, project: str, moment: datetime) -> str:  # noqa: ARG002
        local = moment.astimezone()
        return f"{_SESSIONS}/{local:%Y/%m/%d}/rollout-{local:%Y-%m-%dT%H-%M-%S}-{id}.jsonl"

    def at_work(self, session: SessionFile) -> str:
        path = self.folder / "thread-writer-locks" / f"{session.id}.lock"
        with system_errors(path, "read"):
            if not path.is_file():
                return ""
            handle = os.open(path, system.WRITE_FLAGS)
            try:
                return "" if system.lock(handle) else f"{path.name} is locked"
            finally:
                os.close(handle)

    def forget(self, session: SessionFile) -> None:
        """Remove the rows of a session from the SQLite files, and its prompts from the history."""
        for path in self._databases():
            with self._database(path) as database:
                _forget_thread(database, session.id)
        for name in _LOGS:
            self.without_lines(name, session.id)

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite the files and the SQLite files, which hold the same texts again.

        Codex keeps where a line is in a session.  It makes the rows about a session anew that are
        removed when the session changes.
        """
        changed: set[str] = set()
        async with aclosing(super().rewrite_texts(rewriter, where, writes=writes)) as results:
            async for result in results:
                changed.update(UUID.findall(result.place) if result.hits else ())
                yield result
        ids = None if where == EVERYTHING else await in_thread(partial(self.selected_ids, where))
        for path in self._databases():
            if writes and changed:
                await in_thread(partial(self._forget_places, path, changed))
            chosen = None if ids is None else await in_thread(partial(self._rows_of, path, ids))
            rewriting = rewrite_file(
                path, self.label, rewriter, self.warnings, chosen=chosen, writes=writes
            )
            async with aclosing(rewriting) as results:
                async for result in results:
                    yield result

    def _rows_of(self, path: Path, ids: set[str]) -> dict[str, RowTest]:
        """Return the tests of the rows that belong to some sessions alone, by table."""
        with self._database(path, writes=False) as database:
            columns = {table: _naming(database, table) for table in _tables(database)}
        return {
            table: RowTest(tuple(names), lambda *named: ids.issuperset(named))
            for table, names in columns.items()
            if names
        }

    def new_places(self, session: SessionFile, folders: Sequence[str], move: ProjectMove) -> Pairs:  # noqa: ARG002
        return []  # no place of a session names a folder

    def about_to_move(self, session: SessionFile, move: ProjectMove) -> None:
        """Let the row of a session follow, and forget where its lines are, which will change."""
        for path in self._databases():
            self._forget_places(path, [session.id])
            with self._database(path, task=_RENAME) as database:
                _move_rows(database, move, _rows_with_folders(database, session.id))

    def find_further(self, move: ProjectMove, found: FoundProject) -> None:
        """Find the rows of the SQLite files that name a folder."""
        follows = self.followers(move, found)
        for path in self._databases():
            with self._database(path, writes=False, task=_RENAME) as database:
                for row in _rows_with_folders(database):
                    found.kept += [row.spot] if move.has_moved(row.folder) else []
                    is_old = move.path(row.folder) != row.folder and follows(row.id)
                    found.further = found.further or is_old

    def move_further(self, move: ProjectMove, found: FoundProject) -> None:
        follows = self.followers(move, found)
        for path in self._databases():
            with self._database(path, task=_RENAME) as database:
                rows = [row for row in _rows_with_folders(database) if follows(row.id)]
                _move_rows(database, move, rows)

    def _databases(self) -> list[Path]:
        return sorted(self.folder.glob("*.sqlite"))

    def _forget_places(self, path: Path, ids: Iterable[str]) -> None:
        """Delete the rows with the places of lines in the files of sessions."""
        with self._database(path) as database:
            for table in _PROJECTION.intersection(_tables(database)):
                sql = f'DELETE FROM "{table}" WHERE thread_id = ?'
                database.executemany(sql, [(id,) for id in ids])

    @contextmanager
    def _database(
        self, path: Path, *, writes: bool = True, task: str = "remove rows of a session from"
    ) -> Iterator[sqlite3.Connection]:
        """Open a SQLite file for a task with rows; deleted rows are overwritten in the file."""
        mode = "rw" if writes else "ro"
        try:
            with closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
            ) as database:
                database.execute("PRAGMA secure_delete = ON")
                with database:
                    yield database
                if writes:
                    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise Unavailable(
                f"cannot {task} {visible(str(path))}: {error}",
                "end Codex, and run the same command again",
            ) from error

    def told(self, info: MemoryInfo, line: SessionLineView) -> None:
        assert isinstance(line, CodexView)
        if line.kind == "session_meta":
            info.project = info.project or text_of(line.payload, "cwd") or ""
        elif line.role == "user":
            info.title = info.title or self.short(line)


def _forget_thread(database: sqlite3.Connection, id: str) -> None:
    """Delete all rows of a session."""
    for table in _tables(database):
        for column in _naming(database, table):
            database.execute(f'DELETE FROM "{table}" WHERE "{column}" = ?', (id,))


def _naming(database: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table with the id of a session."""
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    return sorted({"id"} if table == "threads" else _OF_THREAD.intersection(columns))


class _FolderRow(NamedTuple):
    """A row with the path of a folder; ``spot`` is its name, ``id`` the id of its session."""

    table: str
    number: int
    id: str
    column: str
    folder: str

    @property
    def spot(self) -> str:
        return f"{self.table}:{self.id}:{self.folder}"


def _rows_with_folders(database: sqlite3.Connection, session: str = "") -> list[_FolderRow]:
    """Return the rows with the path of a folder, of one session or of all."""
    return [
        _FolderRow(table, number, id, column, folder)
        for table, name, column in _FOLDERS
        if table in _tables(database)
        for number, id, folder in database.execute(
            f"SELECT rowid, {name}, {column} FROM {table} WHERE ? IN ('', {name})", (session,)
        )
    ]


def _move_rows(database: sqlite3.Connection, move: ProjectMove, rows: Iterable[_FolderRow]) -> None:
    """Let rows follow a folder that has moved."""
    for row in rows:
        new = move.path(row.folder)
        if new != row.folder and row.spot not in move.kept:
            sql = f"UPDATE {row.table} SET {row.column} = ? WHERE rowid = ?"
            database.execute(sql, (new, row.number))


def _tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in found]
