"""``history.db``: mem0's history of each fact, and its most recent messages.

The tables are from mem0ai 2.2.1, ``mem0/memory/storage.py``.  Several vector stores may share
the file, because mem0 has one default path.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memctl.engines.sql.chosen import RowTest
from memctl.engines.sql.sqlite_files import check_structure
from memctl.engines.sql.texts import rewrite_file
from memctl.errors import BadData, Unavailable
from memctl.json import jsonio
from memctl.location import visible
from memctl.machine import system
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.storekit.files import system_errors
from memctl.storekit.texts import Rewriter, TextResult
from memctl.stores.mem0.vectors import Turns

_BUSY_SECONDS = 30.0
_SOME = 500
_INT64 = range(-(2**63), 2**63)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, "
    "new_memory TEXT, event TEXT, created_at DATETIME, updated_at DATETIME, is_deleted INTEGER, "
    "actor_id TEXT, role TEXT)",
    "CREATE TABLE IF NOT EXISTS messages (id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, "
    "content TEXT, name TEXT, created_at DATETIME)",
)
COLUMNS = (
    "id",
    "memory_id",
    "old_memory",
    "new_memory",
    "event",
    "created_at",
    "updated_at",
    "is_deleted",
    "actor_id",
    "role",
)
_NAMES = ", ".join(COLUMNS)
_NAMING = {"history": ("memory_id",), "messages": ("session_scope",)}
"""The columns of each table that name a fact or a memory."""
_OLDEST = {"id", "memory_id", "old_memory", "new_memory", "event", "created_at"}
"""The columns of every version of mem0, from 0.1.0 on (``mem0/memory/storage.py``)."""
Row = dict[str, Any]
"""A row of the table ``history``, without ``memory_id`` and without NULL values."""
Last = tuple[str, str | None, bool]
"""The last row of a fact's history: the fact's id, its text, and whether mem0 deleted it."""


class History:
    """mem0's file ``history.db``; the first write creates the file."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.label = label
        self._database: sqlite3.Connection | None = None
        self._turns = Turns()
        self._reads_only = False
        self._rows = "history"
        """The table or subquery to read the history from."""
        self.warnings: list[str] = []

    def open(self, *, writes: bool) -> None:
        """Open the file if it exists; warn if an older version of mem0 wrote it.

        Raises:
            BadData: the file is damaged or is not a history of mem0; or an older mem0 wrote it,
                and ``writes`` is True.
            Unavailable: the operating system refuses to open the file.
        """
        self._reads_only = not writes
        if self.path.exists():
            self._connect()

    def _connect(self) -> sqlite3.Connection:
        with self._errors():
            mode = "rw" if self.path.exists() else "rwc"
            with suppress(OSError):  # SQLite opens an existing file, and reports errors
                system.create_private(self.path)
            uri = f"file:{quote(os.fsencode(self.path.absolute()))}?mode={mode}"
            database = sqlite3.connect(
                uri, _BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
            )
            # Bytes that are not UTF-8 become lone surrogates, which ``is_row`` rejects.
            database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            self._database = database
            if self._reads_only:
                database.execute("PRAGMA query_only = 1")
            found = {row[1] for row in database.execute("PRAGMA table_info(history)")}
        if found and not found.issuperset(COLUMNS):
            self._read_older(found)
        return database

    def _read_older(self, columns: set[str]) -> None:
        """Read the history of an older mem0: only the columns that mem0 2 also has.

        ``columns`` names the columns of the table.

        Raises:
            BadData: the store writes, or the table is not a history of mem0.
        """
        name = f"{self.label}: {visible(str(self.path))}"
        if not columns >= _OLDEST:
            raise BadData(
                f"{name} has a table 'history' that is not one of mem0",
                "set another history_db_path",
            )
        if not self._reads_only:
            raise BadData(
                f"{name} is the history of an older mem0, which can only be read",
                "open it once with mem0 2, which brings it up to date",
            )
        shared = (one if one in columns else f"NULL AS {one}" for one in COLUMNS)
        self._rows = f"(SELECT rowid AS rowid, {', '.join(shared)} FROM history)"
        left = ", ".join(sorted(columns - set(COLUMNS)))
        self.warnings.append(
            f"{name} is the history of an older mem0"
            + (f", whose columns {left} are not read" if left else "")
        )

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    async def load(self, ids: Sequence[str]) -> dict[str, list[Row]]:
        """Return the history rows of facts, by id of the fact, without facts that have no history.

        The rows of a fact have the order of mem0's ``Memory.history``.
        """
        found: dict[str, list[Row]] = {}
        ids = list(filter(is_kept, ids))
        where = f"memory_id IN ({','.join('?' * len(ids))})"
        order = "created_at, datetime(updated_at), rowid"
        rows = await self._fetch(
            f"SELECT {_NAMES} FROM {self._rows} WHERE {where} ORDER BY {order}", ids
        )
        for row in rows:
            about = {
                name: value for name, value in zip(COLUMNS, row, strict=True) if value is not None
            }
            found.setdefault(str(about.pop("memory_id")), []).append(about)
        return found

    async def put(self, histories: dict[str, list[Row]]) -> None:
        """Replace the history rows of facts; ``histories`` has the new rows by id of the fact."""
        if self._database is None and not any(histories.values()):
            return
        rows = [
            [id if name == "memory_id" else row.get(name) for name in COLUMNS]
            for id, some in histories.items()
            for row in some
        ]
        await self._turns.run(self._put, list(histories), rows)

    def _put(self, ids: list[str], rows: list[list[Any]]) -> None:
        with system_errors(self.path, "write"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        database = self._database or self._connect()
        with self._errors(), transaction(database):
            for statement in _SCHEMA:
                database.execute(statement)
            _delete(database, ids)
            places = ", ".join("?" * len(COLUMNS))
            database.executemany(f"INSERT OR REPLACE INTO history VALUES ({places})", rows)

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete the history rows of the facts with these ids."""
        await self._turns.run(self._delete, ids)

    def _delete(self, ids: Sequence[str]) -> None:
        if self._database is not None and self._has("history"):
            with self._errors(), transaction(self._database):
                _delete(self._database, ids)

    async def last(self) -> list[list[Last]]:
        """Return the last history row of each fact, in lists of at most 500."""
        sql = (
            "SELECT memory_id, new_memory, is_deleted FROM (SELECT *, row_number() OVER ("
            "PARTITION BY memory_id ORDER BY created_at DESC, datetime(updated_at) DESC, rowid DESC"
            f") AS place FROM {self._rows} WHERE memory_id IS NOT NULL) WHERE place = 1"
        )
        rows = await self._fetch(sql, ())
        ends = [(str(id), text, bool(deleted)) for id, text, deleted in rows]
        return [ends[start : start + _SOME] for start in range(0, len(ends), _SOME)]

    async def scopes(self) -> list[MemoryKey]:
        """Return the memories that have recent messages in the table ``messages``."""
        rows = await self._fetch("SELECT DISTINCT session_scope FROM messages", ())
        return [key for (scope,) in rows if (key := scope_key(scope)) is not None]

    async def rename_messages(self, moves: Mapping[MemoryKey, MemoryKey]) -> None:
        """Rename the memories of recent messages; ``moves`` are keys without agents."""
        pairs = [
            (session_scope(moves[named]._replace(part=key.part)), session_scope(key))
            for key in await self.scopes()
            if (named := key._replace(part="")) in moves
        ]
        if pairs:
            await self._turns.run(self._rename_messages, pairs)

    def _rename_messages(self, pairs: Sequence[tuple[str, str]]) -> None:
        assert self._database is not None
        with self._errors(), transaction(self._database):
            sql = "UPDATE messages SET session_scope = ? WHERE session_scope = ?"
            self._database.executemany(sql, pairs)

    async def delete_messages(self, key: MemoryKey) -> None:
        """Delete the recent messages of a memory from the table ``messages``."""
        await self._turns.run(self._delete_messages, session_scope(key))

    def _delete_messages(self, scope: str) -> None:
        if self._database is not None and self._has("messages") and is_kept(scope):
            with self._errors(), transaction(self._database):
                self._database.execute("DELETE FROM messages WHERE session_scope = ?", (scope,))

    async def rewrite_texts(
        self, rewriter: Rewriter, chosen: Mapping[str, RowTest] | None, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite the texts in both tables, also of facts that no vector store has any more.

        With ``chosen``, only the rows that pass their test are rewritten.

        Raises:
            MemctlError: as ``rewrite_file``.
        """
        if self._database is None:
            return
        rewriting = rewrite_file(
            self.path, self.label, rewriter, self.warnings, _NAMING, chosen, writes=writes
        )
        async with aclosing(rewriting) as results:
            async for result in results:
                yield result

    async def check_structure(self, warnings: list[str]) -> None:
        """Compare the indexes of the file with its tables; see ``check_structure`` of SQLite.

        Raises:
            DamagedFile: a row is missing from an index, or the file is damaged.
        """
        if self._database is not None:
            label = f"{self.label}: {visible(str(self.path))}"
            with self._errors():
                await self._turns.run(check_structure, self._database, label, warnings)

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self._turns.run(self._fetched, sql, values)

    def _fetched(self, sql: str, values: Sequence[Any]) -> list[Any]:
        table = "messages" if "FROM messages" in sql else "history"
        if self._database is None or not self._has(table):
            return []
        with self._errors():
            return self._database.execute(sql, values).fetchall()

    def _has(self, table: str) -> bool:
        assert self._database is not None
        with self._errors():
            sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            return self._database.execute(sql, (table,)).fetchone() is not None

    def _errors(self) -> AbstractContextManager[None]:
        remedy = "restore it from a backup, or set another history_db_path"
        return sqlite_errors(self.label, self.path, remedy)


@contextmanager
def sqlite_errors(
    label: str, file: Path, remedy: str = "restore it from a backup"
) -> Iterator[None]:
    """Turn an error of SQLite in the ``with`` block into an error of memctl.

    ``label`` names the store.  ``remedy`` is the hint for a damaged file.

    Raises:
        Unavailable: the file cannot be used.
        BadData: the file is damaged.
    """
    name = f"{label}: {visible(str(file))}"
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "check its permissions, the space left and who uses it"
        raise Unavailable(f"{name}: {error}", hint) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # error text may not be UTF-8
        raise BadData(f"{name} is damaged: {error}", remedy) from error


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run the ``with`` block in a transaction, which an error in it rolls back."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def rows_of(where: Selection, facts: Collection[str]) -> dict[str, RowTest]:
    """Return the tests of the rows of selected memories, which have these facts, by table."""

    def has_scope(scope: Any) -> bool:
        key = scope_key(scope)
        return key is not None and where.has_key(key)

    return {
        "history": RowTest(("memory_id",), facts.__contains__),
        "messages": RowTest(("session_scope",), has_scope),
    }


def is_row(row: Any) -> bool:
    """Return whether a JSON value is a history row that ``History.put`` can write."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return False
    return all(is_kept(row.get(name)) for name in COLUMNS)


def is_kept(value: Any) -> bool:
    """Return whether SQLite can store a JSON value in a column unchanged."""
    match value:
        case str():
            return not jsonio.has_surrogate(value)
        case int():
            return value in _INT64
    return value is None or isinstance(value, float)


def _delete(database: sqlite3.Connection, ids: Sequence[str]) -> None:
    # mem0 has no index on ``memory_id``: each statement reads the whole table.
    ids = list(filter(is_kept, ids))
    for start in range(0, len(ids), _SOME):
        some = ids[start : start + _SOME]
        where = f"memory_id IN ({','.join('?' * len(some))})"
        database.execute(f"DELETE FROM history WHERE {where}", tuple(some))


_PARTS = (("agent_id", "part"), ("run_id", "session"), ("user_id", "user"))


def session_scope(key: MemoryKey) -> str:
    """Return the name of a memory in the table ``messages`` (mem0's ``_build_session_scope``)."""
    return "&".join(
        f"{name}={_escaped(value)}" for name, field in _PARTS if (value := getattr(key, field))
    )


def scope_key(scope: Any) -> MemoryKey | None:
    """Return the memory that a name in the table ``messages`` stands for.

    Returns None if mem0 does not write such names.
    """
    found = {}
    for pair in str(scope).split("&"):
        name, equals, value = pair.partition("=")
        if not equals or name not in dict(_PARTS):
            return None
        found[dict(_PARTS)[name]] = (
            value.replace("%3D", "=").replace("%26", "&").replace("%25", "%")
        )
    return MemoryKey(found.get("user", ""), found.get("session", ""), found.get("part", ""))


def _escaped(value: str) -> str:
    return value.replace("%", "%25").replace("&", "%26").replace("=", "%3D")
