"""Files, users and terminals of the operating system: Linux or macOS; see ``docs/platforms.md``."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import stat
import sys
from collections.abc import Collection

PART_VARIABLE = "MEMCTL_PART"
"""The environment variable that a part of a run gets from its supervisor."""

READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""The flags to open an existing file for reading, without waiting for the writer of a pipe."""
WRITE_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
"""The flags to open one of memctl's own files for writing; a symbolic link is refused."""

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


def lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file against other processes, until the file is closed; return True if locked.

    False if another process holds the lock.  Several processes may hold a ``shared`` lock at the
    same time.  A further call changes the kind of the lock, or loses it.

    Raises:
        OSError: the file system has no locks.
    """
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
    """Write the names of the files in a folder to disk, on file systems that can do so.

    Raises:
        OSError: the operating system refuses to open or sync the folder.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # some network and FUSE file systems cannot sync a folder and need not
    finally:
        os.close(handle)


def take_after(handle: int, other: os.stat_result) -> None:
    """Give an open file the owner and the mode in ``other``.

    Raises:
        OSError: the operating system refuses the change.
    """
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (other.st_uid, other.st_gid):
        os.fchown(handle, other.st_uid, other.st_gid)
    os.fchmod(handle, other.st_mode & 0o7777)


def at_terminal() -> bool:
    """Return whether a user at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def user_name() -> str:
    """Return the name of the user who runs this process; a number if the user has no name."""
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


def create_private(path: str | os.PathLike[str]) -> None:
    """Create an empty file with mode 0600, for a library that creates files with mode 0644.

    Raises:
        FileExistsError: a file or folder exists at the path.
        OSError: the operating system refuses to create the file.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def readable_by_others(path: str | os.PathLike[str]) -> bool:
    """Return whether the mode of a file lets its group or all users read the file.

    Returns False if there is no file.
    """
    try:
        return bool(os.stat(path).st_mode & 0o044)
    except OSError:
        return False
