"""Sources that go back in time while ``migrate --follow`` copies them.

A server was flushed, keys expired, or the source was restored from an older copy.  The target goes
back, too, but keeps the memories of which the source has nothing: these are conflicts.  An undo of
the run leaves nothing of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

from memctl.model import MemoryKey
from memctl.ops.stop import Stop
from memctl.testing import samples
from memctl.testing.samples import Sample
from tests.fuzz.bench import Bench
from tests.fuzz.databases import Database, MysqlDatabase, PostgresqlDatabase, SqliteDatabase
from tests.fuzz.files import fill
from tests.fuzz.invariants import Broken, check_same
from tests.support.cli import contents
from tests.support.servers.redis import Redis

TARGET = Path("target.db")
TABLES = ("message_mark", "message", "session", "users")


class Following(ABC):
    """A source of memories, some of which lose messages while it is followed."""

    name: ClassVar[str]
    weight = 1

    def play(self, rng: Random, bench: Bench) -> None:
        counts = [rng.choice([1, 3, 20]) for _ in range(rng.choice([1, 3, 5]))]
        world = [
            samples.sample(samples.key(number), samples.entries(count, start=30 * number))
            for number, count in enumerate(counts)
        ]
        self.clear()
        asyncio.run(fill(self.url, world))
        before = _outlines(self.url)
        after: dict[MemoryKey, list[Any]] = {}

        def go_back() -> None:
            self.go_back(rng, world)
            after.update(_outlines(self.url))

        with patch.object(Stop, "pause", _between(go_back)):
            done = bench.run("migrate", self.url, str(TARGET), "--follow", "--json")
        check_same("the target is as its source", before | after, _outlines(str(TARGET)))
        lost = before.keys() - after.keys()
        if done.code != (5 if lost else 0):
            raise Broken(f"a followed source went back, and the code is {done.code}", done.stderr)
        failures = json.loads(done.stdout)["failures"]
        told = {(one["user"], one["session"]) for one in failures if one["code"] == "conflict"}
        check_same("other memories are conflicts", {(one.user, one.session) for one in lost}, told)
        undone = bench.run("undo", json.loads(done.stdout)["run"])
        if undone.code or contents(str(TARGET)):
            raise Broken("a followed copy is not undone", undone.stderr)

    def go_back(self, rng: Random, world: list[Sample]) -> None:
        """Take messages from the source."""
        older = []
        for one in world:
            left = rng.choice([0, 0, 1, len(one.entries) - 1, len(one.entries)])
            older.append(samples.sample(one.key, one.entries[:left]))
        if all(len(old.entries) == len(new.entries) for old, new in zip(older, world, strict=True)):
            older = []
        self.clear()
        asyncio.run(fill(self.url, [one for one in older if one.entries]))

    @property
    @abstractmethod
    def url(self) -> str:
        """The location of the source, as a user writes it."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all memories, while others read."""


def _outlines(store: str) -> dict[MemoryKey, list[Any]]:
    """Return ids and marks of the memories that have messages."""
    return {
        key: [(one.id, sorted(one.marks)) for one in entries]
        for key, entries in contents(store).items()
        if entries
    }


def _between(go_back: Callable[[], None]) -> Callable[..., Any]:
    """Return the pause between two copies: the first goes back, the second asks for the stop."""
    steps = [Stop.ask, lambda _: _in_thread(go_back)]

    async def pause(stop: Stop, _: float) -> None:
        steps.pop()(stop)

    return pause


def _in_thread(work: Callable[[], None]) -> None:
    """Call ``work`` in a thread, where it can run an event loop."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    for error in failed:
        raise error


class FollowingSql(Following):
    """Memories of AgentScope 1.x in a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def url(self) -> str:
        return self._database.url

    def clear(self) -> None:
        if not set(TABLES) <= set(self._database.tables()):
            self._database.empty()
            return
        for name in TABLES:
            self._database.execute(f"DELETE FROM {self._database.quoted(name)}")


class FollowingSqlite(FollowingSql):
    """SQLite."""

    name = "follow-sqlite"

    def __init__(self) -> None:
        super().__init__(SqliteDatabase())


class FollowingPostgresql(FollowingSql):
    """PostgreSQL."""

    name = "follow-postgresql"

    def __init__(self, folder: Path) -> None:
        super().__init__(PostgresqlDatabase(folder))


class FollowingMysql(FollowingSql):
    """MariaDB, as a MySQL server."""

    name = "follow-mysql"

    def __init__(self, folder: Path) -> None:
        super().__init__(MysqlDatabase(folder))


class FollowingRedis(Following):
    """Redis, whose keys may also expire one by one."""

    name = "follow-redis"

    def __init__(self, folder: Path) -> None:
        self._server = Redis(folder)

    @cached_property
    def _url(self) -> str:
        return self._server.fresh()

    @property
    def url(self) -> str:
        return self._url

    def clear(self) -> None:
        with self._server.client(self._url) as client:
            client.flushdb()

    def go_back(self, rng: Random, world: list[Sample]) -> None:
        if rng.random() < 0.5:
            super().go_back(rng, world)
            return
        gone = rng.choice(world).key
        which = rng.choice(["*", "messages", "msg:*0"])
        with self._server.client(self._url) as client:
            for name in client.scan_iter(f"user_id:{gone.user}:session:{gone.session}:{which}"):
                client.delete(name)  # as if it had expired
