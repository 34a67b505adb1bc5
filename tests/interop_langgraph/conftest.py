"""The real LangGraph: one worker for all tests of a process."""

from __future__ import annotations

from typing import Any

from tests.support.worker import Worker, for_the_session


class Graphs(Worker):
    """The worker with the graphs."""

    environment = ".interop-langgraph"
    script = "interop_langgraph/graphs.py"

    def __call__(self, do: str, url: str, **about: Any) -> Any:
        """Let the graphs do something with a database."""
        return self.ask(do=do, url=url, **about)


graphs = for_the_session(Graphs)
