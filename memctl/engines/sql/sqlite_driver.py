"""Connections to SQLite that end at once what nobody waits for any more: a lock, or a statement."""

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
"""Seconds to wait for another process that writes to the file."""
_SLICE = 0.25
"""Seconds for which SQLite itself waits: nothing can interrupt that."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY)


class Call:
    """One piece of work in the thread of a connection, which its task may cancel."""

    cancelled = False


class Driver(sqlite3.Connection):
    """A connection of the driver, opened with ``open_driver``."""

    call: Call
    """The work at hand."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.closed = False
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that waits in the same way."""
        cursor: sqlite3.Cursor = super().cursor(factory or _Cursor)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Close, with the cursors: one that has rows left would keep the file locked."""
        while self._cursors:
            self._cursors.pop().close()
        super().close()
        self.closed = True

    def execute(self, *statement: Any) -> Any:
        """Execute as ``_Cursor`` does."""
        return self.cursor().execute(*statement)

    def executemany(self, *statement: Any) -> Any:
        """Execute as ``_Cursor`` does."""
        return self.cursor().executemany(*statement)

    def commit(self) -> None:
        """Commit; readers may be in the way."""
        self.wait(super().commit)

    def wait(self, work: Callable[..., T], *args: Any) -> T:
        """Work, again while others have locked the file, as SQLite would in one go.

        Raises:
            sqlite3.Error: as the driver, after ``LOCK_TIMEOUT`` or when the call was cancelled.
        """
        end = 0.0
        while True:
            begun = time.monotonic()
            end = end or begun + LOCK_TIMEOUT
            try:
                return work(*args)
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                # Where it has not waited, the lock would never come.
                waited = error.sqlite_errorcode in _BUSY and now - begun >= _SLICE / 2
                if not waited or now > end or self.call.cancelled:
                    raise


class _Cursor(sqlite3.Cursor):
    connection: Driver

    def execute(self, *statement: Any) -> Any:
        return self.connection.wait(super().execute, *statement)


def open_driver(uri: str, call: Call) -> Driver:
    """Open a connection; its first work, too, is this call.

    Raises:
        sqlite3.Error: as ``sqlite3.connect``.
    """
    # Transactions are begun by hand: the driver would begin none for reading.  Blobs are opened
    # from another thread than aiosqlite's, while that one waits.
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
    """A connection of aiosqlite; what is cancelled ends in its thread, too."""

    def __init__(self, connector: Callable[[Call], Driver], chunk_size: int) -> None:
        """``connector`` is called in the thread."""
        self.opening = Call()
        self._driver: Driver | None = None

        def open_it() -> Driver:
            self._driver = connector(self.opening)
            return self._driver

        super().__init__(open_it, chunk_size)

    @property
    def has_ended(self) -> bool:
        """Return whether the connection is closed, and its thread has ended."""
        closed = self._driver is None or self._driver.closed
        return closed and not self._thread.is_alive()

    async def end(self) -> None:
        """Close the connection, and wait for its thread.

        Where a task was cancelled, SQLAlchemy may leave one without closing it, and aiosqlite may
        end the thread alone.
        """
        if self._thread.is_alive():
            self.stop()
            await asyncio.to_thread(self._thread.join, LOCK_TIMEOUT)
        if self._driver is not None and not self._thread.is_alive():
            self._driver.close()

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        # All methods of connections and cursors come here.
        call, driver = Call(), self._conn

        def work() -> Any:
            driver.call = call  # type: ignore[attr-defined]
            return fn(*args, **kwargs)

        try:
            return await super()._execute(work)  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            call.cancelled = True
            with suppress(sqlite3.ProgrammingError):  # it is closed by now
                driver.interrupt()
            raise

    async def fetch_all(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Return all rows of a statement in one step, so that no lock is held between two."""

        def fetch() -> list[Any]:
            with closing(self._conn.execute(sql, parameters)) as cursor:  # closed also on errors
                return cursor.fetchall()

        return await self._execute(fetch)  # type: ignore[no-any-return]

    def check(self, *_: int) -> None:
        """End the work at hand if it was cancelled: a backup, which nothing else interrupts.

        Raises:
            sqlite3.OperationalError: it was.
        """
        if self._conn.call.cancelled:  # type: ignore[attr-defined]
            raise sqlite3.OperationalError("interrupted")


async def connect(connection: Connection) -> Connection:
    """Open a connection in its thread, which is not left alone when this is cancelled.

    Raises:
        sqlite3.Error: as the connector.
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
