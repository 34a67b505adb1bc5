"""A copy of a SQLite file, to read from it for as long as it takes.

Outside of WAL mode, who reads keeps others from writing, and AgentScope's writes give up after the
five seconds that Python's ``sqlite3`` waits.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import aiosqlite

HELD_SECONDS = 4.0
"""How long a file may be kept from being written, the copying included."""
LARGE_BYTES = 500_000_000
"""Of a larger file all that is read is read from a copy: it is sorted first, and that holds it."""
COPIED_A_SECOND = 500_000_000
"""Bytes; slow disks take longer, and fast ones less."""


class Aside:
    """The copy of a file that is being read, made when that takes too long.

    Copied within the transaction that reads, it holds what that transaction sees.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._driver: aiosqlite.Connection | None = None
        self._due = 0.0

    async def begin(self, driver: aiosqlite.Connection, size: int) -> None:
        """A transaction begins that may last, on a file of ``size`` bytes.

        In WAL mode nobody minds.
        """
        self._driver = None
        async with driver.execute("PRAGMA journal_mode") as cursor:
            if await cursor.fetchone() != ("wal",):
                self._driver = driver
                held = max(HELD_SECONDS / 4, HELD_SECONDS - size / COPIED_A_SECOND)
                self._due = time.monotonic() + held

    @property
    def watched(self) -> bool:
        """Whether the transaction keeps others from writing."""
        return self._driver is not None

    @property
    def due(self) -> bool:
        """Whether the transaction has lasted too long."""
        return self._driver is not None and time.monotonic() > self._due

    async def copy(self) -> Path | None:
        """The copy, readable by this user alone; None where there is no room for it."""
        driver, self._driver = self._driver, None
        assert driver is not None
        self._folder = tempfile.TemporaryDirectory(prefix="memctl-")
        path = Path(self._folder.name) / "copy.db"
        with suppress(sqlite3.OperationalError, OSError):
            target = sqlite3.connect(path, check_same_thread=False)
            try:
                # Nobody needs it after a crash, so nobody waits for the disk.
                target.execute("PRAGMA synchronous = OFF")
                target.execute("PRAGMA journal_mode = OFF")
                await driver.backup(target)
            finally:
                target.close()
            return path
        self.remove()
        return None

    def remove(self) -> None:
        """Removes the copy, if there is one."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
