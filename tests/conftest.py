"""What the tests share: real servers, empty databases on them, and the command line."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pytest
from typer.testing import CliRunner, Result

from tests.servers import Missing
from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis

ServerT = TypeVar("ServerT")


class Servers:
    """The real servers; each starts when first asked for.

    A server that is not installed skips the test, and fails it where ``CI`` is ``true``.
    """

    def __init__(self, run: Path) -> None:
        self.run = run

    @cached_property
    def postgresql(self) -> Postgresql:
        return start(lambda: Postgresql(self.run))

    @cached_property
    def mariadb(self) -> Mariadb:
        return start(lambda: Mariadb(self.run))

    @cached_property
    def redis(self) -> Redis:
        return start(lambda: Redis(self.run))

    def mariadb_with(self, name: str, *settings: str) -> Mariadb:
        """A MariaDB server with settings of its command line, shared by all who use the name."""
        return start(lambda: Mariadb(self.run, f"mariadb-{name}", *settings))

    def redis_with(self, name: str, *settings: str, password: str = "") -> Redis:
        """A Redis server with settings of its command line, shared by all who use the name."""
        return start(lambda: Redis(self.run, f"redis-{name}", *settings, password=password))


def start(make: Callable[[], ServerT]) -> ServerT:
    """What ``make`` gives, or the end of the test where it is not installed."""
    try:
        return make()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing} (a store that is not tested fails where CI=true)")
        pytest.skip(str(missing))


class Unawaited(logging.Handler):
    """Collects what asyncio logs as errors: exceptions that nobody awaited, tasks left pending."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # Nobody misses the end of something that was cancelled.
        if not record.exc_info or not isinstance(record.exc_info[1], asyncio.CancelledError):
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def _no_unawaited_exceptions() -> Iterator[None]:
    """Fail a test behind whose back a task or a callback failed."""
    unawaited = Unawaited()
    logger = logging.getLogger("asyncio")
    logger.addHandler(unawaited)
    yield
    logger.removeHandler(unawaited)
    assert not unawaited.found


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each of its processes a folder in the one of the run.
    return Servers(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture
def postgresql_url(servers: Servers) -> str:
    """An empty PostgreSQL database."""
    return servers.postgresql.fresh()


@pytest.fixture
def mysql_url(servers: Servers) -> str:
    """An empty MariaDB database that tells all texts apart."""
    return servers.mariadb.fresh()


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """An empty Redis database."""
    return servers.redis.fresh()


@pytest.fixture(autouse=True)
def _away(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the user's configuration and state out of the tests, and the tests out of them."""
    home = tmp_path_factory.mktemp("xdg")
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))


@pytest.fixture
def run() -> Callable[..., Result]:
    """Runs a command of memctl in this process.

    ``run("migrate", source, target, input="")`` gives the exit code, stdout and stderr.
    """
    from memctl.cli import app

    runner = CliRunner()

    def call(*arguments: object, input: str | bytes | None = None) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments], input=input)

    return call
