"""A file with a name, on a disk or in object storage: what archives and exports need of it."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

from memctl.errors import BadData
from memctl.location import same_file, visible
from memctl.machine import system
from memctl.machine.temporary import scratch
from memctl.storekit.files import AtomicFile, NewFile, sync_folder, system_errors


class Listed(NamedTuple):
    """A file in a listing: its name without the folder, its size, and when it was written."""

    name: str
    bytes: int
    written: float
    """Seconds since 1970."""


class File(ABC):
    """A file, or what takes the place of a file: what a store needs to read and to write it.

    The methods block, and may be called in a thread.  All raise MemctlError if the place of the
    file cannot be reached or refuses the access.
    """

    name: str
    """The last part of the name, such as ``chats.ndjson.zst``."""
    label: str
    """The full name to show, without secrets."""
    staged = ""
    """Where ``open`` put a copy of the content, for ``--verbose``; empty without a copy."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that is equal for all names of one file."""

    @abstractmethod
    def stamp(self) -> Hashable | None:
        """Return a value that differs if the content was replaced; None if there is no file."""

    @abstractmethod
    def open(self) -> int:
        """Return an open descriptor of a regular file with the content; the caller closes it.

        The content of the descriptor stays the same if another program replaces the file.

        Raises:
            NotFound: there is no file.
            BadData: the name is that of a folder, a pipe or a device.
        """

    def interrupt(self) -> None:  # noqa: B027 - a disk answers at once
        """Make ``open`` in another thread return soon, with an error."""

    @abstractmethod
    def create(self, mode: int | None = None, *, replace: bool = True) -> NewFile:
        """Begin new content of the file, which replaces an existing file on ``commit``.

        ``mode`` is the mode of the new file, if its place has modes; None keeps the mode of the
        replaced file.  Without ``replace``, ``commit`` raises UsageError if the file exists.
        """

    @property
    def spool_folder(self) -> Path | None:
        """The folder for temporary files of the size of this file; None for the usual one."""
        return None

    @property
    def on_disk(self) -> Path:
        """The path to name in errors of the operating system: the file, or the usual folder."""
        return scratch()


class NamedFile(File):
    """A file with a name: a path, or the key of an object in a bucket."""

    @property
    def text(self) -> str:
        """The full name for commands and reports, without secrets: a path or a URL."""
        return self.label

    def exists(self) -> bool:
        """Return whether the name is taken, by a file or by anything else."""
        return self.stamp() is not None

    @abstractmethod
    def remove(self) -> None:
        """Remove the file; do nothing if there is none."""

    @abstractmethod
    def sibling(self, name: str) -> NamedFile:
        """Return the file ``name`` in the same folder."""

    @abstractmethod
    def siblings(self) -> list[Listed]:
        """List the files in the folder of this file, in no particular order."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until the names of the files in the folder are durable."""


class LocalFile(NamedFile):
    """A file on a disk."""

    def __init__(self, path: Path, *, follows: bool = True) -> None:
        """Without ``follows``, a symbolic link is no file: it may be planted."""
        self.path = path
        self._follows = follows
        self.name = path.name
        self.label = visible(str(path))

    @property
    def text(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> str:
        return f"file:{same_file(self.path)}"

    def stamp(self) -> Hashable | None:
        with system_errors(self.path, "read"):
            try:
                found = self.path.stat(follow_symlinks=self._follows)
            except FileNotFoundError:
                return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def open(self) -> int:
        with system_errors(self.path, "read"):
            if not self._follows and self.path.is_symlink():
                raise BadData(f"{self.label} is a symbolic link", "remove it: memctl made none")
            links = 0 if self._follows else os.O_NOFOLLOW
            handle = os.open(self.path, system.READ_FLAGS | links)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
            os.close(handle)
        raise BadData(f"{self.label} is not a file", "'-' reads an archive from a pipe")

    def create(self, mode: int | None = None, *, replace: bool = True) -> NewFile:
        return AtomicFile(self.path, mode, replaces=replace, follows=self._follows)

    def remove(self) -> None:
        with system_errors(self.path, "remove"):
            self.path.unlink(missing_ok=True)

    def sibling(self, name: str) -> LocalFile:
        return LocalFile(self.path.with_name(name), follows=self._follows)

    def siblings(self) -> list[Listed]:
        folder = self.path.parent
        with system_errors(folder, "read"), os.scandir(folder) as entries:
            found = [
                (entry.name, entry.stat(follow_symlinks=False))
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            ]
            return [Listed(name, about.st_size, about.st_mtime) for name, about in found]

    def sync(self) -> None:
        sync_folder(self.path.parent)

    @property
    def spool_folder(self) -> Path | None:
        return Path(os.path.dirname(same_file(self.path)))

    @property
    def on_disk(self) -> Path:
        return self.path
