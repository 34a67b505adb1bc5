"""What a program that was killed while it wrote leaves in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from memctl.location import same_file

HINT = "a program was killed while it wrote to it: make the file and its folder writable"


def recover(path: Path, timeout: float) -> None:
    """Takes back what was left half done, as the next AgentScope would.

    Until then SQLite refuses a connection that may only read: SQLITE_READONLY_ROLLBACK.
    ``timeout`` is in seconds, to wait for another process that writes.

    Raises:
        sqlite3.Error: the file is no database, or this login may not write it.
    """
    if not _journal(path).exists():
        return
    uri = f"file:{quote(str(path.absolute()))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=timeout)) as driver:
        driver.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def remove_journal(driver: sqlite3.Connection, path: Path) -> None:
    """Has SQLite remove the journal of a run that was killed after its last transaction.

    It is over and harms nobody, and the next transaction of anybody would remove it; but a run
    that finds everything done makes none.  One that is in use stays.

    Raises:
        sqlite3.Error: the file is no database.
    """
    if not _journal(path).exists():
        return
    [mode] = driver.execute("PRAGMA journal_mode").fetchone()
    if mode == "delete":  # to come back to this mode from another is what removes it
        driver.execute("PRAGMA journal_mode = PERSIST")
        driver.execute("PRAGMA journal_mode = DELETE")


def _journal(path: Path) -> Path:
    return Path(f"{same_file(path)}-journal")
