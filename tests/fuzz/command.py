"""memctl in this process: a command after the other, kept from the rest of the machine.

Nothing is started anew for a command but its event loop: modules are imported and the parser is
built once.
"""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import typer

from memctl import cli, plugins
from memctl.machine import installation

PACKAGE = str(Path(cli.__file__).parent)
ALLOWED_PROGRAMS = (["/bin/sh", "-c", "echo secret"], ["/bin/sh", "-c", "cat"], ["cat"])
"""The only programs that a mutated configuration starts, as subprocess is told to."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command."""

    arguments: list[str]
    code: int
    stdout: bytes
    stderr: str
    crash: BaseException | None = None
    """An error that memctl calls unforeseen, or that it let through."""
    kilobytes: int = 0
    """By how much the process has grown in between."""
    behind: str = ""
    """Errors of tasks, threads and destructors, where nobody looks."""


class Memctl:
    """The command line, with a state folder and a folder for temporary files."""

    def __init__(self, folder: Path, begun: Synchronized[float]) -> None:
        """``folder`` has all that the commands leave; ``begun`` shows others when one began.

        Whoever looks at that ends a process whose command hangs: nothing ends a thread that does.
        """
        self.state = folder / "state"
        self.temporary = folder / "tmp"
        for one in (self.state, self.temporary, folder / "config"):
            one.mkdir()
        _isolate(folder, self.temporary)
        self.begun = begun
        self._command = parser()
        self._crash: BaseException | None = None
        self._behind: list[str] = []
        self._watch()

    def run(self, arguments: list[str], stdin: bytes = b"") -> Outcome:
        """Run a command to its end."""
        self._crash = None
        self._behind.clear()
        streams = sys.stdin, sys.stdout, sys.stderr
        out, err = io.BytesIO(), io.BytesIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        # As the entry point has it: what cannot be encoded is escaped.
        sys.stdout = io.TextIOWrapper(out, "utf-8", errors="backslashreplace")
        sys.stderr = io.TextIOWrapper(err, "utf-8", errors="backslashreplace")
        held = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        _inside.set()
        self.begun.value = time.monotonic()
        try:
            code = self._call(arguments)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                stream.detach()  # type: ignore[attr-defined] # lest it closes the bytes
        finally:
            self.begun.value = 0
            _inside.clear()
            sys.stdin, sys.stdout, sys.stderr = streams
        behind = "\n".join(self._behind)
        text = err.getvalue().decode("utf-8", "backslashreplace").replace(_NO_HOOK, "")
        grown = _status("VmHWM") - held
        return Outcome(arguments, code, out.getvalue(), text, self._crash, grown, behind)

    def _call(self, arguments: list[str]) -> int:
        try:
            self._command.main(args=arguments, prog_name="memctl")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
            self._crash = error
            return 1
        finally:
            logging.getLogger().handlers.clear()  # one more after each run
        return 0

    def _watch(self) -> None:
        """Hear of what memctl calls unforeseen, and of failures that no caller hears of."""
        render = cli._unforeseen

        def unforeseen(error: Exception) -> Any:
            self._crash = error
            return render(error)

        cli._unforeseen = unforeseen  # type: ignore[assignment]
        # What is installed stays the same.
        plugins._offered = cache(plugins._offered)
        installation.conflicts = cache(installation.conflicts)
        gc.freeze = lambda: None  # type: ignore[assignment] # nothing of a run is for ever here
        threading.excepthook = lambda args: self._behind.append(
            "".join(traceback.format_exception(args.exc_value))
        )
        sys.unraisablehook = lambda args: self._behind.append(
            "".join(traceback.format_exception(args.exc_value)) if args.exc_value else "unraisable"
        )
        logging.getLogger("asyncio").addHandler(_Asyncio(self._behind))


class _Asyncio(logging.Handler):
    """asyncio's errors: exceptions that nobody awaited, tasks left pending."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, asyncio.CancelledError):
            self._found.append(self.format(record))


@cache
def parser() -> Any:
    """Return memctl's parser, every command of it imported, each built once."""
    found: Any = typer.main.get_command(cli.app)
    found.commands = dict(found.commands.items())
    return found


@cache
def valued_options() -> frozenset[str]:
    """Return the options that take a value, of whichever command."""

    def look(command: Any) -> Iterator[str]:
        for one in command.params:
            if not getattr(one, "is_flag", True):
                yield from one.opts
        for one in getattr(command, "commands", {}).values():
            yield from look(one)

    return frozenset(look(parser()))


def _isolate(folder: Path, temporary: Path) -> None:
    """Keep commands within the folder: no configuration, network or program of the machine."""
    for name in list(os.environ):
        if name.startswith(("MEMCTL_", "XDG_", "PG")):
            del os.environ[name]
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        os.environ[f"XDG_{name}_HOME"] = str(folder / name.lower())
    os.environ.update(HOME=str(folder), TMPDIR=str(temporary), NO_COLOR="", COLUMNS="120")
    tempfile.tempdir = str(temporary)
    sys.addaudithook(_stay_local)


_NO_HOOK = "Exception ignored in audit hook"
"""The words of CPython where a finalizer runs so deep in the stack that no hook can be called."""
_inside = threading.Event()
"""Set while a command runs: what the fuzzer itself does is not its concern."""


def _stay_local(event: str, args: tuple[Any, ...]) -> None:
    if not _inside.is_set():
        return
    if event == "socket.connect":
        address = args[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
            raise ConnectionRefusedError(111, "the fuzzer stays on this machine")
    elif event == "socket.getaddrinfo":
        if args[0] not in ("localhost", b"localhost", "127.0.0.1", b"127.0.0.1", "::1", None):
            raise OSError(-2, "the fuzzer asks no name server")
    elif event == "subprocess.Popen" and [str(one) for one in args[1]] not in ALLOWED_PROGRAMS:
        raise FileNotFoundError(2, "the fuzzer starts no such program", str(args[0]))


_RESET_PEAK = "5"
"""The text that makes the kernel forget the most memory that a process has held; see proc(5)."""


def _status(name: str) -> int:
    """Return a figure in kilobytes of what the kernel knows of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def resident() -> int:
    """Return the memory that this process holds now, in kilobytes."""
    return _status("VmRSS")


def innermost(error: BaseException) -> str:
    """Return the last place in memctl that an exception went through, without its line."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    if not inside:
        return "outside of memctl"
    last = inside[-1]
    return f"memctl{last.filename.removeprefix(PACKAGE)}:{last.name}"
