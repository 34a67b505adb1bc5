"""The files of a folder, by names that cannot lead out of it.

A name is a path relative to the folder, its parts separated by ``/``.  No part is hidden, none is
``..``, and no symbolic link is followed: a name that comes from a fact of any other system, whoever
wrote it, is a file within the folder or refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memctl import system
from memctl.location import visible
from memctl.storekit.files import AtomicFile, missing, sync_folder, system_errors
from memctl.storekit.simple import Rejected

_NAME_BYTES = 255
"""The limit of common file systems, for one part of a name."""
_ALL_FILES = 0o666


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a folder: its name, its content, its permissions and its time of change in ns."""

    name: str
    data: bytes
    mode: int
    changed: int


class Folder:
    """A folder in which files are read, replaced whole and removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsynced: set[Path] = set()

    def open(self, *, create: bool) -> None:
        """Make the folder if it is missing and ``create`` says so.

        Raises:
            NotFound: it is not there.
            Unavailable: the system refuses.
        """
        with system_errors(self.path, "read"):
            if self.path.is_dir():
                return
        if not create:
            raise missing(self.path)
        with system_errors(self.path, "write"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def files(
        self, suffix: str, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[os.DirEntry[str]]:
        """Yield the files whose names end so, whatever their case, without those that are hidden.

        ``leave_out`` are names of folders that are not looked into, at the top alone.

        Raises:
            Unavailable: the system refuses.
        """
        waiting = [str(self.path)]
        while waiting:
            top = len(waiting) == 1 and waiting[0] == str(self.path)
            folder = waiting.pop()
            with system_errors(Path(folder), "read"), os.scandir(folder) as found:
                for entry in found:
                    if entry.name.startswith(".") or entry.is_symlink():
                        continue
                    if entry.is_dir():
                        if not (top and entry.name in leave_out):
                            waiting.append(entry.path)
                    elif entry.is_file() and entry.name.lower().endswith(suffix):
                        yield entry

    def name_of(self, entry: os.DirEntry[str]) -> str:
        """Return the name of a file that ``files`` has found."""
        return os.path.relpath(entry.path, self.path).replace(os.sep, "/")

    def takes(self, name: str) -> bool:
        """Return whether a name could be that of a file in the folder."""
        return not any(map(_fault, name.split("/")))

    def path_of(self, name: str, *, folder: bool = False) -> Path:
        """Return the path of a name: that of a file, or of a ``folder``.

        Raises:
            Rejected: it is not that of a file that could be in the folder.
            Unavailable: the system refuses.
        """
        parts = name.split("/")
        fault = next(filter(None, map(_fault, parts)), "")
        if fault:
            raise Rejected("bad-name", f"{visible(name)!r} is not the name of a file here: {fault}")
        path = self.path
        for part in parts[:-1]:
            path /= part
            _expect(path, stat.S_ISDIR, "is not a folder, or a link to one")
        path /= parts[-1]
        if folder:
            _expect(path, stat.S_ISDIR, "is not a folder, or a link to one")
        else:
            _expect(path, stat.S_ISREG, "is not a regular file")
        return path

    def exists(self, name: str) -> bool:
        """Return whether something of this name is in the folder."""
        for folder in (False, True):
            with suppress(Rejected):
                return self.path_of(name.rstrip("/"), folder=folder).exists()
        return False

    def read(self, name: str) -> FoundFile | None:
        """Return a file; None where there is none of this name.

        Raises:
            Unavailable: the system refuses.
        """
        try:
            path = self.path_of(name)
        except Rejected:
            return None
        with system_errors(path, "read"):
            try:
                handle = os.open(path, system.READ_FLAGS | getattr(os, "O_NOFOLLOW", 0))
            except FileNotFoundError:
                return None
            with open(handle, "rb") as file:
                about = os.fstat(handle)
                return FoundFile(name, file.read(), stat.S_IMODE(about.st_mode), about.st_mtime_ns)

    def write(
        self, name: str, data: bytes, *, mode: int | None = None, changed: int | None = None
    ) -> None:
        """Write a file whole, in the place of the one that is there.

        ``mode`` are the permissions of a new one, by default those of the folder it is in, and
        ``changed`` is its time of change.  It is durable after ``sync``.

        Raises:
            Rejected: see ``path_of``; or a file is there whose name differs in case alone.
            Unavailable: the system refuses.
        """
        path = self.path_of(name)
        with system_errors(path, "write"):
            path.parent.mkdir(
                mode=stat.S_IMODE(self.path.stat().st_mode), parents=True, exist_ok=True
            )
            if path.exists():
                mode = None  # it keeps its own
                if path.name not in os.listdir(path.parent):
                    raise Rejected("bad-name", f"another file is there whose name is like {name!r}")
            elif mode is None:
                mode = path.parent.stat().st_mode & _ALL_FILES
        with AtomicFile(path, mode) as file:
            file.write(data)
            file.sync()
            file.replace()
        if changed is not None:
            with system_errors(path, "write"):
                os.utime(path, ns=(changed, changed))
        self._unsynced.add(path.parent)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, and the folders below the top ones that it leaves empty.

        Its going is durable after ``sync``.

        Raises:
            Unavailable: the system refuses.
        """
        try:
            path = self.path_of(name)
        except Rejected:
            return
        with system_errors(path, "write"):
            path.unlink(missing_ok=True)
            parent = path.parent
            while parent not in (self.path, self.path.parent) and parent.parent != self.path:
                try:
                    parent.rmdir()
                except OSError:  # it is not empty, or has gone
                    break
                parent = parent.parent
        self._unsynced.add(parent)

    def sync(self) -> None:
        """Make durable what was written and removed.

        Raises:
            Unavailable: the system refuses.
        """
        folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            if folder.exists():
                sync_folder(folder)


def _fault(part: str) -> str:
    """Return what keeps a part of a name from being one; empty where nothing does."""
    if not part:
        return "a part of it is empty"
    if part.startswith("."):
        return "a part of it is hidden"
    if "\0" in part or (not system.POSIX and set(part) & set('\\:*?"<>|')):
        return "it has a character that no name has"
    try:
        size = len(os.fsencode(part))
    except UnicodeEncodeError:
        return "it is not Unicode"
    return f"a part of it has more than {_NAME_BYTES} bytes" if size > _NAME_BYTES else ""


def _expect(path: Path, kind: Callable[[int], bool], fault: str) -> None:
    """Refuse what is at a path, if it is not of this kind."""
    with system_errors(path, "read"):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
    if not kind(found.st_mode):
        raise Rejected("bad-name", f"{visible(str(path))} {fault}")
