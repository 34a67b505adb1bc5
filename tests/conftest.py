"""Shared fixtures: real servers, empty databases on them, and the command line."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
import typer.testing
from hypothesis import HealthCheck, settings
from typer.testing import Result

from memctl.shard import Shard, shard_hash
from tests.support.chromium import Chromium, started
from tests.support.cli import PARSER, in_process
from tests.support.servers import folder_in_memory
from tests.support.servers.objects import Bucket, environment
from tests.support.servers.pool import Servers, start

# The same examples each time where CI=true, else random ones.
settings.register_profile(
    "memctl",
    deadline=None,  # a store may be slow for reasons of its own
    max_examples=40,
    # The fixtures hold servers and a folder; each example makes a place of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("memctl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard", type=Shard.parse, default="0/1", help="run one of N parts of the tests: K/N"
    )


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a shard, by a hash of their names: a new test moves no other."""
    shard: Shard = config.getoption("--shard")
    left_out = []
    kept = []
    for item in items:
        place = int(shard_hash(item.nodeid), 16) % shard.of
        (kept if place == shard.number else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_configure() -> None:
    """Keep the folders of tests in memory, as the servers' are, where there is room."""
    # pytest keeps the modules that it has rewritten.  The processes that tests start find modules
    # compiled and write none: a process whose files are limited would leave half a module.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"  # numpy and faiss: other tests run on the other cores
    sys.dont_write_bytecode = False
    if (memory := folder_in_memory()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    gc.disable()  # pytest makes ten thousand tests, and none of them is garbage


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among what pytest has made."""
    gc.freeze()
    gc.enable()


class Unawaited(logging.Handler):
    """A collector of asyncio's errors: exceptions that nobody awaited, tasks left pending."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # Nobody misses the end of something that was cancelled.
        cancelled = isinstance(error, asyncio.CancelledError)
        # asyncpg has a future of its own for a query that was cancelled, and waits for it no more.
        lost = isinstance(error, ConnectionError) and str(error).startswith("unexpected conn")
        if not cancelled and not lost:
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


@pytest.fixture(autouse=True)
def _no_databases_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop the databases of a test, whose files take memory."""
    yield
    if "servers" in request.fixturenames:
        request.getfixturevalue("servers").end_test()


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


@pytest.fixture
def bucket(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket on an S3 server; the environment has the credentials."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return servers.objects.fresh()


@pytest.fixture
def client(servers: Servers, redis_url: str) -> Iterator[redis.Redis]:
    """A client of a new and empty database in Redis."""
    with servers.redis.client(redis_url) as found:
        yield found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A browser."""
    with ExitStack() as ends:
        yield start(lambda: ends.enter_context(started()))


@pytest.fixture(autouse=True)
def _away(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's configuration and state out of the tests, and the tests out of them."""
    home = tmp_path_factory.mktemp("xdg")
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    for name in "CLAUDE_CONFIG_DIR", "CODEX_HOME":
        monkeypatch.setenv(name, str(home / name))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command of memctl in this process.

    ``run("migrate", source, target, input="")`` gives the exit code, stdout and stderr.
    """
    monkeypatch.setattr(typer.testing, "_get_command", PARSER)
    return in_process()
