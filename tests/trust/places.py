"""The places of a migration: the kinds of store, and the remains of a dead run."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Set
from pathlib import Path
from typing import ClassVar

from memctl.dialects.view import Dialect
from memctl.errors import NotFound, Uninitialised
from memctl.model import MemoryKey
from memctl.registry import make_store, parse, store_class
from memctl.store import Features, OpenMode
from memctl.stores.agentscope2.tables import METADATA
from memctl.testing import drive
from memctl.testing.samples import Sample
from tests.support.servers.pool import Servers

LOCK = b":memctl:lock:"
SESSIONS = "?layout=agentscope2"
SESSION_TABLES = frozenset([*METADATA.tables, "alembic_version"])
LOCK_SECONDS = 30
"""The seconds that the lock of a killed run may stay, where it is a key that expires."""


class Place(ABC):
    """A new and empty place; ``text`` is what a user of memctl writes for it."""

    text: str
    options = ""
    """Options of memctl's own, after the URL."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        """``folder`` is empty, and the place's own."""
        self.folder = folder
        self.servers = servers
        self.text = self.make() + self.options

    @abstractmethod
    def make(self) -> str:
        """Make the place; return how it is written."""

    @abstractmethod
    def traces(self) -> list[str]:
        """Return traces of a write that goes on, or did when its writer died."""

    @abstractmethod
    def left_behind(self) -> list[str]:
        """Return remains that are no part of the store, and that nothing removes by itself."""

    def unlock(self) -> None:  # noqa: B027 - most locks end with their process
        """End the lock of a run that was killed, where that does not end with the process."""

    def drop(self) -> None:  # noqa: B027 - files go with their folder
        """Give its room back to the server."""

    @property
    def url(self) -> str:
        """The place without memctl's own options."""
        return self.text.removesuffix(self.options)

    def fill(self, samples: Iterable[Sample]) -> None:
        """Write memories, through memctl in this process."""
        asyncio.run(self._fill(list(samples)))

    async def _fill(self, samples: list[Sample]) -> None:
        async with make_store(parse(self.text), OpenMode.CREATE) as store:
            await drive.write_all(store, samples)

    def read(self, expected: Iterable[MemoryKey] = ()) -> dict[MemoryKey, Sample]:
        """All that it holds now, by a new connection; ``expected`` settles names of files."""
        return asyncio.run(self._read(list(expected)))

    async def _read(self, expected: list[MemoryKey]) -> dict[MemoryKey, Sample]:
        try:
            async with make_store(parse(self.text)) as store:
                store.resolve_names(expected)
                return await drive.read(store)
        except (NotFound, Uninitialised):
            return {}


class File(Place):
    """A file of its own name in the folder."""

    name: str

    def make(self) -> str:
        return str(self.folder / self.name)

    def traces(self) -> list[str]:
        found = [str(path.relative_to(self.folder)) for path in sorted(self.folder.rglob("*"))]
        return [name for name in found if not name.endswith("memctl-lock")]

    def left_behind(self) -> list[str]:
        return [str(path) for path in self.folder.iterdir() if path.name != self.name]


class Sqlite(File):
    name = "m.db"


class Sqlite2(File):
    """AgentScope 2.x's tables in a file."""

    name = "m2.db"

    def make(self) -> str:
        return f"sqlite:///{super().make()}"

    options = SESSIONS


class Archive(File):
    name = "a.ndjson.zst"


class Sessions(File):
    name = "sessions"

    def left_behind(self) -> list[str]:
        found = (self.folder / self.name).rglob("*")
        strays = [str(path) for path in found if path.suffix != ".json" and path.is_file()]
        return super().left_behind() + strays


class Database(Place):
    """A database of a server, whose connections end with their processes."""

    tables: ClassVar[Set[str]] = frozenset({"users", "session", "message", "message_mark"})

    @abstractmethod
    def names(self) -> list[str]:
        """The tables that it has."""

    def traces(self) -> list[str]:
        return self.names()

    def left_behind(self) -> list[str]:
        return sorted(set(self.names()) - self.tables)


class Postgresql(Database):
    def make(self) -> str:
        return self.servers.postgresql.create()

    def names(self) -> list[str]:
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        return self.servers.postgresql.execute(self.url, sql).splitlines()

    def drop(self) -> None:
        self.servers.postgresql.drop(self.url)


class Mysql(Database):
    def make(self) -> str:
        return self.servers.mariadb.fresh()

    def names(self) -> list[str]:
        return self.servers.mariadb.tables(self.url)

    def drop(self) -> None:
        self.servers.mariadb.execute(f"DROP DATABASE {self.url.rpartition('/')[2]}")


class Postgresql2(Postgresql):
    options = SESSIONS
    tables = SESSION_TABLES


class Mysql2(Mysql):
    options = SESSIONS
    tables = SESSION_TABLES


class Redis(Place):
    options = "?prefix=app:"
    memories = b"app:user_id:"
    """The beginning of the keys of memories."""
    _emptied: ClassVar[dict[str, list[str]]] = {}
    """By server, which has a fixed number of databases."""

    def make(self) -> str:
        server = self.servers.redis
        emptied = self._emptied.setdefault(server.socket, [])
        return emptied.pop() if emptied else server.fresh()

    def traces(self) -> list[str]:
        with self.servers.redis.client(self.url) as client:
            return [repr(key) for key in client.keys("*") if LOCK not in key]

    def left_behind(self) -> list[str]:
        """Return keys of no memory that will not expire."""
        with self.servers.redis.client(self.url) as client:
            own = [key for key in client.keys("*") if not key.startswith(self.memories)]
            return [repr(key) for key in own if client.ttl(key) == -1]

    def unlock(self) -> None:
        with self.servers.redis.client(self.url) as client:
            for key in client.keys(b"*" + LOCK + b"*"):
                assert 0 < client.pttl(key) <= LOCK_SECONDS * 1000
                client.unlink(key)

    def drop(self) -> None:
        with self.servers.redis.client(self.url) as client:
            client.flushdb()
        self._emptied[self.servers.redis.socket].append(self.url)


class Redis2(Redis):
    options = SESSIONS
    memories = b"agentscope:user:"


KINDS: dict[str, type[Place]] = {
    "sqlite": Sqlite,
    "postgresql": Postgresql,
    "mysql": Mysql,
    "redis": Redis,
    "archive": Archive,
    "sessions": Sessions,
    "sqlite-agentscope2": Sqlite2,
    "postgresql-agentscope2": Postgresql2,
    "mysql-agentscope2": Mysql2,
    "redis-agentscope2": Redis2,
}
"""By the kind of store."""
OLD, NEW = list(KINDS)[:6], list(KINDS)[6:]
"""The kinds of AgentScope 1.x, and of 2.x."""
PAIRS = [*itertools.product(OLD, OLD), *itertools.product(NEW, NEW), *itertools.product(OLD, NEW)]
"""Every way through the stores, but for those back to AgentScope 1.x."""


def held_by(pair: tuple[str, str]) -> Features:
    """Return what both stores of a pair can hold."""
    first, second = (store_class(kind).features for kind in pair)
    names = ("summaries", "ttl", "empty", "mark_order")
    return Features(
        **{name: getattr(first, name) and getattr(second, name) for name in names},
        marks=first.marks,
        session_owners=first.session_owners or second.session_owners,
    )


def dialect_of(kind: str) -> Dialect:
    """Return the dialect of the messages of a kind of store."""
    found: Dialect = store_class(kind).dialect
    return found
