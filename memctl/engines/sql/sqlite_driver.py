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
"""The seconds to wait for another process that writes to the file."""
_SLICE = 0.25
"""The seconds of a wait inside SQLite; nothing can interrupt the wait."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY)


class Call:
    """A call in the thread of a connection, which its task may cancel."""

    cancelled = False


class Driver(sqlite3.Connection):
    """A connection of the driver, opened with ``open_driver``."""

    call: Call
    """The current call."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.closed = False
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor whose ``execute`` waits as ``wait`` does."""
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
        """Execute as ``_Cursor`` does."""
        return self.cursor().execute(*statement)

    def executemany(self, *statement: Any) -> Any:
        """Execute as ``_Cursor`` does."""
        return self.cursor().executemany(*statement)

    def commit(self) -> None:
        """Commit; wait for readers that lock the file."""
        self.wait(super().commit)

    def wait(self, work: Callable[..., T], *args: Any) -> T:
        """Repeat a call while other processes lock the file, as SQLite's own timeout would.

        Raises:
            sqlite3.Error: as the driver, after ``LOCK_TIMEOUT`` or a cancellation.
        """
        end = 0.0
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


class _Cursor(sqlite3.Cursor):
    connection: Driver

    def execute(self, *statement: Any) -> Any:
        return self.connection.wait(super().execute, *statement)


def open_driver(uri: str, call: Call) -> Driver:
    """Open a connection; ``call`` is its first call.

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
    """A connection of aiosqlite whose cancelled calls also end in the thread."""

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
        """Return whether the connection is closed and its thread has ended."""
        closed = self._driver is None or self._driver.closed
        return closed and not self._thread.is_alive()

    async def end(self) -> None:
        """Close the connection, and wait for its thread.

        After a cancelled task, SQLAlchemy may leave a connection open, and aiosqlite may end the
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

    async def fetch_all(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Return all rows of a statement in one step, so that no lock is held between steps."""

        def fetch() -> list[Any]:
            with closing(self._conn.execute(sql, parameters)) as cursor:  # even after an error
                return cursor.fetchall()

        return await self._execute(fetch)  # type: ignore[no-any-return]

    def check(self, *_: int) -> None:
        """End the current call if it was cancelled: a backup has no other way to be interrupted.

        Raises:
            sqlite3.OperationalError: the call was cancelled.
        """
        if self._conn.call.cancelled:  # type: ignore[attr-defined]
            raise sqlite3.OperationalError("interrupted")


async def connect(connection: Connection) -> Connection:
    """Open a connection in its thread; after a cancellation, wait and close the connection.

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
