"""Clients of the workers that run the real ReMe and AgenticMemory; see ``tests/interop_reme``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.servers import Missing

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "tests" / "interop_reme"


class Library:
    """A worker, alive as long as the context is."""

    def __init__(self, environment: str, script: str, log: Path) -> None:
        """``log`` takes what the library says.  Raises Missing where it is not installed."""
        self._python = ROOT / environment / "bin" / "python"
        if not self._python.exists():
            raise Missing(f"{environment} is not there: make interop makes it")
        self._script = WORKERS / script
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._python, self._script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._log.parent,  # ReMe looks for settings in the working folder
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, do: str, store: object, **about: Any) -> Any:
        """Ask the worker for something."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, "store": str(store), **about}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self._log.read_text()[-3000:]}"
        return answer["answer"]
