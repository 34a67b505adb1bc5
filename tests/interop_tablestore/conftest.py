"""The real Tablestore classes: one worker for all tests of a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.servers import Missing
from tests.support.servers.pool import Servers, start
from tests.support.servers.tablestore import Tablestore

PYTHON = Path(__file__).parents[2] / ".interop-tablestore" / "bin" / "python"


class Agents:
    """The worker, alive as long as the context is; see ``worker``."""

    def __init__(self, server: Tablestore, log: Path) -> None:
        """``log`` takes what the classes say.  Raises Missing where they are not installed."""
        if not PYTHON.exists():
            raise Missing("AgentScope is not installed with Tablestore: make interop installs it")
        self._server = server
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
        """Ask the classes for something in the instance of a URL."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"do": do, "place": self._server.endpoint(url), **about}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        while not line.startswith("{"):  # the runtime prints, too
            line = self._process.stdout.readline()
        answer = json.loads(line)
        assert "error" not in answer, f"AgentScope failed: {answer['error']}"
        return answer["answer"]


@pytest.fixture(scope="session")
def agents(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """The real classes; importing them takes seconds."""
    log = tmp_path_factory.mktemp("tablestore") / "log"
    with start(lambda: Agents(servers.tablestore, log)) as worker:
        yield worker
