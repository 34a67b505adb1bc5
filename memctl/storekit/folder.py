"""Access to the files of a folder by safe names.

A name is a path relative to the folder, with ``/`` between its parts.  No part may be hidden or
``..``, and symbolic links are not followed.  A name from a fact of another system therefore names
a file in the folder, or is rejected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memctl.location import visible
from memctl.machine import system
from memctl.storekit.files import AtomicFile, missing, sync_folder, system_errors
from memctl.storekit.simple import Rejected

_NAME_BYTES = 255
"""The maximum bytes of one part of a name, as in common file systems."""
_ALL_FILES = 0o666


class FoundFile(Struct, frozen=True):
    """A file read from a folder: name, content, permissions, modification time (nanoseconds)."""

    name: str
    data: bytes
    mode: int
    changed: int


class Folder:
    """A folder whose files are read, replaced whole, and removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsynced: set[Path] = set()

    def open(self, *, create: bool) -> None:
        """Check that the folder exists; create a missing folder if ``create`` is true.

        Raises:
            NotFound: the folder does not exist, and ``create`` is false.
            Unavailable: the operating system refuses access.
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
        """Yield the visible files with an extension, in the folder and its subfolders.

        ``suffix`` is the extension in lower case; the case of file names is ignored.
        ``leave_out`` names subfolders at the top level to skip.

        Raises:
            Unavailable: the operating system refuses access.
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
        """Return the name of a file from ``files``: its path relative to the folder."""
        return os.path.relpath(entry.path, self.path).replace(os.sep, "/")

    def takes(self, name: str) -> bool:
        """Return whether ``name`` is valid for a file in the folder; the file need not exist."""
        return not any(map(_fault, name.split("/")))

    def path_of(self, name: str, *, folder: bool = False) -> Path:
        """Return the path of a file by its name in the folder; with ``folder``, of a subfolder.

        The file or subfolder need not exist.

        Raises:
            Rejected: the name is not valid, or the path exists and is not a file (with ``folder``,
                not a folder).
            Unavailable: the operating system refuses access.
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
        """Return whether a file or subfolder with this name exists; False for a name not valid."""
        for folder in (False, True):
            with suppress(Rejected):
                return self.path_of(name.rstrip("/"), folder=folder).exists()
        return False

    def read(self, name: str) -> FoundFile | None:
        """Return a file, or None if it does not exist or its name is not valid.

        Raises:
            Unavailable: the operating system refuses access.
        """
        try:
            path = self.path_of(name)
        except Rejected:
            return None
        with system_errors(path, "read"):
            try:
                handle = os.open(path, system.READ_FLAGS | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            with open(handle, "rb") as file:
                about = os.fstat(handle)
                return FoundFile(name, file.read(), stat.S_IMODE(about.st_mode), about.st_mtime_ns)

    def write(
        self, name: str, data: bytes, *, mode: int | None = None, changed: int | None = None
    ) -> None:
        """Write a file whole; replace an existing file.

        ``mode`` holds the permissions of a new file; None gives the permissions that the folder
        has.  An existing file keeps its permissions.  ``changed`` is the modification time in
        nanoseconds.  The file is durable after ``sync``.

        Raises:
            Rejected: the name is not valid (see ``path_of``), or an existing file has a name that
                differs only in case.
            Unavailable: the operating system refuses the write.
        """
        path = self.path_of(name)
        with system_errors(path, "write"):
            path.parent.mkdir(
                mode=stat.S_IMODE(self.path.stat().st_mode), parents=True, exist_ok=True
            )
            if path.exists():
                mode = None  # an existing file keeps its permissions
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
        """Remove a file if it exists, and then its parent folders that are empty.

        The folder itself and its direct subfolders stay.  The removal is durable after ``sync``.

        Raises:
            Unavailable: the operating system refuses the removal.
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
                except OSError:  # the folder is not empty, or is gone
                    break
                parent = parent.parent
        self._unsynced.add(parent)

    def sync(self) -> None:
        """Wait until all writes and removals since the last call are on disk.

        Raises:
            Unavailable: the operating system refuses to sync a folder.
        """
        folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            if folder.exists():
                sync_folder(folder)


def _fault(part: str) -> str:
    if not part:
        return "a part of it is empty"
    if part.startswith("."):
        return "a part of it is hidden"
    if "\0" in part:
        return "it has a character that no name has"
    try:
        size = len(os.fsencode(part))
    except UnicodeEncodeError:
        return "it is not Unicode"
    return f"a part of it has more than {_NAME_BYTES} bytes" if size > _NAME_BYTES else ""


def _expect(path: Path, kind: Callable[[int], bool], fault: str) -> None:
    """Raise Rejected with the text ``fault`` if the path exists and is not of the expected kind.

    ``kind`` is a test of a file mode, such as ``stat.S_ISREG``.
    """
    with system_errors(path, "read"):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
    if not kind(found.st_mode):
        raise Rejected("bad-name", f"{visible(str(path))} {fault}")
