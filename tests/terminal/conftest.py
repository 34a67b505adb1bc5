"""A store that takes a while, a shell and a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pexpect.fdpexpect import fdspawn

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import fill
from tests.support.forkserver import TerminalProcess
from tests.support.processes import wait_until_it_is_stopped

ROOT = Path(__file__).parents[2]
MEMCTL = [sys.executable, "-m", "memctl"]
WIDE = MemoryKey("京都" * 6, "🍁" * 5)

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


class Screen(fdspawn):
    """A terminal of 24 lines in which memctl runs."""

    exitstatus: int | None = None

    def __init__(self, columns: int, arguments: list[str], environment: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        self._process = TerminalProcess(
            arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        super().__init__(ours, timeout=30, encoding="utf-8")

    def sendintr(self) -> None:
        self.send("\x03")

    def kill(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_until_stopped(self) -> None:
        wait_until_it_is_stopped(self._process.pid)

    def close(self) -> None:
        super().close()
        self.exitstatus = self._process.wait(30)


Terminal = Callable[..., Screen]


def environment(**more: str) -> dict[str, str]:
    """The little that a run needs."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", **more}


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of 12 memories with 500 messages each, one with wide characters."""
    path = tmp_path_factory.mktemp("terminal") / "large.ndjson"
    keys = [WIDE, *(samples.key(number) for number in range(11))]
    asyncio.run(fill(str(path), {key: samples.entries(500) for key in keys}))
    return str(path)


@pytest.fixture
def shell() -> Shell:
    """Run a script of bash in which ``memctl`` is memctl."""

    def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        function = f'memctl() {{ {shlex.join(MEMCTL)} "$@"; }}\nset -o pipefail\n'
        return subprocess.run(
            ["bash", "-c", function + script],
            env=environment(**more),
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def terminal(tmp_path: Path) -> Any:
    """Start memctl at a terminal of so many columns."""

    def start(columns: int, *arguments: object, **more: str) -> Screen:
        settings = {
            **{"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PAGER": "cat"},
            "XDG_STATE_HOME": str(tmp_path),
        }
        return Screen(columns, list(map(str, arguments)), environment(**{**settings, **more}))

    return start
