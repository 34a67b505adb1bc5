"""Differences between operating systems.

memctl is tested on Linux.  The code for other systems follows their documentation, and lets memctl
start and read; ``docs/platforms.md`` says what to expect.
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
PART_VARIABLE = "MEMCTL_PART"
"""The environment variable that a part of a run gets from its supervisor."""
UNIX_SOCKETS = POSIX
"""True if asyncio can connect to Unix sockets."""

READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)  # do not wait for the writer of a pipe
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)  # Windows would translate line ends
)
"""The flags to open an existing file for reading."""

NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
"""The flag that makes the system refuse to open a symbolic link; 0 on Windows."""
WRITE_FLAGS = os.O_RDWR | READ_FLAGS & ~os.O_RDONLY | NO_LINKS
"""The flags to open one of memctl's own files for writing; a symbolic link is refused."""

_LOCKED_BYTE = 0x7FFF_0000
"""The position of the byte of a file that memctl locks on Windows.

Windows prevents reading of locked bytes, so the byte is beyond the content of any file, and within
the range that can be locked.
"""
_positions = threading.Lock()

_SECRETS = re.compile(
    r"REDISCLI_AUTH"
    r"|MEMCTL_.*(PASS|PWD|SECRET|TOKEN|KEY|AUTH|PING).*"
    r"|.*_API_KEY"
    # Keep variables of clouds and password managers: a password_command needs them.
    r"|(?!(AWS|AZURE|BW|VAULT)_)"
    r".*(PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|SECRET|SECRET_KEY|ACCESS_KEY)",
    re.IGNORECASE,
)
"""Names of variables with passwords or with keys of models and services."""
_LOGIN = re.compile(r"://[^/\s]*:[^\s]+@")
_PROXY = re.compile(r".*_proxy", re.IGNORECASE)

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""The errors of a file system without locks."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a full disk, a used quota, and a limited size of files."""

LIMITS = dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit: ulimit -n") | {
    errno.EFBIG: "raise the limit: ulimit -f"
}
"""The hints for errors that limits of the process or of the system cause, by ``errno``."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors that mean too little memory or too many open files, whatever file is opened."""


def read_at(handle: int, size: int, start: int) -> bytes:
    """Return up to ``size`` bytes of an open file from the offset ``start``.

    Several threads may call this at once, because the position of the file is neither used nor
    moved.
    """
    if hasattr(os, "pread"):
        return os.pread(handle, size, start)
    with _positions:
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, size)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: the file cannot be read, or is a pipe or a device, which may have no end.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "its name holds a NUL")
    with open(os.open(path, READ_FLAGS), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) and not os.path.samestat(found, os.stat(os.devnull)):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def read_into(handle: int, buffer: bytearray | memoryview, start: int) -> int:
    """Fill a buffer from the offset ``start`` of an open file; return the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], start)
    data = read_at(handle, len(buffer), start)
    buffer[: len(data)] = data
    return len(data)


def lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file against other processes, until the file is closed; return True if locked.

    False if another process holds the lock.  Several processes may hold a ``shared`` lock at the
    same time; on Windows, one.  A further call changes the kind of the lock, or loses it.

    Raises:
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt  # exists only on Windows

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl  # does not exist on Windows

        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def lock_holder(inode: int) -> str:
    """Return the process that holds the lock on a file, such as ``pid 4242 (python)``.

    ``inode`` is the inode of the file.  The text is empty if the process is unknown, as it always
    is outside Linux.
    """
    try:
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
        for row in rows:
            if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}"):
                with open(f"/proc/{row[4]}/comm", encoding="utf-8", errors="replace") as name:
                    return f"pid {row[4]} ({name.read().strip()})"
    except OSError:
        pass  # not Linux, or the process has ended
    return ""


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Write the names of the files in a folder to disk, on systems that can do so.

    Raises:
        OSError: the operating system refuses to open or sync the folder.
    """
    if not POSIX:
        return  # Windows cannot open a folder, and its file system journals names
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # some network and FUSE file systems cannot sync a folder and need not
    finally:
        os.close(handle)


def take_after(handle: int, other: os.stat_result) -> None:
    """Give an open file the owner and the mode in ``other``, on systems with owners and modes.

    Raises:
        OSError: the operating system refuses the change.
    """
    if not POSIX:
        return
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (other.st_uid, other.st_gid):
        os.fchown(handle, other.st_uid, other.st_gid)
    os.fchmod(handle, other.st_mode & 0o7777)


def at_terminal() -> bool:
    """Return whether a user at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def user_name() -> str:
    """Return the name of the user who runs this process; a number if the user has no name."""
    import getpass  # only needed for locks

    if not POSIX:
        return getpass.getuser()
    import pwd  # does not exist on Windows

    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container that runs under any number
        return f"uid {number}"


def child_environment(
    secrets: Collection[str] = (), wanted: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment for a program that the user configured.

    Variables with secrets are left out: those in ``secrets``, those with the name of a password or
    key, and those whose value is a URL with a password.  Variables in ``wanted`` are always kept.
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
    """Kill a process that was started with ``start_new_session``, and all processes in its group.

    On Windows, only the process itself is killed.

    Raises:
        ProcessLookupError: the process has ended.
    """
    if POSIX:
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)


def create_private(path: str | os.PathLike[str]) -> None:
    """Create an empty file with mode 0600, for a library that creates files with mode 0644.

    Raises:
        FileExistsError: a file or folder exists at the path.
        OSError: the operating system refuses to create the file.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def readable_by_others(path: str | os.PathLike[str]) -> bool:
    """Return whether the mode of a file lets its group or all users read the file.

    Returns False if there is no file, and on systems without modes.
    """
    try:
        return POSIX and bool(os.stat(path).st_mode & 0o044)
    except OSError:
        return False
