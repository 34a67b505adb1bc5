"""The real agentscope-runtime: one worker for all tests of a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.servers import Missing
from tests.support.servers.pool import start

PYTHON = Path(__file__).parents[2] / ".interop-runtime" / "bin" / "python"


class Runtime:
    """The worker, alive as long as the context is; see ``worker``."""

    def __init__(self, log: Path) -> None:
        """``log`` takes what the services say.  Raises Missing where they are not installed."""
        if not PYTHON.exists():
            raise Missing("agentscope-runtime is not installed: make interop installs it")
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-W", "ignore", Path(__file__).with_name("worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, do: str, url: str, **about: Any) -> Any:
        """Ask the services for something in a Redis; what they touch lives for 1000 seconds."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"do": do, "place": {"url": url, "ttl": 1000}, **about}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"agentscope-runtime failed: {answer['error']}"
        return answer["answer"]


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """The real agentscope-runtime; importing it takes seconds."""
    log = tmp_path_factory.mktemp("runtime") / "log"
    with start(lambda: Runtime(log)) as worker:
        yield worker
