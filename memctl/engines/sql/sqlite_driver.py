"""Connections to SQLite whose waits and statements end at once when their task is cancelled."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import aiosqlite

T = TypeVar("T")

LOCK_TIMEOUT = 30
"""The maximum number of seconds to wait while another process locks the file."""
_SLICE = 0.25
"""The seconds of a single wait inside SQLite, which a cancellation cannot interrupt."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY)


class Call:
    """A call that runs in a connection's thread; ``cancelled`` is set if its task is cancelled."""

    cancelled = False
    waits = False
    """True while the call waits because another process locks the file."""


class Driver(sqlite3.Connection):
    """A connection of Python's ``sqlite3`` whose waits for locks end after a cancellation."""

    call: Call
    """The current call."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.closed = False
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose ``execute`` waits while other processes lock the file."""
        cursor: sqlite3.Cursor = super().cursor(factory or _Cursor)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Close the connection and its cursors: cursors with unread rows lock the file."""
        while self._cursors:
            self._cursors.pop().close()
        super().close()
        self.closed = True

    def execute(self, *statement: Any) -> Any:
        """Execute a statement; wait while other processes lock the file."""
        return self.cursor().execute(*statement)

    def executemany(self, *statement: Any) -> Any:
        """Execute a statement for each row of parameters, in a new cursor."""
        return self.cursor().executemany(*statement)

    def commit(self) -> None:
        """Commit the transaction; wait for readers that lock the file."""
        self.wait(super().commit)

    def wait(self, work: Callable[..., T], *args: Any) -> T:
        """Call ``work``, again and again while other processes lock the file; return its result.

        Raises:
            sqlite3.Error: ``work`` failed, or the file stayed locked until ``LOCK_TIMEOUT`` passed
                or the current call was cancelled.
        """
        end = 0.0
        try:
            while True:
                begun = time.monotonic()
                end = end or begun + LOCK_TIMEOUT
                try:
                    return work(*args)
                except sqlite3.OperationalError as error:
                    now = time.monotonic()
                    # If SQLite returned without a wait, waiting would not help, as in a deadlock.
                    waited = error.sqlite_errorcode in _BUSY and now - begun >= _SLICE / 2
                    if not waited or now > end or self.call.cancelled:
                        raise
                    self.call.waits = True
        finally:
            self.call.waits = False


class _Cursor(sqlite3.Cursor):
    connection: Driver

    def execute(self, *statement: Any) -> Any:
        return self.connection.wait(super().execute, *statement)


def open_driver(uri: str, call: Call) -> Driver:
    """Open a connection to a SQLite file; ``call`` becomes its current call.

    Raises:
        sqlite3.Error: as ``sqlite3.connect``.
    """
    # memctl begins transactions itself: the driver would begin none for reading.  Blobs are opened
    # from a thread other than aiosqlite's, while that thread waits.
    driver = sqlite3.connect(
        *(uri, _SLICE),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        factory=Driver,
    )
    driver.call = call
    return driver


class Connection(aiosqlite.Connection):
    """A connection of aiosqlite.  The cancellation of a task ends the task's call in the thread."""

    def __init__(self, connector: Callable[[Call], Driver], chunk_size: int) -> None:
        """Create a closed connection; ``connector`` will open the connection of the driver.

        The call of ``connector`` is in the thread.  ``chunk_size`` is the number of rows that an
        iteration fetches at a time.
        """
        self.opening = Call()
        self.reads_copy = False
        """True if the file is a copy that belongs to this run."""
        self._driver: Driver | None = None

        def open_it() -> Driver:
            self._driver = connector(self.opening)
            return self._driver

        super().__init__(open_it, chunk_size)

    @property
    def waits(self) -> bool:
        """True while a call waits because another process locks the file."""
        return (self.opening if self._driver is None else self._driver.call).waits

    @property
    def has_ended(self) -> bool:
        """True if the connection is closed and its thread has ended."""
        closed = self._driver is None or self._driver.closed
        return closed and not self._thread.is_alive()

    async def close(self) -> None:
        """Close the connection, which rolls back, and end its thread: in one call."""
        if self._running and (ended := self.stop()):
            await ended

    async def end(self) -> None:
        """Close the connection, and wait until its thread has ended.

        After a cancelled task, a connection may be open, and aiosqlite may end the
        thread without closing the connection.
        """
        if self._thread.is_alive():
            self.stop()
            await asyncio.to_thread(self._thread.join, LOCK_TIMEOUT)
        if self._driver is not None and not self._thread.is_alive():
            self._driver.close()

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        # All methods of connections and cursors call this method.
        call, driver = Call(), self._conn

        def work() -> Any:
            driver.call = call  # type: ignore[attr-defined]
            return fn(*args, **kwargs)

        try:
            return await super()._execute(work)  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            call.cancelled = True
            with suppress(sqlite3.ProgrammingError):  # already closed
                driver.interrupt()
            raise

    async def call(self, work: Callable[[Driver], T]) -> T:
        """Call ``work`` in the thread of the connection; return its result."""
        found: T = await self._execute(work, self._conn)
        return found

    async def commit(self) -> None:
        if self.in_transaction:
            await super().commit()

    async def rollback(self) -> None:
        if self.in_transaction:
            await super().rollback()

    async def fetch_all(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Run a query and return all of its rows, in one call: no lock on the file remains."""

        def fetch() -> list[Any]:
            with closing(self._conn.execute(sql, parameters)) as cursor:  # even after an error
                return cursor.fetchall()

        return await self._execute(fetch)  # type: ignore[no-any-return]

    async def fetch_bytes(
        self, table: str, column: str, sql: str, parameters: Any = ()
    ) -> bytes | None:
        """Return the bytes of a text or blob whose row the query ``sql`` names by its rowid.

        A query for the value itself would hold the bytes twice.  None if there is no such row.

        Raises:
            sqlite3.OperationalError: the value is neither a text nor a blob.
        """

        def fetch() -> bytes | None:
            begins = not self._conn.in_transaction
            if begins:  # between both steps, another program could change the row
                self._conn.execute("BEGIN")
            try:
                for (row,) in self._conn.execute(sql, parameters).fetchall():
                    with self._conn.blobopen(table, column, row, readonly=True) as blob:
                        return blob.read()
                return None
            finally:
                if begins:
                    self._conn.execute("ROLLBACK")

        return await self._execute(fetch)  # type: ignore[no-any-return]


async def connect(connection: Connection) -> Connection:
    """Open a connection in its thread and return it.

    If the task is cancelled, the connection is closed as soon as it is open.

    Raises:
        sqlite3.Error: SQLite cannot open the file.
    """
    opening = asyncio.ensure_future(_opened(connection))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        connection.opening.cancelled = True
        with suppress(sqlite3.Error):
            await (await opening).close()
        raise


async def _opened(connection: Connection) -> Connection:
    await connection
    return connection
