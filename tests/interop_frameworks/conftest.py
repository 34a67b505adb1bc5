"""The real frameworks: one worker for all tests of a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.worker import Worker, for_the_session


class Frameworks(Worker):
    """The worker of the frameworks."""

    environment = ".interop-frameworks"
    script = "interop_frameworks/worker.py"

    def __call__(self, do: str, framework: str, path: Path | str, session: str = "kyoto") -> Any:
        """Ask a framework for something in a file."""
        return self.ask(do=do, framework=framework, path=str(path), session=session)


frameworks = for_the_session(Frameworks)
