"""memctl as a process, and waits for its effects."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.forkserver import ForkedProcess, PlainProcess

MEMCTL = [sys.executable, "-m", "memctl"]


def start(
    *arguments: object, without_rights: Sequence[str] = (), **settings: Any
) -> subprocess.Popen[str]:
    """Start memctl, by a fork if possible; the command ``without_rights`` drops root's rights."""
    words = [str(argument) for argument in arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if sys.platform == "linux" and "preexec_fn" not in settings:
        forked = PlainProcess if without_rights else ForkedProcess
        return forked(words, **{**pipes, **settings})
    return subprocess.Popen([*without_rights, *MEMCTL, *words], **{**pipes, **settings})


def wait_until(ready: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_it_waits(pid: int) -> None:
    """Wait until the main thread of a process waits for something, as for a signal.

    Python loses a signal that comes between its last look for signals and the call that waits.
    """
    wait_until(lambda: _state(pid) == "S")


def wait_until_it_is_stopped(pid: int) -> None:
    """Wait until a process has stopped itself, as a shell does before it goes on.

    A SIGCONT that comes between its SIGTSTP and its SIGSTOP leaves the process stopped for ever.
    """
    wait_until(lambda: _state(pid) == "T")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
