"""JSON documents that are files."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from memctl.errors import BadData, Failure
from memctl.location import visible
from memctl.stores._files import AtomicFile, sync_folder, system_errors
from memctl.stores._threads import in_thread
from memctl.stores.state.document import Changed, Document
from memctl.stores.state.rewrite import Draft

_SYNCS = 8
"""How many files are synced at once: the file system makes one journal entry of many."""

Signature = tuple[int, int, int, int]


class FileDocument(Document):
    """An open file.  That it changes under the reader is noticed, not mended."""

    ttl = None

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Opens the file; ``name`` is what to call it.

        Raises:
            NotFound: it does not exist.
            Unavailable: it cannot be read.
            BadData: it is no regular file.
        """
        self.name = name or visible(str(path))
        self._path = path
        with system_errors(path, "read"):
            # Opening a pipe would wait for somebody to write to it.
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
            data = os.pread(self._handle, size, start)
            while data and len(data) < size:  # a call reads no more than 2 GiB
                data += os.pread(self._handle, size - len(data), start + len(data))
        return data

    async def verify(self) -> None:
        with system_errors(self._path, "read"):
            if _signature(os.fstat(self._handle)) != self.version:
                raise Changed(self.name)

    async def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class FileDraft(Draft):
    """A file in the making.  ``old`` is what it replaces, None for a new file."""

    def __init__(self, path: Path, old: Document | None) -> None:
        self.path = path
        self.file = AtomicFile(path)
        self._old = old.version if isinstance(old, FileDocument) else None

    async def write(self, data: bytes) -> None:
        self.file.write(data)

    async def discard(self) -> None:
        self.file.discard()

    def take_place(self) -> Failure | None:
        """Takes the file's name, unless somebody else has written the file meanwhile."""
        try:
            present = _signature(os.stat(self.path))
        except FileNotFoundError:
            present = None
        if present != self._old:
            return Failure("changed", f"{visible(str(self.path))} was changed meanwhile")
        self.file.replace()
        return None


async def publish_files(published: Sequence[tuple[Draft, object]]) -> list[Failure | None]:
    """Gives each file its name when all are on the disk; a failure for those overtaken."""
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


def _signature(found: os.stat_result) -> Signature:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
