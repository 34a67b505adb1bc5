"""A part of a run, its result, the engines that run parts, and the supervisor of a part."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

from msgspec import Struct, field

from memctl.errors import MemctlError, Unavailable
from memctl.location import redact_text
from memctl.machine.system import PART_VARIABLE
from memctl.machine.temporary import temporary_file
from memctl.shard import Shard

SIGNALLED = 128
"""Exit codes above it are those of a process that a signal has ended."""
POLL = 0.2
"""The seconds between two looks at a child process."""
_ERRORS = 4096
"""The number of bytes kept of what a part wrote to stderr: its end."""
_ERROR = "memctl: error: "


class Part(Struct, frozen=True):
    """A part of a run: the command line of a child process of memctl, and what it must find there.

    ``arguments`` are the words after ``memctl``, with ``--shard K/N`` and ``--json``.  ``version``
    is the version of memctl that divided the run.  ``stores`` maps each store, as it was written,
    to the label of its location: a part whose configuration locates another store refuses to run.
    """

    arguments: tuple[str, ...]
    shard: Shard
    version: str
    stores: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    """A token in the state folder that the part must share; empty if the part needs no undo."""
    holds: Sequence[Mapping[str, Any]] = ()
    """The holds of the configuration, as tables; the part adds those of its own configuration."""


class PartResult(Struct, frozen=True):
    """How a part ended.

    ``exit`` is the exit code of memctl; of a process that a signal ended, 128 and the number of
    the signal.  ``report`` is its JSON report; None if the process wrote none, as after SIGKILL.
    ``errors`` is the end of what it wrote to stderr, without passwords.  ``host`` is the name of
    the machine, and ``seconds`` the wall time.  ``attempts`` is how often the part has run.
    """

    shard: Shard
    exit: int
    report: dict[str, Any] | None = None
    errors: str = ""
    host: str = ""
    seconds: float = 0.0
    attempts: int = 1

    @property
    def messages(self) -> int:
        """The number of messages that the part selected, by its report."""
        report = self.report or {}
        found = report.get("messages", report.get("totals", {}).get("messages", 0))
        if isinstance(found, dict):
            found = found.get("selected", found.get("source", 0))
        return int(found)

    @property
    def is_lost(self) -> bool:
        """True if a signal has ended the process."""
        return self.exit > SIGNALLED

    @property
    def code(self) -> str:
        """The code of the error in the report; empty if there is none."""
        return str((self.report or {}).get("error", {}).get("code", ""))

    @property
    def reason(self) -> tuple[str, str | None]:
        """The message and the hint of the error with which the part ended."""
        if error := (self.report or {}).get("error"):
            return error["message"], error["hint"]
        if self.is_lost:
            killed = self.exit == SIGNALLED + signal.SIGKILL
            hint = "if the machine ran out of memory, use more parts, or fewer --workers"
            return f"its process was ended by {_signal(self.exit)}", hint if killed else None
        lines = [line for line in self.errors.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(_ERROR)] or lines
        if said:
            return said[-1].removeprefix(_ERROR), None
        return f"its process ended with exit code {self.exit}, without a report", None

    @property
    def began(self) -> bool:
        """True if the part came to its work: its report has more than warnings and an error."""
        return bool((self.report or {}).keys() - {"schema", "warnings", "error"})

    @property
    def written(self) -> int:
        """The number of memories that the part has written, by its report."""
        return self._memories("written")

    @property
    def failed(self) -> int:
        """The number of memories that failed, by its report."""
        return self._memories("failed")

    def _memories(self, what: str) -> int:
        found = (self.report or {}).get("memories")
        return int(found.get(what, 0)) if isinstance(found, dict) else 0


class Engine(Protocol):
    """The machinery that runs parts: processes of this machine, or tasks of a Ray cluster.

    An engine has no queue: the driver of a run asks for at most ``workers`` parts at a time.
    """

    name: str
    workers: int

    async def run(self, part: Part) -> PartResult:
        """Run a part to its end.

        Raises:
            Unavailable: the engine is gone.
        """

    def stop(self, *, force: bool) -> None:
        """Stop all parts that run, at the end of a memory; with ``force``, kill them.

        ``run`` then returns their results.
        """

    async def close(self) -> None:
        """Release what the engine holds.  No part runs."""


class PartStop:
    """A request to stop a part.  It may be asked for from another thread."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal for the child process; None while the process may go on."""

    def ask(self, *, force: bool = False) -> None:
        """Ask the part to stop at the end of a memory; with ``force`` or the second time, at once.

        The child process gets SIGTERM or SIGKILL.
        """
        again = force or self.signal is not None
        self.signal = signal.SIGKILL if again else signal.SIGTERM


def run_part(part: Part, stop: PartStop | None = None) -> PartResult:
    """Run a part in a child process to its end.

    ``stop`` asks the part to stop, as a KeyboardInterrupt does.  The child process is killed if
    this thread ends first.
    """
    begun = time.monotonic()
    report = None
    try:
        with temporary_file() as output, temporary_file() as errors:
            code = _supervise(part, stop or PartStop(), output, errors)
            report, said = _report(output), _end(errors)
        if not code and report is None:
            code = MemctlError.exit_code  # what it did is unknown
    except OSError as error:
        code, said = Unavailable.exit_code, f"{_ERROR}a part cannot start: {error.strerror}"
    return PartResult(
        part.shard,
        code,
        report,
        redact_text(said, part.arguments),
        socket.gethostname(),
        round(time.monotonic() - begun, 3),
    )


def _supervise(part: Part, stop: PartStop, output: IO[bytes], errors: IO[bytes]) -> int:
    """Run the child process of a part; return its exit code.

    Raises:
        OSError: the process cannot start.
    """
    child = _start(part, output, errors)
    try:
        return _watch(child, stop)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _start(part: Part, output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    about = {
        "parent": os.getpid(),
        "version": part.version,
        "stores": dict(part.stores),
        "state": part.state,
        "holds": list(part.holds),
    }
    return subprocess.Popen(
        # -P: as for the script ``memctl``, the current folder is no place of modules.
        [sys.executable, "-P", "-m", "memctl", *part.arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env={**os.environ, PART_VARIABLE: json.dumps(about, default=str)},
        start_new_session=True,  # Ctrl-C is for the supervisor
    )


def _watch(child: subprocess.Popen[bytes], stop: PartStop) -> int:
    """Wait for the end of a child process; return its exit code.  Hand on the requests to stop."""
    sent: signal.Signals | None = None
    while True:
        try:
            if child.poll() is not None:
                break
            if stop.signal is not None and stop.signal is not sent:
                sent = stop.signal
                child.send_signal(sent)
            time.sleep(POLL)  # Ray raises KeyboardInterrupt only between bytecodes
        except KeyboardInterrupt:
            stop.ask()
    code: int = child.returncode
    return code if code >= 0 else SIGNALLED - code


def _report(output: IO[bytes]) -> dict[str, Any] | None:
    """Return the JSON report in the output of a part; None if the report is missing or cut off."""
    output.seek(0)
    try:
        found = json.load(output)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _signal(code: int) -> str:
    """Return the name of the signal of an exit code, such as ``SIGKILL``."""
    try:
        return signal.Signals(code - SIGNALLED).name
    except ValueError:
        return f"signal {code - SIGNALLED}"


def _end(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _ERRORS))
    return errors.read().decode("utf-8", "replace").strip()
