"""A client of the worker that runs the SQL storage and the agents of the real AgentScope 2."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.agentscope import DRIVERS
from tests.support.servers import Missing

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".interop2" / "bin" / "python"
WORKER = ROOT / "tests" / "interop2" / "sql_worker.py"


class SqlAgentScope2:
    """The worker, alive as long as the context is."""

    def __init__(self, log: Path) -> None:
        """``log`` takes what AgentScope says.  Raises Missing where it is not installed."""
        if not PYTHON.exists():
            raise Missing("AgentScope 2 is not installed: make .interop2/.ready installs it")
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
        """Return the answer to a request about a session: see ``sql_worker``."""
        plain = place.partition("?")[0]
        scheme = plain.partition("://")[0]
        url = plain.replace(scheme, DRIVERS[scheme], 1)
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, "url": url, **about}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{self._log.read_text()[-3000:]}"
        reply = json.loads(line)
        assert "error" not in reply, f"AgentScope failed: {reply['error']}"
        return reply["answer"]
