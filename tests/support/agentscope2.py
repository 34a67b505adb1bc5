"""A client of the worker that runs the storage and the agents of the real AgentScope 2.x."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tests.support.agentscope import DRIVERS
from tests.support.worker import Worker


class AgentScope2(Worker):
    """The worker of ``tests/interop2``."""

    environment = ".interop2"
    script = "interop2/worker.py"

    def __call__(self, do: str, place: str, **about: Any) -> Any:
        """Send a request about a place, which is a URL or path of memctl."""
        return self.ask(do=do, place=_place(place), **about)


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
