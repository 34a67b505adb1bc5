"""memctl as a process, and waiting for what it does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.forkserver import ForkedProcess

MEMCTL = [sys.executable, "-m", "memctl"]


def start(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    """Start memctl, by a fork where that can be."""
    words = [str(argument) for argument in arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if sys.platform == "linux" and "preexec_fn" not in settings:
        return ForkedProcess(words, **{**pipes, **settings})
    return subprocess.Popen([*MEMCTL, *words], **{**pipes, **settings})


def wait_until(ready: Callable[[], object]) -> None:
    """Wait for something to happen."""
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
