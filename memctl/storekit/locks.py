"""Locks that keep two memctl runs from writing to the same place at once.

Writes are safe without locks: each store checks on commit that the stored data has not changed.
A lock spares the operator the resulting conflicts.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from memctl.errors import Busy, MemctlError
from memctl.location import same_file, visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.machine.system import user_name
from memctl.machine.temporary import scratch
from memctl.shard import Shard
from memctl.storekit.files import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, translated

_ENDS = "wait for it to end, or stop it"
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between attempts while another run is releasing the lock or writing its owner text."""

_MODE = 0o644
"""The mode of a lock file: all users may read who holds the lock."""
_NAME_BYTES = 255
_HOLDER_BYTES = 1000
_CLOSED = -1
"""A handle value for a closed file."""
_UNFIT = re.compile(r"[^A-Za-z0-9 .,:;@()+_-]")
"""Characters that some servers do not return unchanged."""


def busy(label: str, owner: str, hint: str = _ENDS) -> Busy:
    """Return the error that another run holds the lock of the store or file ``label``.

    ``owner`` is the owner text of the other run, or empty.
    """
    name = f"another memctl run, {visible(owner)}," if owner else "another memctl run"
    return Busy(f"{name} is writing to {label}", hint)


@cache
def lock_owner() -> str:
    """Return a text that names this run, for ``Store.lock``.

    An example is ``pid 4242 since 2026-11-21T02:17:53Z on web-1 (ada)``.  The text stays the same
    during a run, so that a run recognizes a lock that it has lost.  Some servers truncate the text:
    the least important part is last.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"pid {os.getpid()} since {now} on {socket.gethostname()} ({user_name()})"


def owner_text(owner: str, shard: Shard | None) -> str:
    """Return the owner text in a lock of a shard, such as ``shard 3/16, pid 4242 since ...``.

    Without a shard, the text is ``owner``.  The shard is first because some servers truncate the
    text, and two runs with different shards must have different texts.
    """
    return owner if shard is None else f"shard {shard}, {owner}"


def stand_in(identity: str) -> Path:
    """Return the path for the ``FileLock`` of a store that has no path on this machine.

    ``identity`` is the identity of the store; equal identities have equal paths.
    """
    from hashlib import sha256

    digest = sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return scratch() / f"memctl-{digest}"


class FileLock:
    """A lock of a file or folder: a lock file next to the file, or in the folder.

    ``release`` removes the lock file.

    A shard has a lock file of its own.  All runs that hold locks of shards share the lock file of
    the whole, which excludes runs that lock the whole.
    """

    def __init__(self, path: Path, label: str, shard: Shard | None = None) -> None:
        """``path`` is the file or folder to protect; symbolic links are followed.

        ``label`` names the file or folder in errors and warnings.  ``shard`` is the shard to
        protect; None protects the whole.
        """
        self._path = path
        self._label = label
        self._shard = shard
        self._files: list[_LockFile] = []

    def take(self, owner: str) -> list[str]:
        """Take the lock for the run named by ``owner``.

        Return a list with a warning if the file system has no locks, an empty list if it has locks.

        Raises:
            Busy: another run holds the lock.
            NotFound, Unavailable: the operating system refuses the lock file.
        """
        file, shard = _lock_file(self._path), self._shard
        self._files = [_LockFile(file, shared=shard is not None)]
        if shard is not None:
            self._files.append(_LockFile(_file_of(shard, file)))
        try:
            for one in self._files:
                other = one.take(owner_text(owner, shard))
                if other is not None:
                    self.release()
                    raise busy(self._label, other or _owner_of_shard(file))
        except OSError as error:
            self.release()
            if error.errno not in system.NO_LOCKS:
                raise translated(error, self._path, "write") from error
            return [
                f"{self._label} is on a file system without locks: do not let another run "
                "write there at the same time"
            ]
        return []

    async def take_in_thread(self, owner: str) -> list[str]:
        """Take the lock in a thread; see ``take``.  A cancelled task does not hold the lock."""
        try:
            return await in_thread(partial(self.take, owner))
        except asyncio.CancelledError:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock and remove its files, if this object holds the lock."""
        while self._files:
            self._files.pop().release()

    @contextmanager
    def held(self, owner: str) -> Iterator[list[str]]:
        """Hold the lock during the ``with`` block; see ``take``."""
        try:
            yield self.take(owner)
        finally:
            self.release()


class _LockFile:
    """A lock file with a kernel lock.

    The kernel releases the lock when the process ends, so the lock file of a killed run is not
    locked.  The file names the run that holds the lock, if the disk has room for the name; a
    ``shared`` file names none of the runs that share it.
    """

    def __init__(self, file: Path, *, shared: bool = False) -> None:
        self._file = file
        self._shared = shared
        self._handle: int | None = None

    def take(self, owner: str) -> str | None:
        """Take the lock, and return None.

        If another run holds the lock, return its owner text, empty if it is unknown.

        Raises:
            OSError: the operating system refuses the lock file.
        """
        for pause in _PAUSES:
            if self._create(owner):
                return None
            other = self._clear()
            if self._handle is not None:
                return None
            if other:
                return other
            time.sleep(pause)
        return ""

    def release(self) -> None:
        """Release the lock if this object holds it, and remove the file unless others share it."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if (not self._shared or system.lock(handle)) and _is_at(handle, self._file):
                handle = _remove(handle, self._file)
        except OSError:  # an unlocked file that remains does no harm
            pass
        finally:
            _close(handle)

    def _create(self, owner: str) -> bool:
        """Create and lock the lock file, and write ``owner`` to it unless the lock is shared.

        Return False if the file exists, or if another run locked it first.
        """
        flags = system.WRITE_FLAGS | os.O_CREAT | os.O_EXCL
        try:
            handle = os.open(self._file, flags, _MODE)
        except FileExistsError:
            return False
        try:
            # Another run may lock and remove the file as a leftover before it is locked here.
            if not (system.lock(handle, shared=self._shared) and _is_at(handle, self._file)):
                os.close(handle)
                return False
            os.fchmod(handle, _MODE)  # independent of the umask
            try:
                os.write(handle, b"" if self._shared else f"{owner}\n".encode(errors="replace"))
            except OSError as error:
                if error.errno not in system.FULL:  # a lock on a full disk names no run
                    raise
        except BaseException:
            with suppress(OSError):  # the first error is more useful
                os.unlink(self._file)
            os.close(handle)
            raise
        self._handle = handle
        return True

    def _clear(self) -> str | None:
        """Remove a lock file that no run has locked; return None.

        If another run has locked the file, return its content.  If the file cannot be removed, as
        in a folder with the sticky bit, this run locks the file instead.  A run that shares the
        lock locks the file, too.
        """
        handle = _opened(self._file)
        if handle is None:
            return None
        try:
            if not system.lock(handle, shared=self._shared):
                return _content(handle)
            if not _is_at(handle, self._file):
                return None
            if self._shared:
                with suppress(OSError):  # the file belongs to another user
                    os.ftruncate(handle, 0)  # it may name a killed run
                self._handle, handle = handle, _CLOSED
                return None
            try:
                handle = _remove(handle, self._file)
            except PermissionError:
                self._handle, handle = handle, _CLOSED
            return None
        finally:
            _close(handle)


def _lock_file(path: Path) -> Path:
    real = Path(same_file(path))
    if real.is_dir():
        return real / f"{TEMPORARY_PREFIX}lock"
    name = f".{real.name}{TEMPORARY_PREFIX}lock"
    if len(os.fsencode(name)) > _NAME_BYTES:
        from hashlib import sha256

        name = f"{TEMPORARY_PREFIX}{sha256(os.fsencode(real.name)).hexdigest()}.lock"
    return real.with_name(name)


def _file_of(shard: Shard, file: Path) -> Path:
    """Return the path of the lock file for a shard; ``file`` is the lock file of the whole.

    Like other temporary files, one that a killed run left is removed by a later run.
    """
    return file.with_name(f"{file.name}-{shard.file_name}{TEMPORARY_SUFFIX}")


def _owner_of_shard(file: Path) -> str:
    """Return the owner text of a run that has locked a shard; empty if there is none.

    ``file`` is the lock file of the whole.
    """
    with suppress(OSError):
        for one in sorted(file.parent.glob(f"{glob.escape(file.name)}-*{TEMPORARY_SUFFIX}")):
            handle = _opened(one)
            if handle is None:
                continue
            try:
                if not system.lock(handle):
                    return _content(handle)
            finally:
                _close(handle)
    return ""


def _content(handle: int) -> str:
    return os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip()


def _remove(handle: int, file: Path) -> int:
    """Remove the file and close its handle; return ``_CLOSED``.

    Raises:
        OSError: the operating system refuses to remove the file; the handle stays open.
    """
    os.unlink(file)
    os.close(handle)
    return _CLOSED


def _close(handle: int) -> None:
    if handle != _CLOSED:
        os.close(handle)


def _opened(file: Path) -> int | None:
    try:
        try:
            return os.open(file, system.WRITE_FLAGS)  # NFS locks only files opened for writing
        except PermissionError:
            return os.open(file, system.WRITE_FLAGS & ~os.O_RDWR)
    except FileNotFoundError:
        return None


def _is_at(handle: int, file: Path) -> bool:
    """Return whether ``file`` still leads to the open file ``handle``."""
    try:
        there = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(handle))


class ServerLock(ABC):
    """A lock on a server; a task keeps it from ``take`` until ``release``.

    The task detects a lost lock (after a restart, a failover, or a pause of this process) and takes
    the lock again.  If another run has taken the lock by then, the task adds a warning.  Writes are
    safe even without the lock.
    """

    period = 5.0
    """Seconds between two checks of the lock."""
    hint = _ENDS

    def __init__(self, label: str, warnings: list[str], shard: Shard | None) -> None:
        """``label`` names the store in errors; new warnings are added to ``warnings``.

        ``shard`` is the shard to protect; None protects the whole store.
        """
        self.label = label
        self.shard = shard
        self.owner = ""
        self._warnings = warnings
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    async def take(self, owner: str) -> None:
        """Take the lock for the run named by ``owner``, and keep it until ``release``.

        Raises:
            Busy: another run holds the lock.
            MemctlError: the server does not answer.
        """
        self.owner = owner_text(_UNFIT.sub("?", owner), self.shard)
        self._begun = True
        other = await self._obtain()
        if other is not None:
            self._begun = False
            raise busy(self.label, other, self.hint)
        self._task = asyncio.create_task(self._look_after())

    async def release(self) -> None:
        """Release the lock, even after an interrupted ``take``."""
        if not self._begun:
            return
        self._begun = False
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        finally:
            await self.let_go()
        if task is not None and not task.cancelled():
            task.result()

    async def _obtain(self) -> str | None:
        """Call ``attempt`` until it succeeds or names the holder; return its last result.

        Give up after the last pause.
        """
        for pause in _PAUSES:
            other = await self.attempt()
            if other != "":
                return other
            await asyncio.sleep(pause)
        return ""

    async def _look_after(self) -> None:
        while True:
            # If the server is unreachable, the writes report this.  The task only tries again.
            with suppress(MemctlError):
                if await self.stay():
                    continue
                other = await self._obtain()
                if other is not None:
                    self._warn(other)

    def _warn(self, other: str) -> None:
        text = (
            f"the lock of {self.label} was lost, and another memctl run has it now: "
            f"{visible(other) or 'unknown owner'}"
        )
        if text not in self._warnings:
            self._warnings.append(text)

    @abstractmethod
    async def attempt(self) -> str | None:
        """Try once to take the lock; return None on success.

        If another run holds the lock, close everything that was opened, and return the owner text
        of that run, empty if it is unknown.  A lock with the owner text of this run, which lost the
        lock with its connection, is replaced.
        """

    @abstractmethod
    async def stay(self) -> bool:
        """Wait for ``period`` and extend the lock; return whether this run still holds it."""

    @abstractmethod
    async def let_go(self) -> None:
        """Release the lock if this run holds it; raise nothing if the server cannot be reached."""
