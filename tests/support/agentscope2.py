"""A client of the worker that runs the storage and the agents of the real AgentScope 2.x."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.agentscope import DRIVERS
from tests.support.servers import Missing

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".interop2" / "bin" / "python"
WORKER = ROOT / "tests" / "interop2" / "worker.py"


class AgentScope2:
    """The worker, alive as long as the context is; see ``tests/interop2/worker.py``."""

    def __init__(self, log: Path) -> None:
        """``log`` takes what AgentScope says.  Raises Missing where it is not installed."""
        if not PYTHON.exists():
            raise Missing("AgentScope 2.x is not installed: make interop installs it")
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, do: str, place: str, **about: Any) -> Any:
        """Ask the worker for something at a place, written as memctl takes it."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"do": do, "place": _place(place), **about}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"AgentScope failed: {answer['error']}"
        return answer["answer"]


def _place(text: str) -> dict[str, Any]:
    plain = text.partition("?")[0]
    parts = urlsplit(plain)
    if not parts.scheme:
        return {"file": plain}
    if parts.scheme == "redis":
        db = int(parts.path.strip("/") or 0)
        redis = {"host": parts.hostname, "port": parts.port, "db": db, "password": parts.password}
        return {"redis": redis}
    return {"sql": plain.replace(parts.scheme, DRIVERS[parts.scheme], 1)}
