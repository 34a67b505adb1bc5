"""AgentScope's SQL memory in a SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from memctl import jsonio
from memctl.engines.sql.database import FETCH_ROWS, Database, damage, first_line, prefetch
from memctl.engines.sql.sqlite_driver import (
    Call,
    Connection,
    Driver,
    connect,
    open_driver,
)
from memctl.engines.sql.sqlite_files import (
    HINT,
    LARGE_BYTES,
    PrivateCopy,
    SnapshotCopy,
    recover,
    remove_journal,
)
from memctl.errors import BadData, Failure, Lost, MemctlError, Unavailable, UsageError
from memctl.location import Location, same_file
from memctl.model import PAGE_ENTRIES, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.storekit.files import missing
from memctl.storekit.locks import FileLock
from memctl.stores.agentscope1.sql.dialect import (
    ALWAYS,
    BLOB,
    COLUMNS,
    UNPROVEN,
    Condition,
    Dialect,
)
from memctl.stores.agentscope1.sql.huge_messages import CHUNK_BYTES, HUGE_BYTES
from memctl.stores.agentscope1.sql.read import ReadMode, SqlReader
from memctl.stores.agentscope1.sql.store import SqlStore
from memctl.stores.agentscope2.sql import Agentscope2Store
from memctl.stores.agno.store import AgnoStore
from memctl.stores.openai.branches import BranchStore
from memctl.stores.tables.store import TableStore

RECOVER = (
    "the file is damaged: restore it from a backup, or save what can be read with "
    "sqlite3 FILE .recover | sqlite3 NEW"
)
SEARCH_ROWS = 50_000
"""Number of messages that are searched before others may write."""
FIRST_ROW = -(2**63)

_CANNOT_OPEN = "check who owns the file and its folder, and the limit of open files (ulimit -n)"
_OCTETS = sqlite3.sqlite_version_info >= (3, 43)
"""True where SQLite tells the size of a text without loading it."""
_STAGED_KEYS = "memctl.staged_keys"
_DUPLICATE_KEY = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


_MAY_BE_UNSOUND = "(typeof({0}) <> 'text' OR {0} GLOB '*[^ -~]*')"
"""SQL for a mark that is no text, or has other characters than those of ASCII."""


class SqliteDialect(Dialect):
    """The SQL of SQLite, with two functions of memctl's own: see ``add_functions``."""

    mark_array = "json_group_array(CASE typeof(k.mark) WHEN 'text' THEN k.mark END)"
    payload = "CAST(m.msg AS BLOB)"
    row_columns = "rowid, id"
    typed = False
    json_place = "CAST(:json AS TEXT)"
    reads_briefly = True
    is_sound = (
        "typeof(id) = 'text' AND typeof(session_id) = 'text' AND typeof(\"index\") = 'integer' "
        "AND msg IS NOT NULL"
    )
    # What is the same for all rows of a session is computed once, and in bytes: SQLite's texts end
    # at a NUL for some functions, and for others not.
    _user, _between = "CAST(user_id AS BLOB)", "CAST('-' || id || '-' AS BLOB)"
    _start = "CAST(user_id || '-' || id || '-' AS BLOB)"
    session_table = (
        f"(SELECT id, user_id, {_start} AS start, length({_start}) AS size, "
        f"{_between} AS between_, length({_user}) + 2 AS behind, "
        f"instr({_start}, {_between}) = length({_user}) + 1 AS plain "
        "FROM session WHERE typeof(id) = 'text' AND typeof(user_id) = 'text' LIMIT -1)"
    )
    in_row_ids = "IN (SELECT id FROM temp.memctl_keys)"
    # Without it SQLite groups the messages themselves and parses them afterwards.
    subquery_barrier = "LIMIT -1"

    def field(self, name: str) -> str:
        # SQLite's JSON functions refuse NaN; memctl's own function takes what Python takes.
        return (
            f"CASE WHEN NOT json_valid(m.msg) THEN memctl_field(CAST(m.msg AS BLOB), '{name}') "
            f"WHEN json_type(m.msg, '$.{name}') = 'text' THEN json_extract(m.msg, '$.{name}') END"
        )

    def is_plain_id(self) -> str:
        row_id = "CAST(m.id AS BLOB)"
        return (
            f"s.plain AND substr({row_id}, 1, s.size) = s.start "
            f"AND instr(substr({row_id}, s.behind), s.between_) = 0"
        )

    def message_id(self) -> str:
        return "CAST(substr(CAST(m.id AS BLOB), s.size + 1) AS TEXT)"

    def parsed_user(self) -> str:
        return "memctl_user(m.rowid, CAST(m.id AS BLOB), CAST(m.session_id AS BLOB))"

    is_sound_mark = "typeof(k.msg_id) = 'text' AND typeof(k.mark) = 'text'"

    def proven_payload(self) -> str:
        # Without Python's lock, while Python is busy with the rows before.
        type_ = "typeof(m.msg)"
        first = f"CASE {type_} WHEN 'blob' THEN x'{BLOB.hex()}' ELSE x'{UNPROVEN.hex()}' END"
        proven = f"CASE WHEN {type_} = 'text' AND json_valid(m.msg) THEN {self.payload} "
        return f"{proven} ELSE CAST({first} || {self.payload} AS BLOB) END"

    def message_size(self) -> str:
        return self.json_size("m.msg")

    def json_size(self, column: str) -> str:
        # octet_length need not load the text.
        return f"octet_length({column})" if _OCTETS else f"LENGTH(CAST({column} AS BLOB))"

    def json_text(self, column: str) -> str:
        return f"CAST({column} AS BLOB)"

    def stored_time(self, time: datetime) -> Any:
        return time.isoformat(" ", "microseconds")  # as SQLAlchemy writes it

    def temporary(self, table: str) -> str:
        return f"temp.{table}"

    def damaged_rows(self, table: str, *, proved: bool = False) -> str:
        joined = f"LEFT JOIN {self.session_table} s ON s.id = m.session_id"
        match table:
            case "message" if proved:
                return ""
            case "message":
                fault = self._damaged_message()
                user, session = self._owner, "m.session_id"
                source = f"(SELECT rowid, * FROM message WHERE {fault}) m {joined}"
            case "message_mark":  # those of a message that goes, too
                fault = (
                    "typeof(msg_id) <> 'text' OR typeof(mark) <> 'text' OR "
                    "memctl_damaged(NULL, CAST(msg_id AS BLOB), CAST(mark AS BLOB))"
                )
                if not proved:
                    damaged = f"SELECT id FROM message WHERE {self._damaged_message()}"
                    fault += f" OR msg_id IN ({damaged})"
                user, session = f"CASE WHEN m.id IS NOT NULL THEN {self._owner} END", "m.session_id"
                source = (
                    f"(SELECT rowid, * FROM message_mark WHERE {fault}) t "
                    f"LEFT JOIN message m ON m.id = t.msg_id {joined}"
                )
            case _:
                names = COLUMNS[table]
                types = " OR ".join(f"typeof({name}) <> 'text'" for name in names)
                texts = ", ".join(f"CAST({name} AS BLOB)" for name in names)
                user, session = ("t.user_id", "t.id") if table == "session" else ("t.id", "NULL")
                source = f"(SELECT rowid, * FROM {table} WHERE {types} " + (
                    f"OR memctl_damaged(NULL, {texts})) t"
                )
        row = "m" if table == "message" else "t"
        cells = ", ".join(
            f'typeof({row}."{name}"), CASE typeof({row}."{name}") WHEN \'text\' '
            f'THEN CAST({row}."{name}" AS BLOB) ELSE {row}."{name}" END'
            for name in COLUMNS[table]
        )
        key = ", ".join(
            f"CASE typeof({of}) WHEN 'text' THEN CAST({of} AS BLOB) "
            f"WHEN 'null' THEN NULL ELSE CAST(quote({of}) AS BLOB) END"
            for of in (user, session)
        )
        return f"SELECT {row}.rowid, {key}, NULL, {cells} FROM {source}"

    def _damaged_message(self) -> str:
        small = f"octet_length(msg) <= {HUGE_BYTES}" if _OCTETS else f"length(msg) <= {HUGE_BYTES}"
        return (
            f"(NOT ({self.is_sound}) OR memctl_damaged(CASE WHEN {small} THEN CAST(msg AS BLOB) "
            "END, CAST(id AS BLOB), CAST(session_id AS BLOB)))"
        )

    @property
    def _owner(self) -> str:
        """SQL for the user of a row that may be damaged."""
        readable = "typeof(m.id) = 'text' AND typeof(m.session_id) = 'text'"
        return f"CASE WHEN {readable} THEN {self.user} ELSE s.user_id END"

    def unsoundly_marked(self) -> str:
        """Return the statement that reads whose marks are not texts in UTF-8: user and session."""
        return (
            f"SELECT CAST({self.user} AS BLOB), CAST(m.session_id AS BLOB) FROM {self.source()} "
            f"JOIN message_mark k ON k.msg_id = m.id WHERE {_MAY_BE_UNSOUND.format('k.mark')} "
            "AND (typeof(k.mark) <> 'text' OR memctl_damaged(NULL, CAST(k.mark AS BLOB)))"
        )

    def unsound_messages(self) -> str:
        """Return the statement that reads which messages are not sound.

        Its columns are the user and the session, both as bytes, and what is wrong.
        """
        fault = (
            "CASE WHEN typeof(m.id) <> 'text' THEN 'its id is ' || typeof(m.id) "
            "WHEN typeof(m.session_id) <> 'text' THEN 'its session is ' || typeof(m.session_id) "
            "WHEN m.msg IS NULL THEN 'its message is null' "
            "ELSE 'its index is ' || typeof(m.\"index\") END"
        )
        return (
            f"SELECT CAST({self._owner} AS BLOB), CAST(CASE typeof(m.session_id) WHEN 'text' "
            f"THEN m.session_id ELSE quote(m.session_id) END AS BLOB), "
            f"'row ' || m.rowid || ' of the table message: ' || {fault} "
            f"FROM (SELECT rowid, * FROM message WHERE NOT ({self.is_sound})) m "
            f"LEFT JOIN {self.session_table} s ON s.id = m.session_id"
        )


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


class SqliteDatabase(Database):
    """A SQLite file; opened read-only unless it is to be written."""

    dialect_class = SqliteDialect
    driver_errors = (sqlite3.Error, UnicodeError)

    dialect: SqliteDialect
    _driver: sqlite3.Connection

    def __init__(self, location: Location, label: str) -> None:
        super().__init__(location, label)
        self.snapshot_copy = SnapshotCopy()
        self._private_copy = PrivateCopy(location.path, label)
        self._opening = threading.Lock()
        """Each connection is opened in a thread of its own."""
        self._connections: list[Connection] = []
        """Connections that were opened, and may not have ended."""
        self._file_lock = FileLock(location.path, label)
        self._has_staged_rows = False
        self._decodes_all = False

    def make_engine(self) -> AsyncEngine:
        path = self.location.path
        if not path.name:
            raise UsageError("sqlite:// names no file", "write sqlite:///PATH")
        if path.is_dir():
            raise UsageError(f"{self.label} is a folder", "name the database file in it")
        if path.exists() and not path.is_file():
            raise BadData(f"{self.label} is not a regular file", "name a database file")
        if not self.mode.creates and not path.exists():
            raise missing(path, self.label)
        if self.mode.creates and not path.parent.is_dir():
            raise missing(path, self.label, folder=True)
        mode = "rwc" if self.mode.creates else "rw" if self.mode.writes else "ro"

        def connect_driver(call: Call) -> Driver:
            self._driver = self._open_driver(path, mode, call)
            if self.mode.writes:
                remove_journal(self._driver, path)
            add_functions(self._driver)
            if self._decodes_all:
                self._driver.text_factory = _decode
            return self._driver

        async def connected() -> Connection:
            connection = Connection(connect_driver, FETCH_ROWS)
            self._connections = [one for one in self._connections if not one.has_ended]
            self._connections.append(connection)
            return await connect(connection)

        return create_async_engine(
            "sqlite+aiosqlite://", async_creator=connected, poolclass=NullPool
        )

    def _open_driver(self, path: Path, mode: str, call: Call) -> Driver:
        """Open a connection to the file, or to a private copy if SQLite cannot read it in place.

        Raises:
            sqlite3.Error: as ``open_driver``.
            MemctlError: as ``PrivateCopy.make``.
        """
        with self._opening:
            if self._private_copy.path is not None:
                return open_driver(_uri(self._private_copy.path, "rw"), call)
            try:
                if not self.mode.creates:
                    recover(path, call)
                driver = open_driver(_uri(path, mode), call)
                try:
                    if not self.mode.writes:
                        driver.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                except BaseException:
                    driver.close()
                    raise
                return driver
            except sqlite3.Error as error:
                if self.mode.writes or not self._private_copy.is_needed(error):
                    raise
            copy = self._private_copy.make(call)
            self.details.append(f"{self.label} is read through a private copy: {copy}")
            recover(copy, call)
            return open_driver(_uri(copy, "rw"), call)

    async def identity(self) -> str:
        return f"file:{same_file(self.location.path)}"

    async def lock(self, owner: str, warnings: list[str]) -> None:
        warnings += await self._file_lock.take_in_thread(owner)

    async def close(self) -> None:
        self._file_lock.release()
        self.snapshot_copy.remove()
        try:
            await super().close()
        finally:
            # aiosqlite lets its threads end by themselves; their last callbacks need the loop.
            while self._connections:
                await self._connections.pop().end()
            self._private_copy.remove()

    # Errors

    def translate(self, error: BaseException) -> MemctlError | None:
        if isinstance(error, UnicodeDecodeError):  # SQLite's own words, or the name of a column
            return BadData(f"{self.label} holds a name that is not UTF-8", RECOVER)
        text = first_line(error)
        code = getattr(error, "sqlite_errorcode", None)
        name = getattr(error, "sqlite_errorname", "") or ""
        if code == sqlite3.SQLITE_NOTADB:
            return BadData(
                f"{self.label}: {text}",
                "check the file: it is not a SQLite database, or it is damaged",
            )
        if name.startswith("SQLITE_CORRUPT") or name == "SQLITE_IOERR_SHORT_READ":
            return BadData(f"{self.label}: {text}", RECOVER)
        if "decode to UTF-8" in text or "user-defined function" in text:
            return BadData(f"{self.label}: {text}", RECOVER)
        if code in (sqlite3.SQLITE_FULL,):
            return Unavailable(f"{self.label}: {text}", "free some space and run again")
        if name == "SQLITE_READONLY_DIRECTORY" or (
            name.startswith("SQLITE_CANTOPEN") and self._folder_refuses_files()
        ):
            return Unavailable(
                f"{self.label}: SQLite cannot write to its folder",
                "make the file and its folder writable",
            )
        if name.startswith("SQLITE_CANTOPEN"):
            return Unavailable(f"{self.label}: {text}", _CANNOT_OPEN)
        if name == "SQLITE_READONLY_ROLLBACK":
            return Unavailable(f"{self.label}: {text}", HINT)
        if name.startswith("SQLITE_READONLY"):
            return Unavailable(f"{self.label}: {text}", "make the file and its folder writable")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Lost(
                f"{self.label}: {text}", "wait until the other program has finished writing"
            )
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | UnicodeEncodeError):
            return None
        return Unavailable(f"{self.label}: {text}")

    def _folder_refuses_files(self) -> bool:
        path = same_file(self.location.path)
        return os.access(path, os.R_OK) and not os.access(os.path.dirname(path), os.W_OK)

    def is_duplicate_key(self, error: BaseException) -> bool:
        return getattr(error, "sqlite_errorcode", None) in _DUPLICATE_KEY

    # Transactions

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[AsyncConnection]:
        # One journal for all transactions: each would create it and remove it.
        async with super().connect() as connection:
            driver = await _driver(connection)
            with self.errors():
                async with driver.execute("PRAGMA journal_mode") as cursor:
                    journal = await cursor.fetchone()
                if journal == ("delete",):
                    await driver.execute("PRAGMA journal_mode = PERSIST")
            try:
                yield connection
            finally:
                if journal == ("delete",):
                    # Somebody uses the file, and removes it then; or the connection is closed.
                    with suppress(sqlite3.Error, ValueError):
                        await driver.execute("PRAGMA journal_mode = DELETE")

    async def describe_unsound(self, connection: AsyncConnection) -> dict[MemoryKey, Failure]:
        driver = await _driver(connection)
        damaged: dict[MemoryKey, Failure] = {}
        sql = f"SELECT 1 FROM message WHERE NOT ({self.dialect.is_sound}) LIMIT 1"
        if await driver.execute_fetchall(sql):
            sql = self.dialect.unsound_messages()
            for user, session, fault in await driver.execute_fetchall(sql):
                damaged[MemoryKey(_name(user), _name(session))] = damage(fault)
            self.dialect.has_unsound = True
        sql = f"SELECT 1 FROM message_mark WHERE {_MAY_BE_UNSOUND.format('mark')} LIMIT 1"
        if await driver.execute_fetchall(sql):
            for user, session in await driver.execute_fetchall(self.dialect.unsoundly_marked()):
                key = MemoryKey(_name(user), _name(session))
                damaged[key] = damage("a mark of a message is not a string")
        sql = (
            "SELECT CAST(CASE typeof(user_id) WHEN 'text' THEN user_id ELSE quote(user_id) END "
            "AS BLOB), CAST(CASE typeof(id) WHEN 'text' THEN id ELSE quote(id) END AS BLOB) "
            "FROM session WHERE typeof(id) <> 'text' OR typeof(user_id) <> 'text'"
        )
        for user, session in await driver.execute_fetchall(sql):
            key = MemoryKey(_name(user), _name(session))
            damaged[key] = damage("a value of its row in session is not a string")
        return damaged

    async def begin_read(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("BEGIN")
        if not self.mode.creates:
            size = self.location.path.stat().st_size
            await self.snapshot_copy.watch(await _driver(connection), size)

    async def begin_write(self, connection: AsyncConnection) -> None:
        self._has_staged_rows = False
        connection.info.pop(_STAGED_KEYS, None)  # a rollback empties the table
        await connection.exec_driver_sql("BEGIN IMMEDIATE")

    async def prepare_erasing(self, connection: AsyncConnection) -> None:
        with self.errors():
            await (await _driver(connection)).execute("PRAGMA secure_delete = ON")

    async def finish_erasing(self, connection: AsyncConnection) -> None:
        with suppress(sqlite3.Error):  # a reader keeps the log: the next checkpoint takes it
            await (await _driver(connection)).execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    # Reading

    async def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        statement, bound = self.compile(sql, values)
        driver = await _driver(connection)
        cursor = await driver.execute(statement, bound)
        passed = 0
        try:
            fetch = partial(_fetch, cursor, size)
            async with aclosing(prefetch(fetch)) as partitions:
                async for rows in partitions:
                    passed += len(rows)
                    yield rows
            return
        except sqlite3.OperationalError as error:
            await self._decode_all(connection, error)
        finally:
            await cursor.close()
        # The same rows once more, but for those that passed.
        async with await driver.execute(statement, bound) as cursor:
            while passed:
                passed -= len(await _fetch(cursor, min(passed, size)))
            while rows := await _fetch(cursor, size):
                yield rows

    async def _all_rows(
        self, connection: AsyncConnection, statement: str, bound: Sequence[Any]
    ) -> Sequence[Any]:
        driver = await _driver(connection)
        try:
            return await driver.fetch_all(statement, bound)
        except sqlite3.OperationalError as error:
            await self._decode_all(connection, error)
        return await driver.fetch_all(statement, bound)

    async def _decode_all(
        self, connection: AsyncConnection, error: sqlite3.OperationalError
    ) -> None:
        """Have texts that are not UTF-8 come with lone surrogates: a name that has them is damaged.

        Costs so much that only a database pays for it in which there is such a text.

        Raises:
            sqlite3.OperationalError: the error is another.
        """
        if self._decodes_all or "decode to UTF-8" not in str(error):
            raise error
        self._decodes_all = True
        (await _driver(connection)).text_factory = _decode

    async def read_ordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # The keys are sorted, and the messages fetched by these: in SQLite's sorter the messages
        # would go to the disk and back.
        await self._sort_keys(connection, where)
        # SQLite reads the marks of each message faster than it joins them all.
        marks = f"SELECT {self.dialect.mark_array} FROM message_mark k WHERE k.msg_id = o.id"
        sql = (
            "SELECT o.session_id, o.owner, o.id, o.position, "
            f"{self.dialect.small_payload()}, ({marks}), o.session_owner "
            "FROM temp.sorted o CROSS JOIN message m ON m.rowid = o.row_ ORDER BY o.rowid"
        )
        async with aclosing(self.rows(connection, sql, {})) as partitions:
            async for rows in partitions:
                yield rows

    async def read_matching(
        self, connection: AsyncConnection, memories: Condition, messages: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # Which messages there are, and their marks, is of one moment.  The texts, which never
        # change, are fetched afterwards, some at a time: agents can write meanwhile.
        dialect = self.dialect
        driver = await _driver(connection)
        values = dict(messages.values)
        ids = {"ids": values.pop("ids")} if "ids" in values else {}
        named = dialect.has_id if ids else ALWAYS
        condition = Condition(memories.sql, {**memories.values, **ids})
        await self._sort_keys(connection, condition, named)
        await driver.execute("DROP TABLE IF EXISTS temp.marked")
        await driver.execute(
            "CREATE TABLE temp.marked (msg_id TEXT, mark TEXT, PRIMARY KEY (msg_id, mark)) "
            "WITHOUT ROWID"
        )
        await driver.execute(
            "INSERT OR IGNORE INTO temp.marked "
            "SELECT msg_id, CASE typeof(mark) WHEN 'text' THEN mark ELSE x'' END "
            "FROM message_mark WHERE msg_id IS NOT NULL ORDER BY msg_id, mark"
        )
        await driver.commit()
        marks = "FROM temp.marked k WHERE k.msg_id = o.id"
        marked = f"EXISTS (SELECT 1 {marks} AND k.mark IN :marks)" if values else ALWAYS
        text = f"SELECT {dialect.small_payload()} FROM message m WHERE m.id = o.id"
        before = (
            "SELECT p.id FROM temp.sorted p WHERE p.rowid = o.place - 1 "
            "AND p.session_id = o.session_id AND p.owner = o.owner"
        )
        statement, bound = self.compile(
            "WITH o AS (SELECT rowid AS place, * FROM temp.sorted WHERE rowid > :low AND named) "
            f"SELECT o.session_id, o.owner, o.id, o.position, ({text}), "
            f"(SELECT {dialect.mark_array} {marks}), o.session_owner, ({before}), o.place "
            f"FROM o WHERE {marked} "
            f"ORDER BY o.place LIMIT {FETCH_ROWS}",
            {"low": 0, **values},
        )
        _, *others = bound  # that of low is the first
        low = 0

        async def fetch() -> Sequence[Any]:
            nonlocal low
            rows = await self._all_rows(connection, statement, (low, *others))
            low = rows[-1][-1] if rows else low
            return rows

        async with aclosing(prefetch(fetch)) as partitions:
            async for rows in partitions:
                yield rows

    async def _sort_keys(
        self, connection: AsyncConnection, where: Condition, named: str = ALWAYS
    ) -> None:
        """Put the keys of messages into ``temp.sorted``, and for which of them ``named`` holds."""
        dialect = self.dialect
        driver = await _driver(connection)
        statement, bound = self.compile(
            f"INSERT INTO temp.sorted SELECT m.rowid, m.session_id, {dialect.user}, m.id, "
            f"{dialect.index}, s.user_id, {named} FROM {dialect.source()} WHERE {where.sql} "
            f"ORDER BY m.session_id, 3, {dialect.index}, m.id",
            where.values,
        )
        await driver.execute("DROP TABLE IF EXISTS temp.sorted")
        await driver.execute(
            "CREATE TABLE temp.sorted (row_ INTEGER, session_id TEXT, owner TEXT, id TEXT, "
            "position INTEGER, session_owner TEXT, named INTEGER)"
        )
        await driver.execute(statement, bound)

    async def read_unordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # Some at a time, as in ``read_matching``.
        await (await _driver(connection)).commit()
        statement = self.dialect.select_unordered(f"{where.sql} AND m.rowid > :low", "m.rowid")
        statement += f" ORDER BY m.rowid LIMIT {SEARCH_ROWS}"
        low: int | None = FIRST_ROW
        while low is not None:
            values: dict[str, Any] = {**where.values, "low": low}
            low = None
            source = self.rows(connection, statement, values, PAGE_ENTRIES)
            async with aclosing(source) as partitions:
                async for rows in partitions:
                    low = rows[-1][-1]
                    yield rows

    # Changing

    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        driver = await _driver(connection)
        staged = tuple(row_ids)
        if connection.info.get(_STAGED_KEYS) != staged:
            connection.info.pop(_STAGED_KEYS, None)
            await driver.execute("CREATE TABLE IF NOT EXISTS temp.memctl_keys (id TEXT)")
            await driver.execute("DELETE FROM temp.memctl_keys")
            await driver.executemany(
                "INSERT INTO temp.memctl_keys VALUES (?)", zip(staged, strict=True)
            )
            connection.info[_STAGED_KEYS] = staged
        statement, bound = self.compile(sql, {})
        return await self._all_rows(connection, statement, bound)

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        if table == "message":
            huge = [row for row in rows if len(row[1]) > HUGE_BYTES]
            if huge:
                rows = [row for row in rows if len(row[1]) <= HUGE_BYTES]
                await self._stage_large_rows(connection, huge)
        if rows:
            driver = await _driver(connection)
            await driver.executemany(_insert_sql(table, columns), rows)

    async def execute_json_many(
        self,
        connection: AsyncConnection,
        sql: str,
        texts: Sequence[bytes],
        values: Sequence[Mapping[str, Any]],
    ) -> None:
        statement, bound = self.compile_json_many(sql, texts, values)
        await (await _driver(connection)).executemany(statement, bound)

    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        sql = f"{_insert_sql(table, columns)} ON CONFLICT (id) DO NOTHING"
        return (await connection.exec_driver_sql(sql, rows)).rowcount

    async def _stage_large_rows(self, connection: AsyncConnection, rows: list[Any]) -> None:
        """Stream huge messages into a temporary table.

        To insert a row SQLite copies its values twice, and the third copy, the one of the caller,
        would be one too many: ``insert_staged`` inserts when that is gone.
        """
        await connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS temp.huge "
            "(id TEXT, session_id TEXT, position INTEGER, msg BLOB)"
        )
        self._has_staged_rows = True
        for row_id, message, session, position in rows:
            result = await connection.exec_driver_sql(
                "INSERT INTO temp.huge VALUES (?, ?, ?, zeroblob(?))",
                (row_id, session, position, len(message)),
            )
            await asyncio.to_thread(self._fill, result.lastrowid, message)

    def _fill(self, row: int, message: bytes) -> None:
        view = memoryview(message)
        with self._driver.blobopen("huge", "msg", row, name="temp") as blob:
            for start in range(0, len(view), CHUNK_BYTES):
                blob.write(view[start : start + CHUNK_BYTES])

    async def insert_staged(self, connection: AsyncConnection) -> None:
        if not self._has_staged_rows:
            return
        await connection.exec_driver_sql(
            'INSERT INTO message (id, msg, session_id, "index") '
            "SELECT id, CAST(msg AS TEXT), session_id, position FROM temp.huge"
        )
        await connection.exec_driver_sql("DELETE FROM temp.huge")
        self._has_staged_rows = False


class SqliteReader:
    """A reading of a file that keeps agents from writing for a moment at most.

    A source that is read for longer is copied first, or while it is read: see ``SnapshotCopy``.
    """

    def __init__(self, store: Store, database: SqliteDatabase) -> None:
        self._store = store
        self._database = database

    async def pages(
        self,
        where: Selection,
        read: Callable[[Selection], AsyncGenerator[Page]],
        read_copy: Callable[[Path, Selection], AsyncGenerator[Page]],
    ) -> AsyncGenerator[Page]:
        """Yield the pages that ``read`` gives, or those of a copy."""
        done: set[MemoryKey] = set()
        snapshot_copy = self._database.snapshot_copy
        copy = await self._copy_first(where)
        if copy is None:
            async with aclosing(read(where)) as pages:
                async for page in pages:
                    key, last = page.memory.key, page.last
                    yield page
                    del page  # not kept while the next one is read: it may be large
                    if last and snapshot_copy.is_watching:
                        done.add(key)
                        if snapshot_copy.is_due:
                            copy = await snapshot_copy.make()
                            if copy is not None:
                                break
        if copy is not None:
            rest = where.without(frozenset(done))
            async with aclosing(read_copy(copy, rest)) as pages:
                async for page in pages:
                    yield page
                    del page
            snapshot_copy.remove()

    async def _copy_first(self, where: Selection) -> Path | None:
        """Copy a large file of which all is to be read; return None where it is read itself."""
        part = where.users or where.sessions or where.keys is not None
        place = self._store.location.path
        if part or self._store.mode.creates or place.stat().st_size < LARGE_BYTES:
            return None
        async with self._database.snapshot(find_huge=False):
            copy = self._database.snapshot_copy
            return await copy.make() if copy.is_watching else None


class SqliteTableStore(TableStore):
    """A table of somebody else in a SQLite file."""

    kind = "sqlite-table"
    database_class = SqliteDatabase
    database: SqliteDatabase

    def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        reader = SqliteReader(self, self.database)
        return reader.pages(where, super()._pages, self._copy_pages)

    async def _copy_pages(self, path: Path, where: Selection) -> AsyncGenerator[Page]:
        copy = SqliteTableStore(replace(self.location, path=path))
        copy.skips_damage, copy.damage, copy.left_out = (
            self.skips_damage,
            self.damage,
            self.left_out,
        )
        async with copy, aclosing(TableStore._pages(copy, where)) as pages:
            async for page in pages:
                yield page
                del page


class SqliteAgnoStore(AgnoStore):
    """The sessions of Agno in a SQLite file."""

    kind = "sqlite-agno"
    database_class = SqliteDatabase


class SqliteBranchStore(BranchStore):
    """The branches of sessions of the OpenAI Agents SDK in a SQLite file."""

    kind = "sqlite-openai-branches"
    database_class = SqliteDatabase


class SqliteAgentscope2Store(Agentscope2Store):
    """AgentScope 2.x sessions in a SQLite database."""

    kind = "sqlite-agentscope2"
    database_class = SqliteDatabase


class SqliteStore(SqlStore):
    """A SQLite database.

    A source that is read for longer than a moment is copied first, or while it is read, so that
    agents can go on writing to it: see ``SnapshotCopy``.
    """

    kind = "sqlite"
    database_class = SqliteDatabase
    database: SqliteDatabase

    def _read(self, where: Selection) -> AsyncGenerator[Page]:
        return SqliteReader(self, self.database).pages(where, super()._read, self._read_copy)

    async def _read_copy(self, path: Path, where: Selection) -> AsyncGenerator[Page]:
        database = SqliteDatabase(replace(self.location, path=path), self.label)
        await database.open(OpenMode.READ)
        try:
            reader = SqlReader(database, where, ReadMode.FULL, skip_damage=self.skips_damage)
            async with aclosing(where.apply(reader.pages())) as pages:
                async for page in pages:
                    yield page
                    del page
        finally:
            self.database.doubts += database.doubts + database.dialect.has_unsound
            await database.close()


_decode = partial(str, encoding="utf-8", errors="surrogateescape")


def _name(text: bytes | None) -> str:
    return "" if text is None else _decode(text)


async def _driver(connection: AsyncConnection) -> Connection:
    """Return the driver's own connection, within SQLAlchemy's transaction."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, Connection)
    return driver


async def _fetch(cursor: aiosqlite.Cursor, size: int) -> Sequence[Any]:
    return list(await cursor.fetchmany(size))


def _insert_sql(table: str, columns: Sequence[str]) -> str:
    names = ", ".join(f'"{column}"' for column in columns)
    # The message comes as bytes: SQLite makes a text of them without copying it.
    values = ", ".join(
        "CAST(? AS TEXT)" if column in ("msg", "payload") else "?" for column in columns
    )
    return f"INSERT INTO {table} ({names}) VALUES ({values})"


def add_functions(driver: sqlite3.Connection) -> None:
    """Add memctl's functions to a new connection: those named ``memctl_`` in statements."""
    driver.create_function("memctl_field", 2, _field, deterministic=True)
    driver.create_function("memctl_user", 3, partial(_user, driver))
    driver.create_function("memctl_damaged", -1, _damaged, deterministic=True)


def _damaged(message: bytes | None, *names: bytes) -> bool:
    """Return whether a message is not a JSON object, or a name not UTF-8."""
    try:
        for text in (message or b"", *names):
            text.decode()
        return message is not None and not isinstance(jsonio.outline(message), dict)
    except ValueError:
        return True


def _field(message: bytes | None, name: str) -> str | None:
    try:
        return jsonio.field(message or b"", name)
    except ValueError:
        return None


def _user(driver: sqlite3.Connection, row: int, id: bytes, in_session: bytes) -> str | None:
    """Return what precedes the session and the id of its message in a row id.

    The message is read here: handed over by SQLite, a huge one would be there several times.
    """
    try:
        with driver.blobopen("message", "msg", row, readonly=True) as blob:
            name = _field(blob.read(), "id")
        row_id, session = id.decode(), in_session.decode()
    except (sqlite3.OperationalError, UnicodeDecodeError):  # a number or NULL, which holds no id
        return None
    end = f"-{session}-{name}"
    return row_id.removesuffix(end) if name is not None and row_id.endswith(end) else None
