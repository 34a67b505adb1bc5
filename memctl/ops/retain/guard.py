"""The guard: what an archive holds, read back from where the archive lies.

The guard knows a digest of every archived message, made from the key of its memory, its id, its
marks and its text.  A planned deletion of a message that the guard does not know is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Self

from memctl.location import Location
from memctl.model import Edit, MemoryKey, StoredMessage
from memctl.ops.observer import Observer, opened
from memctl.ops.retain.actions import Found
from memctl.ops.retain.digests import DigestSet, digest
from memctl.registry import make_store
from memctl.selection import Selection

_SCHEMA = "CREATE TABLE user (name BLOB PRIMARY KEY, messages INTEGER) WITHOUT ROWID"
_COUNT = """
INSERT INTO user VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET messages = messages + ?2
"""


class Guard:
    """The messages of an archive, in constant memory.

    Leaving the context removes the temporary file of the guard.
    """

    def __init__(self) -> None:
        self.found = Found()
        """The counts of the archive."""
        self._digests = DigestSet()
        self._digests.database.execute(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._digests.__exit__()

    async def read(self, archive: Location, observer: Observer) -> None:
        """Check the digest of an archive, and add all its messages.

        Raises:
            NotFound: there is no such archive.
            BadData: the archive is damaged.
            MemctlError: the archive cannot be read.
        """
        async with opened(make_store(archive), observer) as store:
            self.found.noun = store.dialect.noun
            with observer.progress("checking the archive") as progress:
                async with aclosing(store.read(Selection())) as pages:
                    async for page in pages:
                        key = page.memory.key
                        self._add(key, page.messages)
                        self.found.memories += page.last
                        for entry in page.messages:
                            time = store.dialect.role_and_time(entry.message)[1]
                            self.found.add(len(entry.message), store.dialect.moment(time))
                        progress.advance(memories=int(page.last), messages=len(page.messages))
                        del page  # free a large page before the next read

    def _add(self, key: MemoryKey, messages: Collection[StoredMessage]) -> None:
        self._digests.add(_digest(key, one.id, one.marks, one.message) for one in messages)
        self._digests.database.execute(_COUNT, (_bytes(key.user), len(messages)))

    def has(self, key: MemoryKey, id: str, marks: Collection[str], message: bytes) -> bool:
        """Return whether the archive has this message of a memory, with these marks."""
        return self._digests.has(_digest(key, id, marks, message))

    def users(self) -> Iterator[tuple[str, int]]:
        """Yield each user of the archive, with the number of archived messages."""
        for name, messages in self._digests.database.execute("SELECT name, messages FROM user"):
            yield name.decode("utf-8", "surrogatepass"), messages

    def is_whole(self, edit: Edit) -> bool:
        """Return whether the archive has every message that an edit deletes."""
        return not any(self._lacks(edit.memory.key, edit, at) for at in range(len(edit.changes)))

    def _lacks(self, key: MemoryKey, edit: Edit, at: int) -> bool:
        change = edit.changes[at]
        if change.new is not None or change.old is None:
            return False
        return not self.has(key, change.id, change.old, change.message)

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
                for at, change in enumerate(edit.changes):
                    if change.after != before:
                        before = stays = change.after
                    if self._lacks(edit.memory.key, edit, at):
                        stays = change.id  # the next deleted message follows this message
                        left[edit.memory.key] += 1
                        continue
                    changes.append(change._replace(after=stays))
                yield replace(edit, changes=changes)


def _digest(key: MemoryKey, id: str, marks: Collection[str], message: bytes) -> bytes:
    names = json.dumps([*key, id, *sorted(marks)]).encode()
    # An archive has a space in place of a line break, which in JSON is white space only.
    text = message.replace(b"\n", b" ").replace(b"\r", b" ")
    return digest(b"%d:%b%b" % (len(names), names, text))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
