"""The real frameworks: one worker for all tests of a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.servers import Missing
from tests.support.servers.pool import start

PYTHON = Path(__file__).parents[2] / ".interop-frameworks" / "bin" / "python"


class Frameworks:
    """The worker, alive as long as the context is; see ``worker``."""

    def __init__(self, log: Path) -> None:
        """``log`` takes what the frameworks say.  Raises Missing where they are not installed."""
        if not PYTHON.exists():
            raise Missing("the frameworks are not installed: make interop installs them")
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

    def __call__(self, do: str, framework: str, path: Path | str, session: str = "kyoto") -> Any:
        """Ask a framework for something in a file."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"do": do, "framework": framework, "path": str(path), "session": session}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"{framework} failed: {answer['error']}"
        return answer["answer"]


@pytest.fixture(scope="session")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frameworks]:
    """The real frameworks; importing them takes seconds."""
    with start(lambda: Frameworks(tmp_path_factory.mktemp("frameworks") / "log")) as worker:
        yield worker
