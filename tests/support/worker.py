"""Clients of the workers that run real frameworks, each in a separate environment.

A worker reads requests from stdin, and writes answers to stdout, until stdin ends.  A request or an
answer is a line of JSON.  ``requirements/interop.toml`` lists the environments.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.support.servers import Missing
from tests.support.servers.pool import start

TESTS = Path(__file__).parents[1]


def program(environment: str, name: str = "python") -> Path:
    """Return a program of an environment.

    Raises:
        Missing: the environment does not exist.
    """
    path = TESTS.parent / environment / "bin" / name
    if not path.exists():
        raise Missing(f"the environment {environment} is not there: make interop makes it")
    return path


def environ(**more: str) -> dict[str, str]:
    """Return the variables for a program of an environment: those of the tests, and ``more``.

    Such a program keeps the modules that it compiles.  An environment has many modules that no test
    imports, so nothing compiles them beforehand.
    """
    return os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | more


class Worker:
    """A worker process, ended by the end of the context."""

    environment: str
    script: str
    """The file of the worker, relative to ``tests``."""

    def __init__(self, folder: Path, **variables: str) -> None:
        """Run the worker in a folder, with a log in the folder.

        Raises:
            Missing: as ``program``.
        """
        self._python = program(self.environment)
        self._folder = folder
        self._variables = variables

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._python, "-W", "ignore", TESTS / self.script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,  # some frameworks read settings from it
                env=environ(**self._variables),
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        self.send(**request)
        return self.answer()

    def send(self, **request: Any) -> None:
        """Send a request; ``answer`` waits for its answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the last request."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # agentscope-runtime prints, too
            line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._end_of_log()}"
        answer = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self._end_of_log()}"
        return answer["answer"]

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


WorkerT = TypeVar("WorkerT", bound=Worker)


def for_the_session(kind: Callable[[Path], WorkerT]) -> Callable[..., Iterator[WorkerT]]:
    """Return a fixture with one worker for all tests of a process, since imports take seconds."""

    @pytest.fixture(scope="session")
    def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerT]:
        with start(lambda: kind(tmp_path_factory.mktemp("worker"))) as found:
            yield found

    return worker
