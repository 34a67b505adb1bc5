"""A set of digests that may be larger than memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from typing import Self

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA cache_size = -65536;
CREATE TABLE digest (value BLOB PRIMARY KEY) WITHOUT ROWID;
"""
_DIGEST_BYTES = 16


def digest(data: bytes) -> bytes:
    """Return the digest of ``data``: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


class DigestSet:
    """A set of digests in an unnamed temporary file, which leaving the context removes."""

    def __init__(self) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def add(self, digests: Iterable[bytes]) -> None:
        """Add digests."""
        rows = [(one,) for one in sorted(digests)]
        self.database.execute("BEGIN")
        self.database.executemany("INSERT OR IGNORE INTO digest VALUES (?)", rows)
        self.database.execute("COMMIT")

    def has(self, value: bytes) -> bool:
        """Return whether the set has a digest."""
        sql = "SELECT 1 FROM digest WHERE value = ?"
        return self.database.execute(sql, (value,)).fetchone() is not None
