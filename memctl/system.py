"""Differences between operating systems, in one place.

memctl is tested on Linux.  What is here for other systems follows their documentation, and lets
memctl start and read there; ``docs/platforms.md`` says what to expect.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Collection

POSIX = os.name == "posix"
UNIX_SOCKETS = POSIX
"""True where asyncio connects to sockets that are files."""

READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait for its writer
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)  # Windows would take line ends for something else
)
"""The flags to open an existing file."""

WRITE_FLAGS = os.O_RDWR | READ_FLAGS & ~os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
"""The flags to open a file of memctl's own; a link in its place is refused."""

_LOCKED_BYTE = 0x7FFF_0000
"""Behind what others read: Windows keeps them from what is locked.  Below what it can lock."""
_positions = threading.Lock()

_SECRETS = re.compile(
    r"REDISCLI_AUTH"
    r"|MEMCTL_.*(PASS|PWD|SECRET|TOKEN|KEY|AUTH|PING).*"
    r"|.*_API_KEY"
    # Except those of clouds and password managers, which the command that prints a password needs.
    r"|(?!(AWS|AZURE|BW|VAULT)_)"
    r".*(PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|SECRET|SECRET_KEY|ACCESS_KEY)",
    re.IGNORECASE,
)
"""Names of variables with passwords, and with keys of models and services."""
_LOGIN = re.compile(r"://[^/\s]*:[^\s]+@")
_PROXY = re.compile(r".*_proxy", re.IGNORECASE)

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""The errors of a file system without locks."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a process, or a machine, that has too little left: no matter of the place."""


def read_at(handle: int, size: int, start: int) -> bytes:
    """Some bytes of an open file, wherever it stands; from any thread."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, start)
    with _positions:
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, size)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: the system refuses, or it is a pipe or a device, which may have no end.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "its name holds a NUL")
    with open(os.open(path, READ_FLAGS), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) and not os.path.samestat(found, os.stat(os.devnull)):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def read_into(handle: int, buffer: bytearray | memoryview, start: int) -> int:
    """Fill a buffer as ``read_at`` does; how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], start)
    data = read_at(handle, len(buffer), start)
    buffer[: len(data)] = data
    return len(data)


def lock(handle: int) -> bool:
    """Lock an open file against other processes, until it is closed; False where one has it.

    Raises:
        OSError: its file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt  # there only

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl  # not on Windows

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def lock_holder(inode: int) -> str:
    """Return who has locked the file of an inode, such as ``pid 4242 (python)``; empty if unknown.

    Linux tells; other systems do not.
    """
    try:
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
        for row in rows:
            if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}"):
                with open(f"/proc/{row[4]}/comm", encoding="utf-8", errors="replace") as name:
                    return f"pid {row[4]} ({name.read().strip()})"
    except OSError:
        pass  # not Linux, or it has ended meanwhile
    return ""


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until the names in a folder are on the disk, where a folder can be synced.

    Raises:
        OSError: the system refuses.
    """
    if not POSIX:
        return  # Windows opens no folder, and keeps names in its journal
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # some network and FUSE file systems cannot sync a folder, nor need to
    finally:
        os.close(handle)


def take_after(handle: int, other: os.stat_result) -> None:
    """Give an open file the owner and the mode of another, where files have these.

    Raises:
        OSError: the system refuses.
    """
    if not POSIX:
        return
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (other.st_uid, other.st_gid):
        os.fchown(handle, other.st_uid, other.st_gid)
    os.fchmod(handle, other.st_mode & 0o7777)


def user_name() -> str:
    """Return the user who runs this process; a number where the system knows no name for it."""
    import getpass  # only a run that locks says who it is

    if not POSIX:
        return getpass.getuser()
    import pwd  # not on Windows

    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container that runs under any number
        return f"uid {number}"


def child_environment(
    secrets: Collection[str] = (), wanted: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment for a program of the user's.

    Without the variables of ``secrets``, those whose names say that they hold a password or a key,
    and those that hold a URL with a password; but with those that are ``wanted``.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in wanted
        or not (
            name in secrets
            or _SECRETS.fullmatch(name)
            or (_LOGIN.search(value) and not _PROXY.fullmatch(name))
        )
    }


def kill_group(pid: int) -> None:
    """End a process that was started with ``start_new_session``, and what it has started.

    On Windows it ends alone.

    Raises:
        ProcessLookupError: it has ended.
    """
    if POSIX:
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)
