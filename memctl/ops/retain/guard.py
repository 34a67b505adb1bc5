"""The guard: what an archive holds, read back from where the archive lies.

The guard knows a digest of every archived message, made from the key of its memory, its id, its
marks and its text.  A planned deletion of a message that the guard does not know is left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from hashlib import blake2b
from typing import Self

from msgspec.structs import replace

from memctl.location import Location
from memctl.model import Change, Edit, MemoryKey, StoredMessage
from memctl.ops.observer import Observer, opened
from memctl.registry import make_store
from memctl.selection import Selection

_DIGESTS = """
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
        self.database.executescript(_DIGESTS)

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


_USERS = "CREATE TABLE user (name BLOB PRIMARY KEY, messages INTEGER) WITHOUT ROWID"
_COUNT = """
INSERT INTO user VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET messages = messages + ?2
"""


class Guard(DigestSet):
    """The messages of an archive, in constant memory."""

    def __init__(self) -> None:
        super().__init__()
        self.database.execute(_USERS)

    async def read(self, archive: Location, observer: Observer) -> None:
        """Check the digest of an archive, and add all its messages.

        Raises:
            NotFound: there is no such archive.
            BadData: the archive is damaged.
            MemctlError: the archive cannot be read.
        """
        async with opened(make_store(archive), observer) as store:
            with observer.progress("checking the archive") as progress:
                async with aclosing(store.read(Selection())) as pages:
                    async for page in pages:
                        key, found = page.memory.key, page.messages
                        self.add(_digest(key, entry) for entry in found)
                        self.database.execute(_COUNT, (_bytes(key.user), len(found)))
                        progress.advance(memories=int(page.last), messages=len(page.messages))
                        del page  # free a large page before the next read

    def holds(self, key: MemoryKey, entry: StoredMessage) -> bool:
        """Return whether the archive has this message of a memory, with these marks."""
        return self.has(_digest(key, entry))

    def users(self) -> Iterator[tuple[str, int]]:
        """Yield each user of the archive, with the number of archived messages."""
        for name, messages in self.database.execute("SELECT name, messages FROM user"):
            yield name.decode("utf-8", "surrogatepass"), messages

    def is_whole(self, edit: Edit) -> bool:
        """Return whether the archive has every message that an edit deletes."""
        return not any(self._lacks(edit.memory.key, change) for change in edit.changes)

    def _lacks(self, key: MemoryKey, change: Change) -> bool:
        if change.new is not None or change.old is None:
            return False
        return not self.holds(key, StoredMessage(change.id, change.message, change.old))

    async def narrow(
        self, edits: AsyncGenerator[Edit], left: Counter[MemoryKey]
    ) -> AsyncGenerator[Edit]:
        """Yield edits without the deletions of messages that the archive lacks.

        ``left`` counts these messages by memory.
        """
        before: str | None = None
        stays: str | None = None
        async with aclosing(edits):
            async for edit in edits:
                if edit.offset == 0:
                    before = stays = None
                changes = []
                for change in edit.changes:
                    if change.after != before:
                        before = stays = change.after
                    if self._lacks(edit.memory.key, change):
                        stays = change.id  # the next deleted message follows this message
                        left[edit.memory.key] += 1
                        continue
                    changes.append(change._replace(after=stays))
                yield replace(edit, changes=changes)


def _digest(key: MemoryKey, entry: StoredMessage) -> bytes:
    names = json.dumps([*key, entry.id, *sorted(entry.marks)]).encode()
    # An archive has a space in place of a line break, which in JSON is white space only.
    text = entry.message.replace(b"\n", b" ").replace(b"\r", b" ")
    return digest(b"%d:%b%b" % (len(names), names, text))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
