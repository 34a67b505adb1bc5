"""Session documents that are JSON files."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from memctl.errors import BadData, Failure
from memctl.location import visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    AtomicFile,
    sync_folder,
    system_errors,
)
from memctl.storekit.named_file import File
from memctl.stores.states.document import Document, DocumentChanged
from memctl.stores.states.rewrite import Draft
from memctl.stores.states.store import StateStore

_SYNCS = 8
"""The number of files synced at once: the file system writes one journal entry for several."""

Signature = tuple[int, int, int, int]
"""The device, inode, size and modification time of a file."""


class FileDocument(Document):
    """A session document that is a file.

    The file stays open.  So memctl notices a write to this file even if it was renamed.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Open and read the file; ``name`` names the file in errors, and defaults to the path.

        Raises:
            NotFound: the file does not exist.
            Unavailable: the operating system refuses to read the file.
            BadData: the path is not a regular file.
            DocumentChanged: another program wrote to the file while memctl read it.
        """
        name = name or visible(str(path))
        self._path = path
        with system_errors(path, "read"):
            self._handle = os.open(path, system.READ_FLAGS)
            try:
                found = os.fstat(self._handle)
                if not stat.S_ISREG(found.st_mode):
                    raise BadData(f"{name} is not a file", "name a file")
                self.signature = _signature(found)
                with open(self._handle, "rb", buffering=0, closefd=False) as file:
                    super().__init__(name, file.readall())
                if self.is_touched():
                    raise DocumentChanged(name)
            except BaseException:
                os.close(self._handle)
                raise

    def is_touched(self) -> bool:
        """Return whether a program has written to the opened file since memctl read it."""
        with system_errors(self._path, "read"):
            return _signature(os.fstat(self._handle)) != self.signature

    def is_current(self) -> bool:
        """Return whether ``path`` still names the opened file, and no program has written to it."""
        try:
            return _signature(os.stat(self._path)) == self.signature
        except OSError:
            return False

    async def close(self) -> None:
        await super().close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class FileDraft(Draft):
    """A new file at ``path``, which replaces the file ``old`` when it is published.

    ``old`` is None if no file exists at ``path``.
    """

    def __init__(self, path: Path, old: Document | None) -> None:
        self.path = path
        self.file = AtomicFile(path)
        self._old = old if isinstance(old, FileDocument) else None

    async def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)

    async def discard(self) -> None:
        self.file.discard()

    def take_place(self) -> Failure | None:
        """Replace the old file by the new file, unless another program has changed the old file.

        Returns None if the new file is in place.  Returns a failure if the old file has changed;
        then the old file stays.

        JSONSession opens the existing file and empties it, perhaps while memctl replaces the file.
        Therefore memctl checks the old file again after the replacement, and puts it back if it has
        changed.
        """
        try:
            present = _signature(os.stat(self.path))
        except FileNotFoundError:
            present = None
        changed = Failure("changed", f"{visible(str(self.path))} was changed meanwhile")
        if present != (self._old and self._old.signature):
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


class NewFileDraft(Draft):
    """A file that did not exist, on a disk or elsewhere."""

    def __init__(self, file: File) -> None:
        self.file = file.create()

    async def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)

    async def discard(self) -> None:
        self.file.discard()


class StateFiles(StateStore):
    """A store whose session documents are files."""

    async def close(self) -> None:
        """Release the run lock; the store keeps no file open."""
        self.unlock()

    async def publish(
        self,
        drafts: list[tuple[Draft, float | None]],
        *,
        keep: bool = False,  # noqa: ARG002 - files do not expire
    ) -> list[Failure | None]:
        """Sync all new files to the disk, then replace the old files.

        Each draft comes with a TTL, which files ignore, as they ignore ``keep``.  Returns an item
        for each draft: None if its file was replaced, or a failure if another program has changed
        the file.
        """
        if drafts and isinstance(drafts[0][0], NewFileDraft):  # a store has one file of this kind
            await in_thread(drafts[0][0].file.commit)
            return [None]
        files = [draft for draft, _ in drafts if isinstance(draft, FileDraft)]
        return await in_thread(partial(_publish, files))


def remove_file(path: Path, document: Document) -> None:
    """Remove a file; do nothing if another program has changed it since ``document`` was read."""
    assert isinstance(document, FileDocument)
    with system_errors(path, "write"):
        if _signature(os.stat(path)) == document.signature:
            path.unlink()
            sync_folder(path.parent)


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
    """Yield a hard link to a file, removed at the end; None if the file system has no links."""
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
