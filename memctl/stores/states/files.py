"""JSON documents that are files."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from memctl import system
from memctl.concurrency import in_thread
from memctl.errors import BadData, Failure
from memctl.location import visible
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    AtomicFile,
    sync_folder,
    system_errors,
)
from memctl.stores.states.document import Document, DocumentChanged
from memctl.stores.states.rewrite import Draft

_SYNCS = 8
"""The number of files synced at once: the file system makes one journal entry of many."""

Signature = tuple[int, int, int, int]


class FileDocument(Document):
    """An open file.  That it changes under the reader is noticed, not repaired."""

    ttl = None

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Open the file; ``name`` is what to call it.

        Raises:
            NotFound: it does not exist.
            Unavailable: it cannot be read.
            BadData: it is no regular file.
        """
        self.name = name or visible(str(path))
        self._path = path
        with system_errors(path, "read"):
            self._handle = os.open(path, system.READ_FLAGS)
        try:
            found = os.fstat(self._handle)
            if not stat.S_ISREG(found.st_mode):
                raise BadData(f"{self.name} is not a file", "name a file")
        except BaseException:
            os.close(self._handle)
            raise
        self.size = found.st_size
        self.version = _signature(found)

    async def read_at(self, start: int, size: int) -> bytes:
        """See ``Source``.

        Raises:
            Unavailable: the file was changed since it was opened, or cannot be read.
        """
        size = min(size, self.size - start)
        if size <= 0:
            return b""
        with system_errors(self._path, "read"):
            await self.verify()
            data = system.read_at(self._handle, size, start)
            while data and len(data) < size:  # a call reads no more than 2 GiB
                data += system.read_at(self._handle, size - len(data), start + len(data))
        return data

    async def verify(self) -> None:
        if self.is_touched():
            raise DocumentChanged(self.name)

    def is_touched(self) -> bool:
        """Return whether the file was written to since it was opened, under whatever name."""
        with system_errors(self._path, "read"):
            return _signature(os.fstat(self._handle)) != self.version

    async def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class FileDraft(Draft):
    """A file in the making.  ``old`` is what it replaces, None for a new file."""

    def __init__(self, path: Path, old: Document | None) -> None:
        self.path = path
        self.file = AtomicFile(path)
        self._old = old if isinstance(old, FileDocument) else None

    async def write(self, data: bytes) -> None:
        self.file.write(data)

    async def discard(self) -> None:
        self.file.discard()

    def take_place(self) -> Failure | None:
        """Take the file's name, unless somebody else has written the file meanwhile.

        JSONSession opens the file that is there and empties it, so whoever was about to write at
        that moment has touched the old file by now: then that one gets its name back.
        """
        try:
            present = _signature(os.stat(self.path))
        except FileNotFoundError:
            present = None
        changed = Failure("changed", f"{visible(str(self.path))} was changed meanwhile")
        if present != (self._old and self._old.version):
            return changed
        if self._old is None:
            self.file.replace()
            return None
        with _second_name(self.path) as name:
            self.file.replace()
            if name is None or not self._old.is_touched():
                return None
            with system_errors(self.path, "write"):
                os.replace(name, os.path.realpath(self.path))
        return changed


def remove_file(path: Path, document: Document) -> None:
    """Remove a file, unless somebody has changed it since it was opened."""
    with system_errors(path, "write"):
        if _signature(os.stat(path)) == document.version:
            path.unlink()
            sync_folder(path.parent)


async def publish_files(published: Sequence[tuple[Draft, object]]) -> list[Failure | None]:
    """Give each file its name when all are on the disk; a failure for those overtaken."""
    drafts = [draft for draft, _ in published if isinstance(draft, FileDraft)]
    return await in_thread(partial(_publish, drafts))


def _publish(drafts: list[FileDraft]) -> list[Failure | None]:
    with ThreadPoolExecutor(min(_SYNCS, len(drafts) or 1)) as threads:
        for _ in threads.map(lambda draft: draft.file.sync(), drafts):
            pass
    failures = [draft.take_place() for draft in drafts]
    for folder in {draft.path.parent for draft in drafts}:
        sync_folder(folder)
    return failures


@contextmanager
def _second_name(path: Path) -> Iterator[str | None]:
    """Another name for a file, for the time being; None where the file system has none to give."""
    target = os.path.realpath(path)
    unique = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    name = os.path.join(os.path.dirname(target), unique)
    try:
        os.link(target, name)
    except OSError:  # some file systems have no links, and some systems forbid them
        yield None
        return
    try:
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


def _signature(found: os.stat_result) -> Signature:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
