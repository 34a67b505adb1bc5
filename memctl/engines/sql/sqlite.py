"""SQLite: one file, one writer at a time."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import aiosqlite

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import FETCH_ROWS, Database, first_line, prefetch, shown_name
from memctl.engines.sql.side_effects import Trigger
from memctl.engines.sql.sqlite_driver import (
    LOCK_TIMEOUT,
    Call,
    Connection,
    Driver,
    connect,
    open_driver,
)
from memctl.engines.sql.sqlite_engine import SqliteEngine
from memctl.engines.sql.sqlite_files import (
    HINT,
    LARGE_BYTES,
    RECOVER,
    PrivateCopy,
    SnapshotCopy,
    check_structure,
    recover,
    remove_journal,
)
from memctl.engines.sql.syntax import Syntax
from memctl.errors import BadData, Lost, MemctlError, Unavailable, UsageError
from memctl.location import Location, same_file
from memctl.machine import system
from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.shard import Shard, shard_hash
from memctl.storekit.files import missing
from memctl.storekit.locks import FileLock
from memctl.storekit.single_file import stamp_of

if TYPE_CHECKING:
    import sqlalchemy

    from memctl.engines.sql.alchemy import AlchemyEngine

T = TypeVar("T")

_CANNOT_OPEN = "check who owns the file and its folder, and the limit of open files (ulimit -n)"
_IO_ERROR = (
    "check that the disk has room, the limit of the size of files (ulimit -f), and the system's log"
)
_DELETE_EVENT = re.compile(r"\bDELETE\s+ON\b", re.IGNORECASE)
"""The event of a trigger that runs at deletions, in the statement that made the trigger."""
HAS_OCTETS = sqlite3.sqlite_version_info >= (3, 43)
"""True if this SQLite has ``octet_length``, the size of a text without loading the text."""
_DUPLICATE_KEY = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


class SqliteSyntax(Syntax):
    """The SQL of SQLite."""

    typed = False
    json_place = "CAST(:json AS TEXT)"
    reads_briefly = True
    # Without the barrier SQLite groups the messages themselves and parses them afterwards.
    subquery_barrier = "LIMIT -1"

    def exact_text(self, value: str) -> str:
        return f"quote({value})"

    def shard_hash(self, name: str) -> str:
        # As bytes, because a text that is not UTF-8 cannot be passed as text.
        return f"CASE typeof({name}) WHEN 'text' THEN memctl_shard(CAST({name} AS BLOB)) END"

    def json_size(self, column: str) -> str:
        # octet_length does not load the text.
        return f"octet_length({column})" if HAS_OCTETS else f"LENGTH(CAST({column} AS BLOB))"

    def json_text(self, column: str) -> str:
        return f"CAST({column} AS BLOB)"

    def stored_time(self, time: datetime) -> Any:
        return time.isoformat(" ", "microseconds")  # as SQLAlchemy writes it

    def temporary(self, table: str) -> str:
        return f"temp.{table}"


class SqliteDatabase(Database):
    """A SQLite file, opened read-only unless the mode writes."""

    syntax_class = SqliteSyntax
    parallel = False
    driver_errors: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeError)

    _driver: sqlite3.Connection
    _connected: Callable[..., Awaitable[Connection]]
    """Opens a connection of the driver, to the file or to a copy at a path."""

    def __init__(self, location: Location, label: str) -> None:
        super().__init__(location, label)
        self._snapshot_copy = SnapshotCopy()
        self._private_copy = PrivateCopy(location.path, label)
        self._copying = asyncio.Lock()
        """Held while a copy is made: several readers share it."""
        self._opening = threading.Lock()
        """Held while a connection is opened: each connection is opened in its own thread."""
        self._connections: list[Connection] = []
        """The connections to end in ``close``; some may have ended already."""
        self._file_lock = FileLock(location.path, label)
        self._decodes_all = False

    def make_engine(self) -> SqliteEngine:
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

        def connect_driver(copied: Path | None, call: Call) -> Driver:
            if copied is not None:
                self._driver = open_driver(_uri(copied, "ro"), call)
            else:
                self._driver = self._open_driver(path, mode, call)
            if self.mode.writes:
                remove_journal(self._driver, path)
            self._driver.create_function("memctl_shard", 1, _shard_hash, deterministic=True)
            self.add_functions(self._driver)
            if self._decodes_all:
                self._driver.text_factory = decode_name
            return self._driver

        async def connected(copied: Path | None = None) -> Connection:
            connection = Connection(partial(connect_driver, copied), FETCH_ROWS)
            connection.reads_copy = copied is not None
            self._connections = [one for one in self._connections if not one.has_ended]
            self._connections.append(connection)
            return await connect(connection)

        self._connected = connected
        return SqliteEngine(connected)

    def schema_engine(self) -> AlchemyEngine:
        from sqlalchemy.exc import SQLAlchemyError  # only to create tables, and for few layouts

        from memctl.engines.sql.alchemy import AlchemyEngine

        self.driver_errors = (*type(self).driver_errors, SQLAlchemyError)
        return AlchemyEngine("sqlite+aiosqlite://", self._connected)

    async def run(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        engine = self.schema_engine()
        with self.errors():
            async with engine.connection() as connection:
                return await connection.run(work)

    async def waits_for(self) -> str:
        waits = any(one.waits for one in self._connections)
        return (
            f"another program, which locks {self.label} (up to {LOCK_TIMEOUT} s)" if waits else ""
        )

    def add_functions(self, driver: sqlite3.Connection) -> None:
        """Register SQL functions on a new connection; a layout overrides this method."""

    def _open_driver(self, path: Path, mode: str, call: Call) -> Driver:
        """Open a connection to the file, or to a private copy of the file.

        A copy is made if SQLite cannot read the file without writing.  ``mode`` is SQLite's ``ro``,
        ``rw`` or ``rwc``, and ``call`` the first call of the connection.

        Raises:
            sqlite3.Error: SQLite cannot open the file.
            MemctlError: as ``PrivateCopy.make``.
        """
        with self._opening:
            if self._private_copy.path is not None:
                return open_driver(_uri(self._private_copy.path, "rw"), call)
            try:
                if self.mode.creates:
                    with suppress(OSError):  # SQLite opens an existing file, and reports errors
                        system.create_private(path)
                else:
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

    # SQLite keeps foreign keys only for connections that ask for it, and memctl's do not.
    triggers_sql = "SELECT tbl_name, type, name, sql FROM sqlite_master WHERE type = 'trigger'"

    async def identity(self) -> str:
        return f"file:{same_file(self.location.path)}"

    async def lock(
        self,
        owner: str,
        warnings: list[str],
        shard: Shard | None,  # noqa: ARG002 - a file has one writer
    ) -> None:
        warnings += await self._file_lock.take_in_thread(owner)

    async def close(self) -> None:
        self._file_lock.release()
        try:
            await super().close()
        finally:
            # aiosqlite does not wait for its threads, and their last callbacks need the event loop.
            while self._connections:
                await self._connections.pop().end()
            self._snapshot_copy.remove()
            self._private_copy.remove()

    # Errors

    def translate(self, error: BaseException) -> MemctlError | None:
        if isinstance(error, UnicodeDecodeError):  # an error text, or a column name
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
        if name.startswith("SQLITE_IOERR"):
            return Unavailable(f"{self.label}: {text}", _IO_ERROR)
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
        # Keep one journal file for all transactions: each would create and remove it.
        async with super().connect() as connection:
            driver = await driver_of(connection)
            with self.errors():
                [(journal,)] = await driver.fetch_all("PRAGMA journal_mode")
                if journal == "delete":
                    await driver.fetch_all("PRAGMA journal_mode = PERSIST")
            try:
                yield connection
            finally:
                if journal == "delete":
                    # Fails if the connection is closed, or if another program uses the file, which
                    # then removes the journal.
                    with suppress(sqlite3.Error, ValueError):
                        await driver.fetch_all("PRAGMA journal_mode = DELETE")

    async def delete_triggers(self, connection: AsyncConnection) -> list[Trigger]:
        rows = await self.fetch_all(connection, self.triggers_sql, {})
        return [
            Trigger(*map(shown_name, (table, kind, name)))
            for table, kind, name, sql in rows
            if _DELETE_EVENT.search(sql)
        ]

    async def begin_read(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("BEGIN")
        if not self.mode.creates:
            size = self.location.path.stat().st_size
            await self._snapshot_copy.watch(await driver_of(connection), size)

    async def begin_write(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")

    async def prepare_erasing(self, connection: AsyncConnection) -> None:
        with self.errors():
            await (await driver_of(connection)).execute("PRAGMA secure_delete = ON")

    async def finish_erasing(self, connection: AsyncConnection) -> None:
        with suppress(sqlite3.Error):  # a reader needs the log: the next checkpoint empties it
            await (await driver_of(connection)).execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    async def clear_free_space(self, warnings: list[str]) -> None:
        with self.errors():
            connection = await self.connect_autocommit()
            try:
                await (await driver_of(connection)).execute_fetchall("VACUUM")
                await self.finish_erasing(connection)
            except sqlite3.OperationalError as error:  # it is in use, or the disk has no room
                warnings.append(
                    f"free pages of {self.label} may hold what rows held before: VACUUM failed "
                    f"({error}); run it when no program uses the file"
                )
            finally:
                await connection.close()

    # Reading

    async def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        statement, bound = self.compile(sql, values)
        driver = await driver_of(connection)
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
        # Read again, and skip the rows that were already yielded.
        async with await driver.execute(statement, bound) as cursor:
            while passed:
                passed -= len(await _fetch(cursor, min(passed, size)))
            while rows := await _fetch(cursor, size):
                yield rows

    async def all_rows(
        self, connection: AsyncConnection, statement: str, bound: Sequence[Any]
    ) -> Sequence[Any]:
        driver = await driver_of(connection)
        try:
            return await driver.fetch_all(statement, bound)
        except sqlite3.OperationalError as error:
            await self._decode_all(connection, error)
        return await driver.fetch_all(statement, bound)

    async def _decode_all(
        self, connection: AsyncConnection, error: sqlite3.OperationalError
    ) -> None:
        """From now on, return texts that are not UTF-8 with lone surrogates, which mark damage.

        ``error`` is SQLite's error for the first such text.  This is not the default, because
        decoding in Python is slow.

        Raises:
            sqlite3.OperationalError: ``error``, if its cause is not such a text.
        """
        if self._decodes_all or "decode to UTF-8" not in str(error):
            raise error
        self._decodes_all = True
        (await driver_of(connection)).text_factory = decode_name

    @asynccontextmanager
    async def reading(self, *, long: bool) -> AsyncGenerator[AsyncConnection]:
        copy, engine = self._snapshot_copy, self._engine
        async with AsyncExitStack() as stack:
            async with self._copying:  # until it is open, since a newer copy takes its place
                if copy.keeps or (long and await self._is_copied()):
                    engine = SqliteEngine(partial(self._connected, copy.path))
                connection = await stack.enter_async_context(engine.connection())
            yield connection

    async def _is_copied(self) -> bool:
        """Return whether a copy of a large file has its present content; make the copy if not."""
        copy, stamp = self._snapshot_copy, stamp_of(self.location)
        alone = self.mode.writes or self._private_copy.path is not None
        if alone or copy.failed or self.location.path.stat().st_size < LARGE_BYTES:
            return False
        if copy.serves(stamp):
            return True
        async with self._engine.connection() as connection:
            await self.begin_read(connection)
            return copy.is_watching and await copy.make(stamp)

    async def read_pages(
        self, where: Selection, read: Callable[[Selection], AsyncGenerator[Page]]
    ) -> AsyncGenerator[Page]:
        done: set[MemoryKey] = set()
        copy, copied = self._snapshot_copy, False
        async with aclosing(read(where)) as pages:
            async for page in pages:
                key, last = page.memory.key, page.last
                yield page
                del page  # no reference is kept while the next page is read: it may be large
                if last and copy.is_watching:
                    done.add(key)
                    if copy.is_due:
                        async with self._copying:
                            copied = await copy.make(None)
                        if copied:
                            break
        if not copied:
            return
        copy.keeps = True
        try:
            async with aclosing(read(where.without(frozenset(done)))) as pages:
                async for page in pages:
                    copy.keeps = False  # it is open
                    yield page
                    del page
        finally:
            copy.keeps = False

    async def check_structure(self, warnings: list[str]) -> None:
        async with super().snapshot(long=True) as connection:  # without the reads of a layout
            work = partial(check_structure, label=self.label, warnings=warnings)
            await (await driver_of(connection)).call(work)

    # Changing

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        driver = await driver_of(connection)
        cursor = await driver.executemany(insert_statement(table, columns), rows)
        self.check_inserted(table, len(rows), cursor.rowcount)


decode_name = partial(str, encoding="utf-8", errors="surrogateescape")


def _shard_hash(name: bytes) -> str:
    return shard_hash(decode_name(name))


async def driver_of(connection: AsyncConnection) -> Connection:
    """Return the connection of aiosqlite that a connection uses."""
    driver = await connection.driver()
    assert isinstance(driver, Connection)
    return driver


async def _fetch(cursor: aiosqlite.Cursor, size: int) -> Sequence[Any]:
    return list(await cursor.fetchmany(size))


def insert_statement(table: str, columns: Sequence[str]) -> str:
    names = ", ".join(f'"{column}"' for column in columns)
    # The message is passed as bytes: SQLite converts them to text without a copy.
    values = ", ".join(
        "CAST(? AS TEXT)" if column in ("msg", "payload") else "?" for column in columns
    )
    return f"INSERT INTO {table} ({names}) VALUES ({values})"
