"""Private files of the user.  Errors of the operating system become errors of memctl."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from memctl.errors import Unavailable
from memctl.machine import system

FOLDER_MODE = 0o700
"""The mode of a folder that only its owner may enter."""
_FILE_MODE = 0o600
_COUNT = re.compile(rb"([0-9]{18})\n")
_ATTEMPTS, _PAUSE = 500, 0.01
"""The attempts to lock the counter's file, and the seconds between attempts."""


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` in the ``with`` block, which uses ``path``, into ``Unavailable``."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be used: {error.strerror}",
            system.LIMITS.get(
                error.errno or 0, "free some space or fix the permissions, or set XDG_STATE_HOME"
            ),
        ) from error


def new_folder(path: Path) -> None:
    """Create a folder and its missing parents, closed to other users."""
    if path.is_dir():
        return
    new_folder(path.parent)
    path.mkdir(FOLDER_MODE, exist_ok=True)


def new_file(path: Path) -> BinaryIO:
    """Create a file that other users cannot read, and open it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb")


def create_locked(path: Path) -> int | None:
    """Create a file and lock it; return its handle, which holds the lock until it is closed.

    If the file system has no locks, the result is None, and no file is created.
    """
    handle = os.open(path, system.WRITE_FLAGS | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    try:
        system.lock(handle)  # no other process can have the lock
    except OSError as error:
        os.close(handle)
        path.unlink()
        if error.errno not in system.NO_LOCKS:
            raise
        return None
    return handle


def is_locked(path: Path) -> bool:
    """Return whether a file exists and a process holds its lock."""
    try:
        handle = os.open(path, system.WRITE_FLAGS)
    except FileNotFoundError:
        return False
    try:
        return not system.lock(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably; replace an existing file."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with new_file(part) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def count_up(path: Path, count: Callable[[], int]) -> int:
    """Return the next number of the counter in a file; no other process gets this number.

    The first number is 1.  If the file is missing or damaged, ``count`` returns the last number.
    On a file system without locks, two processes may get the same number.

    Raises:
        OSError: the operating system refuses access to the file.
    """
    handle = os.open(path, system.WRITE_FLAGS | os.O_CREAT, _FILE_MODE)
    try:
        _lock(handle)
        known = _COUNT.fullmatch(os.pread(handle, 100, 0))
        number = (int(known[1]) if known else count()) + 1
        os.lseek(handle, 0, os.SEEK_SET)
        # One write of constant size: after a crash, the file holds the old or the new number.
        os.write(handle, b"%018d\n" % number)
        if not known:
            os.ftruncate(handle, 19)
        os.fsync(handle)
    finally:
        os.close(handle)
    return number


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file ``path`` in the ``with`` block; the file is created and stays.

    On a file system without locks, there is no lock.

    Raises:
        Unavailable: the operating system refuses the file, or another process holds the lock.
    """
    with refusals(path):
        handle = os.open(path, system.WRITE_FLAGS | os.O_CREAT, _FILE_MODE)
    try:
        with refusals(path):
            _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    for _ in range(_ATTEMPTS):
        try:
            if system.lock(handle):
                return
        except OSError as error:
            if error.errno not in system.NO_LOCKS:
                raise
            return
        time.sleep(_PAUSE)
    raise BlockingIOError(errno.EAGAIN, "another process holds it")


def sync_folder(path: Path) -> None:
    """Write the names of the files in a folder to disk."""
    system.sync_folder(path)
