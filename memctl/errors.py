"""The errors of memctl, each with an exit code.

MemctlError          1    unforeseen
├── UsageError       2    the command line or the configuration is wrong
├── Unavailable      3    the store cannot be reached or refuses; a file cannot be read or written
│   ├── Lost             3    the connection broke, or no answer came: trying again may help
│   └── PasswordMissing  3    the server wants a password, and none was given
├── NotFound         4    the store, memory, run or file that is named does not exist
├── Conflict         5    some memories were left alone: the target holds other data for them
├── Different        6    verify found differences
│   └── Unhealthy        6    doctor found errors or warnings
├── Partial          7    some memories failed, the rest were done
├── BadData          8    the input is not what it claims to be; nothing was written
│   └── Uninitialised     8    a database without AgentScope's tables
├── Loss             9    going on would lose something; nothing was written
├── Busy            75    another memctl run holds the lock of the store
└── Interrupted    130    Ctrl-C, or SIGTERM (143), or SIGHUP (129), or an answer

An error is raised once, with a hint, and rendered once, by ``memctl.cli``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct


class Failure(Struct, frozen=True):
    """The reason why a memory was left unchanged.  ``code`` is stable: scripts may test it."""

    code: str
    message: str


class MemctlError(Exception):
    """An unexpected error: a bug in memctl.

    The base class of all errors of memctl, with a message and a hint of one line each.
    """

    code: ClassVar[str] = "error"
    exit_code: int = 1
    level: str = "error"
    """The label of the error on stderr: "error" or "warning"."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(MemctlError):
    """The command line or the configuration is wrong, or the output file already exists."""

    code = "usage"
    exit_code = 2


class Unavailable(MemctlError):
    """The store cannot be reached or denies access; a file cannot be read or written."""

    code = "unavailable"
    exit_code = 3


class Lost(Unavailable):
    """The connection broke, or no answer came in time: trying again may help."""


class PasswordMissing(Unavailable):
    """The server wants a password, and none was given."""


class NotFound(MemctlError):
    """The named store, memory, run or file does not exist."""

    code = "not-found"
    exit_code = 4


class Conflict(MemctlError):
    """Some memories were left alone because the target holds other data for them."""

    code = "conflict"
    exit_code = 5


class Different(MemctlError):
    """The compared stores differ."""

    code = "different"
    exit_code = 6


class Unhealthy(Different):
    """Doctor found errors or warnings."""

    code = "unhealthy"


class Partial(MemctlError):
    """Some memories failed; the others are done."""

    code = "partial"
    exit_code = 7


class BadData(MemctlError):
    """The input is damaged, or not of the expected kind; nothing was written."""

    code = "bad-data"
    exit_code = 8


class Uninitialised(BadData):
    """The database has no tables of AgentScope: not a valid source, but a possible target."""


class Loss(MemctlError):
    """Continuing would lose data; nothing was written."""

    code = "loss"
    exit_code = 9


class Busy(MemctlError):
    """Another memctl run holds the lock of the store."""

    code = "busy"
    exit_code = 75


class Interrupted(MemctlError):
    """Stopped by Ctrl-C, or the answer was no; what was committed is complete."""

    code = "interrupted"
    exit_code = 130


_WITHOUT_A_CLASS = (
    (0, "ok", "Done; also when nothing matched."),
    (129, "interrupted", "Stopped by SIGHUP; what was committed is complete."),
    (141, "closed-pipe", "The reader of the output closed the pipe, such as head."),
    (143, "interrupted", "Stopped by SIGTERM; what was committed is complete."),
)


def exit_codes() -> list[tuple[int, str, str]]:
    """Return every exit code with the name of its error and its meaning, in order."""
    rows = [(kind.exit_code, kind.code, _meaning(kind)) for kind in _kinds(MemctlError)]
    return sorted([*_WITHOUT_A_CLASS, *rows], key=lambda row: row[0])


def _kinds(kind: type[MemctlError]) -> Iterator[type[MemctlError]]:
    """Yield ``kind`` and its subclasses with their own exit code."""
    if "code" in vars(kind):
        yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _meaning(kind: type[MemctlError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
