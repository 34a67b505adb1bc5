"""Recognise files, replace files atomically, and translate errors of the operating system."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from memctl import encryption
from memctl.errors import BadData, MemctlError, NotFound, Unavailable, UsageError
from memctl.json.scan import BYTE_ORDER_MARK
from memctl.location import visible
from memctl.machine import system
from memctl.machine.temporary import scratch

TEMPORARY_PREFIX = ".memctl-"
TEMPORARY_SUFFIX = ".tmp"

_BUFFER = 256 * 1024

_BEGINNING = 64
_ARCHIVE = re.compile(rb'\{\s*"memctl"\s*:\s*"')
_TRAJECTORY = re.compile(rb'\{\s*"schema_version"\s*:\s*"ATIF-v')
_SQLITE, _SMALLEST_PAGE = b"SQLite format 3\0", 512
_MAGIC = {
    _SQLITE: ("sqlite", ".db"),
    b"\x1f\x8b": ("archive", ".ndjson.gz"),
    b"\x28\xb5\x2f\xfd": ("archive", ".ndjson.zst"),
    encryption.MAGIC: ("archive", ".ndjson.age"),
    encryption.ARMOR: ("archive", ".ndjson.age"),
}


def recognise(path: Path) -> tuple[str, str] | None:
    """Return the kind of store that a file's content shows, and the usual extension of this kind.

    None if the path is not a regular file, cannot be read, or has unknown content.  Pipes and
    devices are not opened.
    """
    start = start_of(path, _BEGINNING)
    for magic, found in _MAGIC.items():
        if start.startswith(magic):
            return found
    text = start.removeprefix(BYTE_ORDER_MARK).lstrip()
    if _ARCHIVE.match(text):
        return "archive", ".ndjson"
    if _TRAJECTORY.match(text):
        return "atif", ".jsonl"
    return ("state", ".json") if text.startswith(b"{") else None


def start_of(path: Path, most: int) -> bytes:
    """Return at most ``most`` first bytes of a file; empty if the file is unreadable.

    The result is also empty for a pipe or a device, which is not opened.  The result for a SQLite
    database is the first 16 bytes, which are the same in all databases; see ``sqlite_tables``.
    """
    try:
        if sqlite_tables(path) is not None:
            return _SQLITE
        if not (path.is_file() and path.stat().st_size):  # a new database is empty, and locked
            return b""
        handle = os.open(path, system.READ_FLAGS)
        try:
            return os.pread(handle, most, 0)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return b""


def sqlite_tables(path: Path) -> list[str] | None:
    """Return the names of the tables of a SQLite database, as they are in the file itself.

    The list is empty for a damaged database.  The result is None for a file of another kind and for
    an unreadable file.  SQLite opens the file and takes no locks.  Opening and closing the file in
    another way would drop the locks of other connections in this process.

    Source: https://sqlite.org/howtocorrupt.html, "Posix advisory locks canceled"
    """
    try:
        if not path.is_file() or path.stat().st_size < _SMALLEST_PAGE:
            return None
    except (OSError, ValueError):
        return None
    import sqlite3  # only for local files

    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    except sqlite3.Error as error:
        other = error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN)
        return None if other else []


class NewFile(ABC):
    """The new content of a file, which appears under the name of the file only when it is whole.

    Leaving the context without ``commit`` discards the content.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @abstractmethod
    def write(self, data: bytes | memoryview) -> int:
        """Append data, possibly to a buffer only."""

    def flush(self) -> None:  # noqa: B027 - compressors call it, and not every place needs it
        """Pass buffered data on, as far as the place of the file permits."""

    @abstractmethod
    def commit(self) -> None:
        """Give the content the name of the file, durably.

        Raises:
            Unavailable: the place refuses, or lost a part of the content.
        """

    def confirm(self) -> None:  # noqa: B027 - a disk has what it has synced
        """Check that the place has the committed content, before anything rests on it.

        Raises:
            Unavailable: the place has something else.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the content, unless it was committed."""


class AtomicFile(NewFile):
    """A temporary file in the folder of its target, which replaces the target on ``commit``.

    Leaving the context removes an uncommitted file.  A new file has mode 0600.  A replacement has
    the mode and the owner of the replaced file.  If the target is a symbolic link, the linked file
    is replaced; a link that may be planted is not followed.  Compressors can write to the file
    through ``write`` and ``flush``.

    Raises:
        NotFound: the folder of the target does not exist.
        Unavailable: the operating system refuses the file (space, permissions, a read-only file
            system), or the target is not a regular file.
    """

    def __init__(
        self,
        path: Path,
        mode: int | None = None,
        *,
        replaces: bool = True,
        follows: bool = True,
    ) -> None:
        """Create the temporary file for the target ``path``.

        ``mode`` is the mode of the file, even if it replaces a file with another mode.  Without
        ``replaces``, a target that exists at the end is refused.  Without ``follows``, a link is
        the target itself, not what it leads to.
        """
        self.path = path
        self._replaces = replaces
        self._target = os.path.realpath(path)
        if not follows:
            self._target = os.path.join(os.path.realpath(path.parent), path.name)
        with system_errors(path, "write"):
            present = None if os.path.islink(self._target) else _replaceable(self._target, path)
            handle, self._temporary = _new_file(os.path.dirname(self._target))
        self._file = os.fdopen(handle, "wb", buffering=_BUFFER)
        self._done = False
        if present is not None:
            try:
                _take_after(self._file.fileno(), present, path)
            except Unavailable:
                self.discard()
                raise
        if mode is not None:
            os.chmod(self._temporary, mode)

    def write(self, data: bytes | memoryview) -> int:
        """Append data to the temporary file, possibly to its buffer only."""
        with system_errors(self.path, "write"):
            return self._file.write(data)

    def flush(self) -> None:
        """Write the buffer to the operating system."""
        with system_errors(self.path, "write"):
            self._file.flush()

    def sync(self) -> None:
        """Wait until the content is on disk.  The call may be made in another thread."""
        with system_errors(self.path, "write"):
            self._file.flush()
            os.fsync(self._file.fileno())

    def set_time(self, nanoseconds: int) -> None:
        """Give the temporary file a time of its last change, in nanoseconds since 1970."""
        with system_errors(self.path, "write"):
            os.utime(self._file.fileno(), ns=(nanoseconds, nanoseconds))

    def replace(self) -> None:
        """Replace the target by the temporary file.

        The replacement is durable if ``sync`` runs before and ``sync_folder`` after it.

        Raises:
            UsageError: the target exists, and ``replaces`` was not set.
        """
        with system_errors(self.path, "write"):
            self._file.flush()
            if self._replaces:
                os.replace(self._temporary, self._target)
            else:
                self._link()
            self._done = True
            self._file.close()  # after the rename: other runs remove unlocked temporary files

    def _link(self) -> None:
        """Give the temporary file the name of the target, which must be free."""
        try:
            os.link(self._temporary, self._target)
            os.unlink(self._temporary)
        except FileExistsError:
            raise UsageError(f"{visible(str(self.path))} exists", "name another file") from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self._target):
                raise
            os.rename(self._temporary, self._target)

    def commit(self) -> None:
        """Replace the target with the temporary file, durably."""
        self.sync()
        self.replace()
        sync_folder(Path(self._target).parent)

    def discard(self) -> None:
        """Remove the temporary file, unless it has replaced the target."""
        if self._done:
            return
        self._done = True
        with suppress(OSError):  # the unwritten buffer is not needed
            self._file.close()
        with system_errors(self.path, "write"):
            Path(self._temporary).unlink(missing_ok=True)


def refuse_shared(folder: Path) -> None:
    """Refuse a folder in which other users can replace what memctl relies on.

    Raises:
        Unavailable: the folder is another user's, or every user may replace files in it.
    """
    with system_errors(folder, "read"):
        found = folder.stat()
    name = visible(str(folder))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise Unavailable(f"every user may write in {name}", f"permit it less: chmod o-w {name}")
    if os.geteuid() not in (0, found.st_uid) and found.st_uid != 0:
        raise Unavailable(f"{name} belongs to another user", "name a folder of your own")


def _replaceable(target: str, path: Path) -> os.stat_result | None:
    """Return the status of the file to replace, or None if it does not exist.

    ``path`` is the path to name in the error.

    Raises:
        OSError: the user may not write the file.
        Unavailable: the path is not a regular file.
    """
    try:
        present = os.stat(target)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(present.st_mode):
        raise Unavailable(
            f"{visible(str(path))} is not a regular file and cannot be replaced",
            "name a file; '-' is standard output",
        )
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "no permission to write", str(path))
    return present


def _take_after(handle: int, present: os.stat_result, path: Path) -> None:
    """Give an open file the owner and the mode in ``present``.

    ``path`` is the path to name in the error.

    Raises:
        Unavailable: the operating system refuses to change the owner or the mode.
    """
    try:
        system.take_after(handle, present)
    except OSError as error:
        raise Unavailable(
            f"{visible(str(path))} belongs to another user or group, and memctl cannot "
            "give it the new file",
            "run memctl as the owner of the file",
        ) from error


_swept: set[str] = set()
"""Folders where this process has removed leftovers; listing a large folder again is slow."""


def _new_file(folder: str) -> tuple[int, str]:
    """Create a temporary file in a folder, locked while it is open; return its handle and path.

    The next run that writes in the folder removes unlocked temporary files, left by killed runs.
    """
    if folder not in _swept:
        _sweep(folder)
        _swept.add(folder)
    while True:
        handle, name = tempfile.mkstemp(TEMPORARY_SUFFIX, TEMPORARY_PREFIX, folder)
        try:
            ours = system.lock(handle)
        except OSError:
            return handle, name  # without locks, no run removes leftovers
        if ours and os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # another run holds the lock, and removes the file


def _sweep(folder: str) -> None:
    """Remove temporary files of killed runs, as far as permitted."""
    left: list[str] = []
    with suppress(PermissionError), os.scandir(folder) as found:  # the folder may be write-only
        left = [
            entry.path
            for entry in found
            if entry.name.startswith(TEMPORARY_PREFIX) and entry.name.endswith(TEMPORARY_SUFFIX)
        ]
    for path in left:
        with suppress(OSError):  # the file belongs to another user, is in use, or is gone
            handle = os.open(path, system.WRITE_FLAGS)
            try:
                if system.lock(handle):
                    os.unlink(path)
            finally:
                os.close(handle)


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Create a private temporary folder in ``parent`` or ``TMPDIR``; remove it at the end.

    Temporary folders of killed runs are removed first; a killed run no longer locks its folder.

    Raises:
        OSError: the operating system refuses to create the folder.
    """
    parent = parent or scratch()
    _sweep_folders(parent)
    while True:
        made = tempfile.TemporaryDirectory(TEMPORARY_SUFFIX, TEMPORARY_PREFIX, parent)
        try:
            handle = _lock_folder(made.name)
            break
        except FileNotFoundError:  # another run removed the folder before it was locked
            made.cleanup()
    try:
        with made:
            yield Path(made.name)
    finally:
        if handle is not None:
            os.close(handle)


def _lock_folder(folder: str) -> int | None:
    """Lock a new temporary folder; return the open handle that holds the lock.

    None in a file system without locks, where no run removes leftover folders.

    Raises:
        FileNotFoundError: another run has removed the folder, or is about to.
        OSError: the operating system refuses to open the folder.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locked = system.lock(handle)
    except OSError:
        os.close(handle)
        return None
    if locked and os.path.exists(folder):
        return handle
    os.close(handle)
    raise FileNotFoundError(folder)


def _sweep_folders(parent: Path) -> None:
    """Remove temporary folders of killed runs, as far as permitted."""
    left: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(parent) as found:
        left = [
            entry
            for entry in found
            if entry.name.startswith(TEMPORARY_PREFIX)
            and entry.name.endswith(TEMPORARY_SUFFIX)
            and entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        ]
    for entry in left:
        with suppress(OSError):  # the folder is in use, or gone
            handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if system.lock(handle):
                    shutil.rmtree(entry.path)
            finally:
                os.close(handle)


def move_file(path: Path, new: Path) -> bool:
    """Give a file another name, durably; return False if another file has the name.

    If the process ends meanwhile, the file may have both names; a second call goes on.

    Raises:
        OSError: as ``os.link``.
    """
    try:
        os.link(path, new)
    except FileExistsError:
        if not os.path.samefile(path, new):
            return False
    except OSError:  # some file systems have no links, and some systems forbid them
        if os.path.lexists(new):
            return False
        os.rename(path, new)
    else:
        sync_folder(new.parent)
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are durable.

    Raises:
        Unavailable: the operating system refuses to open or sync the folder.
    """
    with system_errors(folder, "write"):
        system.sync_folder(folder)


@contextmanager
def system_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an ``OSError`` in the ``with`` block into an error of memctl.

    ``path`` is the file to name in the error.  ``verb`` is ``read`` or ``write``.

    Raises:
        NotFound: the file or its folder does not exist.
        Unavailable: the operating system refuses the access, or has no space left.
    """
    try:
        yield
    except OSError as error:
        raise translated(error, path, verb) from error


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, each with its number, counted from 1.

    Raises:
        NotFound, Unavailable: as ``system_errors``.
    """
    with system_errors(path, "read"), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if text.strip():
                yield number, text


def missing(path: Path, label: str = "", *, folder: bool = False) -> NotFound:
    """Return the error for a missing file; with ``folder``, for the missing folder of the file.

    ``path`` is the path of the file.  ``label`` is the URL of the file, or empty.
    """
    name = visible(str(path))
    what = f"the folder of {name} does not exist" if folder else f"{name} does not exist"
    url, mark, query = label.partition("?")
    if "://" in url and not path.is_absolute():
        return NotFound(
            f"{what} ({url} is a relative path)",
            f"an absolute path has four slashes: sqlite:////{name}{mark}{query}",
        )
    hint = "create it, or check the path" if folder else "check the path"
    if not path.is_absolute():
        with suppress(OSError):  # the working directory may have been removed
            hint += f": {visible(str(path.absolute()))}"
    return NotFound(what, hint)


def require_place(path: Path, label: str = "", *, create: bool) -> None:
    """Check that a path exists or, with ``create``, that its folder does.

    ``label`` is as in ``missing``.

    Raises:
        NotFound: the path, or its folder, does not exist.
        Unavailable: the operating system refuses to look.
    """
    with system_errors(path, "read"):
        if not path.exists() and not create:
            raise missing(path, label)
        if not path.parent.is_dir():
            raise missing(path, label, folder=True)


def translated(error: OSError, path: Path, verb: str) -> MemctlError:
    """Return the error of memctl for an ``OSError``; see ``system_errors``."""
    name = visible(str(path))
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return missing(path, folder=verb != "read")
        case errno.EACCES | errno.EPERM:
            return Unavailable(
                f"no permission to {verb} {name}", "check who owns the file and its folder"
            )
        case errno.EROFS:
            return Unavailable(
                f"cannot write {name}: the file system is read-only", "choose another place"
            )
        case errno.EFBIG:
            return Unavailable(
                f"cannot write {name}: the file would be larger than permitted",
                system.LIMITS[errno.EFBIG],
            )
        case code if code in system.FULL:
            return Unavailable(
                f"no space left to write {name}",
                "free some space and run the same command again; what was there is unchanged",
            )
        case errno.EMFILE | errno.ENFILE:
            return Unavailable(
                f"cannot {verb} {name}: too many open files", system.LIMITS[errno.EMFILE]
            )
        case errno.EISDIR:
            return BadData(f"{name} is a folder, not a file", "name a file")
        case errno.ENAMETOOLONG:
            return UsageError(
                f"the name {name} is too long for its file system", "use a shorter name"
            )
        case _:
            reason = error.strerror or type(error).__name__
            return Unavailable(f"cannot {verb} {name}: {reason}", "see the system's log")
