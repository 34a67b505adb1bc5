"""SQLite files on disk: copies for reading, and the journals of killed programs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from subprocess import DEVNULL
from urllib.parse import quote

from memctl.engines.sql.sqlite_driver import Call, Connection, open_driver
from memctl.errors import Lost, Unavailable
from memctl.location import same_file
from memctl.store import DamagedFile
from memctl.storekit.files import temporary_folder

RECOVER = (
    "the file is damaged: restore it from a backup, or save what can be read with "
    "sqlite3 FILE .recover | sqlite3 NEW"
)
REINDEX = 'make its indexes anew: sqlite3 FILE "REINDEX"; or restore it from a backup'
_MOST_LINES = 10_000
_OF_VALUES = re.compile(r"NULL value in |CHECK constraint failed |[A-Za-z-]+ value in ")
"""Lines of ``integrity_check`` about values that a declaration forbids: every read finds them."""

MAX_WAIT = 4.0
"""The seconds that a read may block writers of the file, including the time to copy the file."""
LARGE_BYTES = 250_000_000
"""The size above which a file is copied before whole tables are read."""
COPIED_PER_SECOND = 500_000_000
"""The assumed speed of copying a file, in bytes per second."""

_MAIN_FILE = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
_COPIED_BYTES = 4 * 1024 * 1024
_COPY_ATTEMPTS = 3
_ENDS = "", "-wal", "-journal"
"""The suffixes of the database file, its write-ahead log and its rollback journal."""
_HEADER_BYTES, _WRITE_VERSION, _WAL = 20, 18, b"\2\2"
"""A file's header: its size, the place of the format versions, and their value in WAL mode.

Source: https://sqlite.org/fileformat2.html
"""
_NEEDS_WRITING = "SQLITE_CANTOPEN", "SQLITE_READONLY"
"""Prefixes of SQLite's error names if it must write to the file or folder before it can read."""


def check_structure(driver: sqlite3.Connection, label: str, warnings: list[str]) -> None:
    """Compare the indexes of a SQLite file with its tables, and check its pages.

    ``PRAGMA quick_check`` takes a third of the time, but does not find an index that lacks rows: a
    query by this index then misses rows without an error.  A text is added to ``warnings`` if
    SQLite lacks what an index needs, such as a collation of the application.

    Raises:
        DamagedFile: the file is damaged.
        sqlite3.Error: the file cannot be read.
    """
    try:
        lines = driver.execute(f"PRAGMA integrity_check({_MOST_LINES})").fetchall()
        found = [line for (text,) in lines for line in str(text).splitlines()]
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_ERROR"):
            warnings.append(f"{label}: SQLite cannot compare its indexes with its tables: {error}")
            return
        if not name.startswith("SQLITE_CORRUPT"):
            raise
        found = [str(error)]
    found = [line for line in found if line != "ok" and not _OF_VALUES.match(line)]
    if found:
        only_indexes = all(" index " in line and "***" not in line for line in found)
        raise DamagedFile(label, found, REINDEX if only_indexes else RECOVER)


class SnapshotCopy:
    """A copy of a SQLite file to read from: outside of WAL mode, a reader blocks writers.

    AgentScope's writes fail after five seconds, the default timeout of Python's ``sqlite3``.  The
    copy is made within a reading transaction and holds the same snapshot.  ``cp`` takes a fifth of
    the time of SQLite's backup, and as a process of its own, it leaves the locks of this process
    alone.
    """

    def __init__(self) -> None:
        self._folder = ExitStack()
        self._driver: Connection | None = None
        self._due = 0.0
        self._stamp: str | None = None
        self.path: Path | None = None
        """The path of the copy; None if there is no copy."""
        self.failed = False
        """True if a copy could not be made."""
        self.keeps = False
        """True while the next reader must read this copy, to go on with the same snapshot."""

    async def watch(self, driver: Connection, size: int) -> None:
        """Start the time limit of a reading transaction on a file of ``size`` bytes.

        In WAL mode and in a copy, there is no limit: the transaction blocks no writer.
        """
        self._driver = None
        if driver.reads_copy:
            return
        [(journal,)] = await driver.fetch_all("PRAGMA journal_mode")
        if journal != "wal":
            self._driver = driver
            limit = max(MAX_WAIT / 4, MAX_WAIT - size / COPIED_PER_SECOND)
            self._due = time.monotonic() + limit

    @property
    def is_watching(self) -> bool:
        """True while a reading transaction has a time limit, because it may block writers."""
        return self._driver is not None

    @property
    def is_due(self) -> bool:
        """True if the reading transaction has exceeded its time limit."""
        return self._driver is not None and time.monotonic() > self._due

    def serves(self, stamp: str | None) -> bool:
        """Return whether the copy has the content of the file with the stamp ``stamp``."""
        return self.path is not None and stamp is not None and stamp == self._stamp

    async def make(self, stamp: str | None) -> bool:
        """Copy the watched file to a private temporary folder; return whether that succeeded.

        ``stamp`` is the stamp of the file (``stamp_of``).  No copy is made where it would take more
        than half of the room on the disk.
        """
        driver, self._driver = self._driver, None
        assert driver is not None
        self.remove()
        with suppress(OSError):
            path = self._folder.enter_context(temporary_folder()) / "copy.db"
            await driver.fetch_all("SELECT 1 FROM sqlite_master LIMIT 1")  # locks until the end
            [(source,)] = await driver.fetch_all(_MAIN_FILE)
            has_room = shutil.disk_usage(path.parent).free > 2 * os.stat(source).st_size
            if has_room and await _copied(source, path):
                self.path, self._stamp = path, stamp
                return True
        self.remove()
        self.failed = True
        return False

    def remove(self) -> None:
        """Remove the copy, if there is one."""
        self.path = None
        self._folder.close()


async def _copied(source: bytes, target: Path) -> bool:
    """Copy a file by ``cp``; return whether that succeeded.

    Raises:
        OSError: there is no ``cp``.
    """
    copying = await asyncio.create_subprocess_exec(
        *("cp", source, target), stderr=DEVNULL, start_new_session=True
    )
    try:
        return await copying.wait() == 0
    finally:
        if copying.returncode is None:  # the task was cancelled
            copying.kill()
            await copying.wait()


class PrivateCopy:
    """A temporary copy of a SQLite file that SQLite cannot read without writing to its folder.

    In WAL mode, SQLite creates files next to the database.  After a crash, it rolls back the
    interrupted transaction.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._source = path
        self._label = label
        self._folder = ExitStack()
        self.path: Path | None = None
        """The path of the copy; None if there is no copy."""

    def is_needed(self, error: sqlite3.Error) -> bool:
        """Return whether ``error``, from reading the file, would not occur with a copy."""
        if not error.sqlite_errorname.startswith(_NEEDS_WRITING):
            return False
        try:
            with open(self._source, "rb") as file:
                in_wal_mode = file.read(_HEADER_BYTES)[_WRITE_VERSION:] == _WAL
        except OSError:  # SQLite's own error is reported
            return False
        return in_wal_mode or _journal(self._source).exists()

    def make(self, call: Call) -> Path:
        """Copy the file, with its log or journal, to a private folder; return the copy's path.

        ``call`` is the current call of the connection, which may be cancelled.

        Raises:
            Lost: another program keeps writing to the file.
            Unavailable: the operating system refuses to read the file or to write the copy.
            sqlite3.OperationalError: the call was cancelled.
        """
        try:
            copy = self._folder.enter_context(temporary_folder()) / "copy.db"
            for _ in range(_COPY_ATTEMPTS):
                before = self._stamps()
                for end in before:
                    _copy_file(Path(f"{same_file(self._source)}{end}"), Path(f"{copy}{end}"), call)
                if before == self._stamps():
                    self.path = copy
                    return copy
                for end in _ENDS:
                    Path(f"{copy}{end}").unlink(missing_ok=True)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"{self._label} can only be read through a private copy, which fails: "
                f"{error.strerror}",
                "set TMPDIR to a folder with enough space, or make the folder of the database "
                "writable",
            ) from error
        raise Lost(
            f"{self._label} changes while it is copied",
            "make its folder writable, so that it need not be copied, or try again",
        )

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Return the size and time of the database, its log and its journal, by file suffix."""
        found = {}
        for end in _ENDS:
            with suppress(FileNotFoundError):
                about = os.stat(f"{same_file(self._source)}{end}")
                found[end] = about.st_size, about.st_mtime_ns
        return found

    def remove(self) -> None:
        """Remove the copy, if there is one."""
        self.path = None
        self._folder.close()


def _copy_file(source: Path, target: Path, call: Call) -> None:
    """Copy a file, unless the current call of the connection is cancelled.

    Raises:
        OSError: the operating system refuses to read or write a file.
        sqlite3.OperationalError: the call was cancelled.
    """
    with open(source, "rb") as file, open(target, "wb") as copy:
        while piece := file.read(_COPIED_BYTES):
            if call.cancelled:
                raise sqlite3.OperationalError("interrupted")
            copy.write(piece)


HINT = "a program was killed while it wrote to it: make the file and its folder writable"


def recover(path: Path, call: Call) -> None:
    """Roll back the transaction of a killed program in a SQLite file, if there is one.

    Until then SQLite refuses read-only connections (SQLITE_READONLY_ROLLBACK).  The next start of
    AgentScope would roll back too.

    Raises:
        sqlite3.Error: the file is not a database, or this user may not write to it.
    """
    if not _journal(path).exists():
        return
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
    with closing(open_driver(uri, call)) as driver:
        driver.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def remove_journal(driver: sqlite3.Connection, path: Path) -> None:
    """Have SQLite remove the rollback journal that a killed memctl run left next to ``path``.

    ``driver`` is a connection to the file.  A journal that another program uses is kept.  The next
    transaction of any program would also remove the journal, but this run may make none.

    Raises:
        sqlite3.Error: the file is not a database.
    """
    if not _journal(path).exists():
        return
    [mode] = driver.execute("PRAGMA journal_mode").fetchone()
    if mode == "delete":  # returning to this mode removes the journal
        driver.execute("PRAGMA journal_mode = PERSIST")
        driver.execute("PRAGMA journal_mode = DELETE")


def _journal(path: Path) -> Path:
    return Path(f"{same_file(path)}-journal")
