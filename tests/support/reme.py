"""Clients of the workers that run the real ReMe and AgenticMemory; see ``tests/interop_reme``."""

from __future__ import annotations

from typing import Any

from tests.support.worker import Worker


class Library(Worker):
    """A worker of one of the libraries."""

    def __call__(self, do: str, store: object, **about: Any) -> Any:
        """Send a request about a store."""
        return self.ask(do=do, store=str(store), **about)


class Reme2(Library):
    """ReMe 0.2."""

    environment = ".interop-reme2"
    script = "interop_reme/worker2.py"


class Reme3(Library):
    """ReMe 0.3."""

    environment = ".interop-reme3"
    script = "interop_reme/worker3.py"


class Reme4(Library):
    """ReMe 0.4."""

    environment = ".interop-reme4"
    script = "interop_reme/worker4.py"


class AgenticMemory(Library):
    """AgenticMemory, which AgentScope 2.x brings."""

    environment = ".interop2"
    script = "interop_reme/worker_agentic.py"
