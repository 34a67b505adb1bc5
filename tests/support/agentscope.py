"""A client of the worker that runs the real AgentScope."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from tests.support.servers.pool import start
from tests.support.worker import TESTS, Worker

PYTHON = TESTS.parent / ".interop" / "bin" / "python"

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
}

Nested = bool | Literal["alone"]


class AgentScope(Worker):
    """The worker of ``tests/interop``."""

    environment = ".interop"
    script = "interop/worker.py"

    def write(self, place: str, memories: list[dict[str, Any]], *, nested: Nested = False) -> None:
        """Add messages to memories; ``place`` is a URL or path of memctl."""
        self.ask(do="write", place=place_of(place, nested), memories=memories)

    def read(
        self, place: str, memories: list[dict[str, Any]], *, nested: Nested = False
    ) -> list[dict[str, Any]]:
        """Return an agent's view of each memory: see ``worker.read``."""
        return list(self.ask(do="read", place=place_of(place, nested), memories=memories))

    def call(
        self, place: str, memory: dict[str, Any], *calls: list[Any], nested: bool = False
    ) -> list[Any]:
        """Return the results of method calls on a memory: see ``worker``."""
        asked = {"user": memory["user"], "session": memory["session"], "calls": calls}
        given: list[Any]
        [given] = self.ask(do="call", place=place_of(place, nested), memories=[asked])
        return given

    def reply(self, place: str, memory: dict[str, Any], *, nested: bool = False) -> dict[str, Any]:
        """Return the request of a real agent to its model for a reply: see ``agents.reply``."""
        answer: dict[str, Any]
        [answer] = self.ask(do="reply", place=place_of(place, nested), memories=[memory])
        return answer

    def go_on(self, place: str, memory: dict[str, Any], *, nested: bool = False) -> str:
        """Return the answer of a real agent by the model at a URL: see ``agents.go_on``."""
        [answer] = self.ask(do="go_on", place=place_of(place, nested), memories=[memory])
        return str(answer)

    def compress(
        self, place: str, memories: list[dict[str, Any]], *, nested: Nested = False
    ) -> list[dict[str, Any]]:
        """Let real agents compress their memories: see ``agents.compress``."""
        return list(self.ask(do="compress", place=place_of(place, nested), memories=memories))

    @contextmanager
    def talking(
        self, place: str, memories: list[dict[str, Any]], until: Path, *, watch: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Add exchanges to memories until the end of the block: see ``worker.talk``.

        At the end, the file ``until`` is created.  Then ``exchanges`` has the number of exchanges
        of each memory.
        """
        self.read(place, [])  # wait for the import of AgentScope
        about = {"place": place_of(place, False), "memories": memories}
        self.send(do="talk", **about, until=str(until), watch=watch)
        said: dict[str, Any] = {}
        try:
            yield said
        finally:
            until.touch()
            said.update(self.answer()[0])


def place_of(text: str, nested: Nested) -> dict[str, Any]:
    """Return a place of memctl in the form of the worker.

    ``nested`` says whether the session that holds the memory, or its summary, is an agent's
    session.  With ``alone``, the agent keeps no further data in the session.
    """
    plain, _, query = text.partition("?")
    options = dict(parse_qsl(query))
    scheme = urlsplit(plain).scheme
    if options.get("layout") == "table":
        encoded = options.get("content_encoding") == "json"
        path = urlsplit(plain).path.removeprefix("/")
        return {"kind": "own", "path": path, "encoded": encoded}
    if scheme in DRIVERS:
        place = {"kind": "sql", "url": plain.replace(scheme, DRIVERS[scheme], 1)}
    elif scheme == "redis":
        if options.get("layout") == "session":
            return {"kind": "redis_session", "url": plain, "nested": nested}
        ttl = int(options["ttl"]) if "ttl" in options else None
        place = {"kind": "redis", "url": plain, "prefix": options.get("prefix", ""), "ttl": ttl}
    elif text.endswith(".json"):
        return {"kind": "state_dict", "path": text}
    else:
        return {"kind": "json_session", "folder": text, "nested": nested}
    if "state" in options:
        beside = options["state"] == "redis"
        state = {**place, "kind": "redis_session"} if beside else place_of(options["state"], nested)
        place["state"] = {**state, "nested": nested}
    return place


@contextmanager
def writing(
    folder: Path, program: str, place: Sequence[str], sessions: Sequence[str]
) -> Iterator[dict[str, list[Any]]]:
    """The real AgentScope writes in another process while the block lasts.

    ``program`` gets the words of ``place``, the path of a file that tells it to end, and the
    sessions.  It prints what it wrote by session, which is yielded, filled after the block.
    """
    start(lambda: AgentScope(folder / "log"))  # says so where it is not installed
    until = folder / "enough"
    command = [PYTHON, "-c", program, *place, until, *sessions]
    with (folder / "errors").open("wb") as errors:
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    wrote: dict[str, list[Any]] = {}
    try:
        yield wrote
    finally:
        until.touch()
        said, _ = writer.communicate()
    assert writer.returncode == 0, (folder / "errors").read_text()[-3000:]
    wrote.update(json.loads(said.splitlines()[-1]))
