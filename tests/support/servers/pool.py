"""All the servers of a test run, each started on first use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.mem0_platform import Platform
from tests.support.servers import Missing
from tests.support.servers.mariadb import Mariadb
from tests.support.servers.objects import Objects
from tests.support.servers.pgbouncer import Pgbouncer
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.servers.tablestore import Tablestore

ServerT = TypeVar("ServerT")


class Servers:
    """The real servers, each started on first use.

    A test of a server that is not installed is skipped, or fails if ``CI`` is ``true``.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._projects: dict[str, Platform] = {}
        self._ends = ExitStack()

    @cached_property
    def postgresql(self) -> Postgresql:
        return start(lambda: Postgresql(self.run))

    def end_test(self) -> None:
        """End the projects of a test, and empty its databases."""
        if "postgresql" in self.__dict__:  # started
            self.postgresql.end_test()
        self._projects.clear()
        self._ends.close()

    def pgbouncer(self, mode: str, *settings: str) -> Pgbouncer:
        """Return a pooler for the databases of ``postgresql``; ``mode`` is its ``pool_mode``."""
        return start(lambda: Pgbouncer(self.run, self.postgresql, mode, *settings))

    @cached_property
    def mariadb(self) -> Mariadb:
        return start(lambda: Mariadb(self.run))

    @cached_property
    def redis(self) -> Redis:
        return start(lambda: Redis(self.run))

    @cached_property
    def objects(self) -> Objects:
        return start(lambda: Objects(self.run))

    @cached_property
    def tablestore(self) -> Tablestore:
        """The Tablestore of this process; all further servers are shared."""
        return Tablestore()

    def mem0_project(self) -> str:
        """Return the URL of an empty project of a mem0 Platform, which ends with the test."""
        project = self._ends.enter_context(Platform())
        self._projects[project.url] = project
        return project.url

    def mem0_memories(self, url: str) -> list[Any]:
        """Return the contents of a project, without the values that the Platform chooses."""
        chosen = {"id", "created_at", "updated_at"}
        memories = self._projects[url].memories
        values = [{name: one[name] for name in one.keys() - chosen} for one in memories]
        return sorted(json.dumps(value, sort_keys=True) for value in values)

    def mariadb_with(self, name: str, *settings: str) -> Mariadb:
        """Return a MariaDB server with command-line settings, shared by all users of the name."""
        return start(lambda: Mariadb(self.run, f"mariadb-{name}", *settings))

    def redis_with(self, name: str, *settings: str, password: str = "") -> Redis:
        """Return a Redis server with command-line settings, shared by all users of the name."""
        return start(lambda: Redis(self.run, f"redis-{name}", *settings, password=password))


def start(make: Callable[[], ServerT]) -> ServerT:
    """Return the result of ``make``; skip or fail the test if the server is not installed."""
    try:
        return make()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing} (a store that is not tested fails where CI=true)")
        pytest.skip(str(missing))
