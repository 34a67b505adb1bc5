"""AgentScope's SQL memory in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from memctl import codec
from memctl.errors import BadData, Lost, MemctlError, NotFound, Unavailable, UsageError
from memctl.location import Location, same_file
from memctl.model import PAGE_ENTRIES, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.locks import FileLock
from memctl.stores.sql.database import FETCH_ROWS, SqlDatabase, ahead, first_line
from memctl.stores.sql.dialect import ALWAYS, Condition
from memctl.stores.sql.huge_messages import CHUNK_BYTES, HUGE_BYTES
from memctl.stores.sql.sqlite_files import HINT, LARGE_BYTES, Aside, recover, remove_journal
from memctl.stores.sql.store import SqlStore


async def driver_of(connection: AsyncConnection) -> aiosqlite.Connection:
    """The driver's own connection, within SQLAlchemy's transaction."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, aiosqlite.Connection)
    return driver


def add_functions(driver: sqlite3.Connection) -> None:
    """Gives a new connection memctl's functions."""
    driver.create_function("memctl_field", 2, _field, deterministic=True)
    driver.create_function("memctl_user", 3, partial(_user, driver))


def _field(message: str | bytes, name: str) -> str | None:
    text = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
    try:
        return codec.field(text, name)
    except ValueError:
        return None


def _user(driver: sqlite3.Connection, row: int, row_id: str, session: str) -> str | None:
    """What stands in a row id before the session and the id of its message.

    The message is read here: handed over by SQLite, a huge one would be there several times.
    """
    try:
        with driver.blobopen("message", "msg", row, readonly=True) as blob:
            name = _field(blob.read(), "id")
    except sqlite3.OperationalError:  # a number or NULL, which holds no id
        return None
    end = f"-{session}-{name}"
    return row_id.removesuffix(end) if name is not None and row_id.endswith(end) else None


async def sorted_rows(
    store: SqlDatabase, connection: AsyncConnection, where: Condition
) -> AsyncGenerator[Sequence[Any]]:
    """See ``SqlDatabase.sorted``."""
    await _sort(store, connection, where)
    # SQLite reads the marks of each message faster than it joins them all.
    marks = f"SELECT {store.mark_list} FROM message_mark k WHERE k.msg_id = o.id"
    sql = (
        f"SELECT o.session_id, o.owner, o.id, o.position, {store.small_payload()}, ({marks}) "
        "FROM temp.sorted o CROSS JOIN message m ON m.rowid = o.row_ ORDER BY o.rowid"
    )
    async with aclosing(store.rows(connection, sql, {})) as partitions:
        async for rows in partitions:
            yield rows


async def picked_rows(
    store: SqlDatabase, connection: AsyncConnection, memories: Condition, messages: Condition
) -> AsyncGenerator[Sequence[Any]]:
    """See ``SqlDatabase.picked``.

    Which messages there are, and their marks, is of one moment.  The texts, which never change, are
    fetched afterwards, some at a time: agents can write meanwhile.
    """
    driver = await driver_of(connection)
    values = dict(messages.values)
    ids = {"ids": values.pop("ids")} if "ids" in values else {}
    named = store.of_ids if ids else ALWAYS
    await _sort(store, connection, Condition(memories.sql, {**memories.values, **ids}), named)
    await driver.execute("DROP TABLE IF EXISTS temp.marked")
    await driver.execute(
        "CREATE TABLE temp.marked (msg_id TEXT, mark TEXT, PRIMARY KEY (msg_id, mark)) "
        "WITHOUT ROWID"
    )
    await driver.execute(
        "INSERT INTO temp.marked SELECT msg_id, mark FROM message_mark ORDER BY msg_id, mark"
    )
    await driver.commit()
    marks = "FROM temp.marked k WHERE k.msg_id = o.id"
    marked = f"EXISTS (SELECT 1 {marks} AND k.mark IN :marks)" if values else ALWAYS
    text = f"SELECT {store.small_payload()} FROM message m WHERE m.id = o.id"
    before = (
        "SELECT p.id FROM temp.sorted p WHERE p.rowid = o.place - 1 "
        "AND p.session_id = o.session_id AND p.owner = o.owner"
    )
    statement, bound = store.plain(
        "WITH o AS (SELECT rowid AS place, * FROM temp.sorted WHERE rowid > :low AND named) "
        f"SELECT o.session_id, o.owner, o.id, o.position, ({text}), "
        f"(SELECT {store.mark_list} {marks}), ({before}), o.place FROM o WHERE {marked} "
        f"ORDER BY o.place LIMIT {FETCH_ROWS}",
        {"low": 0, **values},
    )
    _, *others = bound  # that of low is the first
    low = 0

    async def fetch() -> Sequence[Any]:
        nonlocal low
        rows = list(await driver.execute_fetchall(statement, (low, *others)))
        low = rows[-1][-1] if rows else low
        return rows

    async with aclosing(ahead(fetch)) as partitions:
        async for rows in partitions:
            yield rows


async def _sort(
    store: SqlDatabase, connection: AsyncConnection, where: Condition, named: str = ALWAYS
) -> None:
    """Puts the keys of messages into ``temp.sorted``, and of which ``named`` is true."""
    driver = await driver_of(connection)
    statement, bound = store.plain(
        f"INSERT INTO temp.sorted SELECT m.rowid, m.session_id, {store.user}, m.id, "
        f"{store.index}, {named} FROM {store.source()} WHERE {where.sql} "
        f"ORDER BY m.session_id, 3, {store.index}, m.id",
        where.values,
    )
    await driver.execute("DROP TABLE IF EXISTS temp.sorted")
    await driver.execute(
        "CREATE TABLE temp.sorted (row_ INTEGER, session_id TEXT, owner TEXT, id TEXT, "
        "position INTEGER, named INTEGER)"
    )
    await driver.execute(statement, bound)


LOCK_TIMEOUT = 30
"""Seconds to wait for another process that writes to the file."""
LOOSE_ROWS = 50_000
"""How many messages are looked through before others may write."""
FIRST_ROW = -(2**63)


class SqliteStore(SqlStore):
    """A SQLite database; opened read-only unless it is a target.

    A source that is read for longer than a moment is copied aside, so that agents can go on
    writing to it: see ``aside``.
    """

    kind = "sqlite"
    mark_list = "json_group_array(k.mark)"
    payload = "CAST(m.msg AS BLOB)"
    row_columns = "rowid, id"
    # Without it SQLite groups the messages themselves and looks into them afterwards.
    apart = "LIMIT -1"
    driver_errors = (sqlite3.Error, UnicodeEncodeError)

    _driver: sqlite3.Connection
    _aside = False
    _named: list[str] | None = None
    """The row ids that are in the temporary table ``named``."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._threads: list[threading.Thread] = []
        self._lock = FileLock(location.path, self.label)
        self._copy = Aside()

    def make_engine(self) -> AsyncEngine:
        path = self.location.path
        if not path.name:
            raise UsageError("sqlite:// names no file", "write sqlite:///PATH")
        if path.is_dir():
            raise UsageError(f"{self.label} is a folder", "name the database file in it")
        if not self.mode.creates and not path.exists():
            raise NotFound(f"{self.label} does not exist", "check the path of the database")
        if self.mode.creates and not path.parent.is_dir():
            raise NotFound(f"the folder of {self.label} does not exist", "create it first")
        mode = "rwc" if self.mode.creates else "rw" if self.mode.writes else "ro"
        uri = f"file:{quote(str(path.absolute()))}?mode={mode}"

        def connect_driver() -> sqlite3.Connection:
            # Transactions are begun by hand: the driver would begin none for reading.  Blobs are
            # opened from another thread than aiosqlite's, while that one waits.
            self._threads.append(threading.current_thread())
            if not self.mode.creates:
                recover(path, LOCK_TIMEOUT)
            self._driver = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=LOCK_TIMEOUT, check_same_thread=False
            )
            if self.mode.writes:
                remove_journal(self._driver, path)
            add_functions(self._driver)
            return self._driver

        async def connect() -> aiosqlite.Connection:
            return await aiosqlite.Connection(connect_driver, iter_chunk_size=FETCH_ROWS)

        return create_async_engine("sqlite+aiosqlite://", async_creator=connect, poolclass=NullPool)

    async def lock(self, owner: str) -> None:
        self.warnings += await self._lock.take_in_thread(owner)

    async def close(self) -> None:
        self._lock.release()
        self._copy.remove()
        await super().close()
        # aiosqlite lets its threads end by themselves, and what they say last needs the loop.
        for thread in self._threads:
            await asyncio.to_thread(thread.join, LOCK_TIMEOUT)
        self._threads.clear()

    async def identity(self) -> str:
        return f"file:{same_file(self.location.path)}"

    def field(self, name: str) -> str:
        # SQLite's JSON functions refuse NaN; memctl's own function takes what Python takes.
        return (
            f"CASE WHEN NOT json_valid(m.msg) THEN memctl_field(m.msg, '{name}') "
            f"WHEN json_type(m.msg, '$.{name}') = 'text' THEN json_extract(m.msg, '$.{name}') END"
        )

    def source(self) -> str:
        # What is the same for all rows of a session is worked out once, and in bytes: SQLite's
        # texts end at a NUL for some functions, and for others not.
        owner, between = "CAST(user_id AS BLOB)", "CAST('-' || id || '-' AS BLOB)"
        start = "CAST(user_id || '-' || id || '-' AS BLOB)"
        sessions = (
            f"(SELECT id, user_id, {start} AS start, length({start}) AS size, "
            f"{between} AS between_, length({owner}) + 2 AS behind, "
            f"instr({start}, {between}) = length({owner}) + 1 AS plain "
            "FROM session LIMIT -1) s ON"
        )
        return super().source().replace("session s ON", sessions)

    def splits(self) -> str:
        row_id = "CAST(m.id AS BLOB)"
        return (
            f"s.plain AND substr({row_id}, 1, s.size) = s.start "
            f"AND instr(substr({row_id}, s.behind), s.between_) = 0"
        )

    def rest(self) -> str:
        return "CAST(substr(CAST(m.id AS BLOB), s.size + 1) AS TEXT)"

    def suffix(self) -> str:
        return "memctl_user(m.rowid, m.id, m.session_id)"

    def size(self) -> str:
        # octet_length need not load the message.
        known = sqlite3.sqlite_version_info >= (3, 43)
        return "octet_length(m.msg)" if known else "LENGTH(CAST(m.msg AS BLOB))"

    def sorted(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        return sorted_rows(self, connection, where)

    def picked(
        self, connection: AsyncConnection, memories: Condition, messages: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        return picked_rows(self, connection, memories, messages)

    async def unsorted(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # Some at a time, as ``picked``.
        await (await driver_of(connection)).commit()
        statement = self.loose(f"{where.sql} AND m.rowid > :low", "m.rowid")
        statement += f" ORDER BY m.rowid LIMIT {LOOSE_ROWS}"
        low: int | None = FIRST_ROW
        while low is not None:
            values: dict[str, Any] = {**where.values, "low": low}
            low = None
            source = self.rows(connection, statement, values, PAGE_ENTRIES)
            async with aclosing(source) as partitions:
                async for rows in partitions:
                    low = rows[-1][-1]
                    yield rows

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        done: set[MemoryKey] = set()
        copy = await self._copy_first(where)
        if copy is None:
            async with aclosing(super().read(where)) as pages:
                async for page in pages:
                    key, last = page.memory.key, page.last
                    yield page
                    del page  # not kept while the next one is read: it may be large
                    if last and self._copy.watched:
                        done.add(key)
                        if self._copy.due:
                            copy = await self._copy.copy()
                            if copy is not None:
                                break
        if copy is not None:
            rest = where.without(frozenset(done))
            async with SqliteStore(replace(self.location, path=copy)) as store:
                store.label, store.skips_damage = self.label, self.skips_damage
                async with aclosing(SqlStore.read(store, rest)) as pages:
                    async for page in pages:
                        yield page
            self._copy.remove()

    async def _copy_first(self, where: Selection) -> Path | None:
        """A copy of a large file of which all is to be read; None where it is read itself."""
        part = where.users or where.sessions or where.keys is not None
        if part or self.mode.creates or self.location.path.stat().st_size < LARGE_BYTES:
            return None
        async with self.snapshot(opened=False):
            return await self._copy.copy() if self._copy.watched else None

    async def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        statement, bound = self.plain(sql, values)
        cursor = await (await driver_of(connection)).execute(statement, bound)
        try:
            fetch = partial(_fetch, cursor, size)
            async with aclosing(ahead(fetch)) as partitions:
                async for rows in partitions:
                    yield rows
        finally:
            await cursor.close()

    def is_repeat(self, error: BaseException) -> bool:
        return getattr(error, "sqlite_errorcode", None) in _REPEATS

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[AsyncConnection]:
        # One journal for all transactions: each would make it and remove it.
        async with super().connected() as connection:
            driver = await driver_of(connection)
            with self.errors():
                async with driver.execute("PRAGMA journal_mode") as cursor:
                    journal = await cursor.fetchone()
                if journal == ("delete",):
                    await driver.execute("PRAGMA journal_mode = PERSIST")
            try:
                yield connection
            finally:
                if journal == ("delete",):
                    with suppress(sqlite3.Error):  # somebody uses the file, and removes it then
                        await driver.execute("PRAGMA journal_mode = DELETE")

    async def begin_read(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("BEGIN")
        if not self.mode.creates:
            size = self.location.path.stat().st_size
            await self._copy.begin(await driver_of(connection), size)

    async def begin_write(self, connection: AsyncConnection) -> None:
        self._aside = False
        self._named = None
        await connection.exec_driver_sql("BEGIN IMMEDIATE")

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        if "msg" in columns:
            huge = [row for row in rows if len(row[1]) > HUGE_BYTES]
            if huge:
                rows = [row for row in rows if len(row[1]) <= HUGE_BYTES]
                await self._put_aside(connection, huge)
        if rows:
            driver = await driver_of(connection)
            await driver.executemany(_insert_sql(table, columns), rows)

    async def _put_aside(self, connection: AsyncConnection, rows: list[Any]) -> None:
        """Streams huge messages into a temporary table.

        To insert a row SQLite copies its values twice, and the third copy, the one of the caller,
        would be one too many: ``settle`` inserts when that is gone.
        """
        await connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS temp.huge "
            "(id TEXT, session_id TEXT, position INTEGER, msg BLOB)"
        )
        self._aside = True
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

    async def settle(self, connection: AsyncConnection) -> None:
        if not self._aside:
            return
        await connection.exec_driver_sql(
            'INSERT INTO message (id, msg, session_id, "index") '
            "SELECT id, CAST(msg AS TEXT), session_id, position FROM temp.huge"
        )
        await connection.exec_driver_sql("DELETE FROM temp.huge")
        self._aside = False

    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        sql = f"{_insert_sql(table, columns)} ON CONFLICT (id) DO NOTHING"
        return (await connection.exec_driver_sql(sql, rows)).rowcount

    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: list[str]
    ) -> Sequence[Any]:
        driver = await driver_of(connection)
        if row_ids is not self._named:
            self._named = None
            await driver.execute("CREATE TABLE IF NOT EXISTS temp.named (id TEXT)")
            await driver.execute("DELETE FROM temp.named")
            await driver.executemany("INSERT INTO temp.named VALUES (?)", zip(row_ids, strict=True))
            self._named = row_ids
        chosen = sql.replace("IN :rows", "IN (SELECT id FROM temp.named)")
        cursor = await driver.execute(*self.plain(chosen, {}))
        return list(await cursor.fetchall())

    def translate(self, error: BaseException) -> MemctlError | None:
        text = first_line(error)
        code = getattr(error, "sqlite_errorcode", None)
        name = getattr(error, "sqlite_errorname", "") or ""
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return BadData(f"{self.label}: {text}", "it is not a SQLite database, or it is damaged")
        if code in (sqlite3.SQLITE_FULL,):
            return Unavailable(f"{self.label}: {text}", "free some space and run again")
        if name == "SQLITE_READONLY_ROLLBACK":
            return Unavailable(f"{self.label}: {text}", HINT)
        if name.startswith("SQLITE_READONLY"):
            return Unavailable(f"{self.label}: {text}", "make the file and its folder writable")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Lost(f"{self.label}: {text}", "another program is writing to it")
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | UnicodeEncodeError):
            return None
        return Unavailable(f"{self.label}: {text}")


_REPEATS = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


def _insert_sql(table: str, columns: Sequence[str]) -> str:
    names = ", ".join(f'"{column}"' for column in columns)
    # The message comes as bytes: SQLite makes a text of them without copying it.
    places = ", ".join("CAST(? AS TEXT)" if column == "msg" else "?" for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({places})"


async def _fetch(cursor: aiosqlite.Cursor, size: int) -> Sequence[Any]:
    return list(await cursor.fetchmany(size))
