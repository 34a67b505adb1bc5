"""The real agentscope-runtime: one worker for all tests of a process."""

from __future__ import annotations

from typing import Any

from tests.support.worker import Worker, for_the_session


class Runtime(Worker):
    """The worker of the services."""

    environment = ".interop-runtime"
    script = "interop_runtime/worker.py"

    def __call__(self, do: str, url: str, **about: Any) -> Any:
        """Ask the services for something in a Redis; what they touch lives for 1000 seconds."""
        return self.ask(do=do, place={"url": url, "ttl": 1000}, **about)


runtime = for_the_session(Runtime)
