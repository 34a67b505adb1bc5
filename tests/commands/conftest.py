"""Stores with something in them, for the tests of the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.testing import Place, samples
from tests.support.backends import WITH_ANY_MARK, new_place, params
from tests.support.cli import fill
from tests.support.compressing import configure, model
from tests.support.servers.pool import Servers


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A place for a SQLite database."""
    return f"sqlite:///{tmp_path}/agents.db"


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A place for another one."""
    return f"sqlite:///{tmp_path}/target.db"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of this test."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(path))
    return path


@pytest.fixture
def sqlite(one: Callable[[str], Place]) -> Place:
    """A SQLite database with nothing in it."""
    return one("sqlite")


@pytest.fixture
def by_model(tmp_path: Path) -> Callable[..., list[object]]:
    """Return the words of a compress by the model at an address."""

    def words(store: str, url: str, *more: object, **options: Any) -> list[object]:
        path = configure(tmp_path, model(url, **options))
        words = ["--config", path, "compress", store, "--all", "--summarizer", "model"]
        return [*words, *more, "--json"]

    return words


@pytest.fixture
def filled(database: str) -> str:
    """A SQLite database with four memories of two users: 10, 20, 30 and 40 messages."""
    keys = [samples.key(number) for number in range(4)]
    asyncio.run(fill(database, {key: samples.entries(10 * n + 10) for n, key in enumerate(keys)}))
    return database


@pytest.fixture(params=params(WITH_ANY_MARK))
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """A new and empty place of each store in turn."""
    return new_place(request.param, tmp_path, servers)


@pytest.fixture
def one(tmp_path: Path, servers: Servers) -> Callable[[str], Place]:
    """A new and empty place of the store of that name."""

    def make(name: str) -> Place:
        return new_place(name, tmp_path, servers)

    return make
