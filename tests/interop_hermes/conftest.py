"""The real Hermes: one worker for all tests of a process."""

from __future__ import annotations

from typing import Any

from tests.support.worker import Worker, for_the_session


class Hermes(Worker):
    """The worker with ``SessionDB``."""

    environment = ".interop-hermes"
    script = "interop_hermes/worker.py"

    def __call__(self, do: str, folder: object, **about: Any) -> Any:
        """Let Hermes do something with its folder."""
        return self.ask(do=do, folder=str(folder), **about)


hermes = for_the_session(Hermes)
