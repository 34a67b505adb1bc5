"""Locks that keep two memctl runs from writing into one place.

Every write is safe without them: each store checks, as it commits, that what it adds to is still
what it found.  A lock spares the operator the conflicts that come of two runs at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from memctl import system
from memctl.concurrency import in_thread
from memctl.errors import Busy, MemctlError
from memctl.location import same_file, visible
from memctl.storekit.files import TEMPORARY_PREFIX, system_errors
from memctl.system import user_name

_ENDS = "wait for it to end, or stop it"
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds before a lock is looked at again whose owner is about to release it, or to sign."""

_MODE = 0o644
"""Others may read who holds the lock: a second run need not be the same user's."""
_NAME_BYTES = 255
_HOLDER_BYTES = 1000
_CLOSED = -1
"""In place of the handle of a file."""
_UNFIT = re.compile(r"[^A-Za-z0-9 .,:;@()+_-]")
"""The characters that not every server passes on unchanged."""


def busy(label: str, owner: str, hint: str = _ENDS) -> Busy:
    """The error of who comes second; ``owner`` is empty where nothing tells who came first."""
    name = f"another memctl run, {visible(owner)}," if owner else "another memctl run"
    return Busy(f"{name} is writing to {label}", hint)


@cache
def lock_owner() -> str:
    """The text for ``Store.lock``: ``pid 4242 since 2026-11-21T02:17:53Z on web-1 (ada)``.

    It is the same throughout a run, which so knows a lock as its own that it lost.  Its end is the
    first to go where a server cuts it off.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"pid {os.getpid()} since {now} on {socket.gethostname()} ({user_name()})"


def stand_in(identity: str) -> Path:
    """Return a path that stands for a place without one, for ``FileLock``, on this machine."""
    digest = sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"memctl-{digest}"


class FileLock:
    """A small file that is locked in the kernel, next to what it stands for or in the folder it is.

    The kernel's lock ends with its process, so a file that a killed run left is not locked.  The
    text in it is the owner's.  The file is removed by who holds it.
    """

    def __init__(self, path: Path, label: str) -> None:
        """``path`` is what to keep others from; links are followed."""
        self._path = path
        self._label = label
        self._file = path
        self._handle: int | None = None

    def take(self, owner: str) -> list[str]:
        """Take the lock; warnings where the file system has no locks.

        Raises:
            Busy: another run holds it.
            NotFound, Unavailable: the system refuses the file.
        """
        self._file = _lock_file(self._path)
        other = ""
        with system_errors(self._path, "write"):
            for pause in _PAUSES:
                try:
                    if self._create(owner):
                        return []
                    other = self._clear() or ""
                    if self._handle is not None:
                        return []
                except OSError as error:
                    if error.errno not in system.NO_LOCKS:
                        raise
                    return [
                        f"{self._label} is on a file system without locks: do not let another run "
                        "write there at the same time"
                    ]
                if other:
                    break
                time.sleep(pause)
        raise busy(self._label, other)

    async def take_in_thread(self, owner: str) -> list[str]:
        """``take`` in a thread."""
        return await in_thread(partial(self.take, owner))

    def release(self) -> None:
        """Release the lock, if it is held."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if _is_at(handle, self._file):
                handle = _remove(handle, self._file)
        except OSError:  # a file that stays is not locked, and in nobody's way
            pass
        finally:
            _close(handle)

    @contextmanager
    def held(self, owner: str) -> Iterator[list[str]]:
        """Hold the lock for the body; see ``take``."""
        try:
            yield self.take(owner)
        finally:
            self.release()

    def _create(self, owner: str) -> bool:
        """Return whether a new file of ours is there, locked and signed."""
        flags = system.WRITE_FLAGS | os.O_CREAT | os.O_EXCL
        try:
            handle = os.open(self._file, flags, _MODE)
        except FileExistsError:
            return False
        try:
            # Until it is locked, others take it for a leftover, which they lock and remove.
            if not (system.lock(handle) and _is_at(handle, self._file)):
                os.close(handle)
                return False
            if system.POSIX:
                os.fchmod(handle, _MODE)  # whatever the umask is
            os.write(handle, f"{owner}\n".encode(errors="replace"))
        except BaseException:
            with suppress(OSError):  # the first error tells more
                os.unlink(self._file)
            os.close(handle)
            raise
        self._handle = handle
        return True

    def _clear(self) -> str | None:
        """Remove the file if nobody holds it; the text of who does, None where nobody did.

        A file of another user in a folder that keeps files to their owners, such as /tmp, is held
        instead; its text stays.
        """
        handle = _opened(self._file)
        if handle is None:
            return None
        try:
            if not system.lock(handle):
                return system.read_at(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip()
            if not _is_at(handle, self._file):
                return None
            try:
                handle = _remove(handle, self._file)
            except PermissionError:
                self._handle, handle = handle, _CLOSED
            return None
        finally:
            _close(handle)


def _lock_file(path: Path) -> Path:
    """Return the path of the lock of a file or folder, whatever link leads to it."""
    real = Path(same_file(path))
    if real.is_dir():
        return real / f"{TEMPORARY_PREFIX}lock"
    name = f".{real.name}{TEMPORARY_PREFIX}lock"
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = f"{TEMPORARY_PREFIX}{sha256(os.fsencode(real.name)).hexdigest()}.lock"
    return real.with_name(name)


def _remove(handle: int, file: Path) -> int:
    """Remove a file, which is open, and close it; return ``_CLOSED``.

    Raises:
        OSError: the system refuses; the file stays open.
    """
    if system.POSIX:
        os.unlink(file)
    os.close(handle)
    if not system.POSIX:  # Windows removes no open file, whoever has opened it
        with suppress(PermissionError):
            os.unlink(file)
    return _CLOSED


def _close(handle: int) -> None:
    if handle != _CLOSED:
        os.close(handle)


def _opened(file: Path) -> int | None:
    try:
        try:
            return os.open(file, system.WRITE_FLAGS)  # NFS locks only what can be written
        except PermissionError:
            return os.open(file, system.WRITE_FLAGS & ~os.O_RDWR)
    except FileNotFoundError:
        return None


def _is_at(handle: int, file: Path) -> bool:
    """Return whether the open file still has its name."""
    try:
        there = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(handle))


class ServerLock(ABC):
    """A lock that a server keeps, looked after by a task until it is released.

    The task notices when the lock is lost (a restart, a failover, a pause of this process) and
    takes it again.  Where another run has it by then, that is a warning: writes stay safe.
    """

    period = 5.0
    """Seconds between two looks at the lock."""
    hint = _ENDS

    def __init__(self, label: str, warnings: list[str]) -> None:
        """``warnings`` are those of the store."""
        self.label = label
        self.owner = ""
        self._warnings = warnings
        self._begun = False
        self._task: asyncio.Task[None] | None = None

    async def take(self, owner: str) -> None:
        """Take the lock, and keep it until ``release``.

        Raises:
            Busy: another run holds it.
            MemctlError: the server cannot be asked.
        """
        self.owner = _UNFIT.sub("?", owner)
        self._begun = True
        other = await self._obtain()
        if other is not None:
            self._begun = False
            raise busy(self.label, other, self.hint)
        self._task = asyncio.create_task(self._look_after())

    async def release(self) -> None:
        """Release the lock, if it is held or was about to be."""
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
        """As ``attempt``, and again where who held it a moment ago is gone, or not yet known."""
        for pause in _PAUSES:
            other = await self.attempt()
            if other != "":
                return other
            await asyncio.sleep(pause)
        return ""

    async def _look_after(self) -> None:
        while True:
            # A server that cannot be reached fails the writes, which tell; here it is tried again.
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
        """Take the lock: None if it is ours now, else the text of who holds it, if it is known.

        Nothing stays open where it is another's.  The same text is the same run: a lock that it
        lost with its connection, and that the server still keeps, gives way.
        """

    @abstractmethod
    async def stay(self) -> bool:
        """Wait for a period and make the lock last; whether it is still ours."""

    @abstractmethod
    async def let_go(self) -> None:
        """End the lock if it is ours, whatever state it is in; needs no reachable server."""
