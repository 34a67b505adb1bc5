"""Stores with something in them, for the tests of the commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import Place, samples
from memctl.testing.drive import write_all
from tests.commands.compressed import configure, model
from tests.conftest import Servers
from tests.schemas import check
from tests.support.backends import BACKENDS, new_place

Run = Callable[..., Result]
FRIDAY = Path(__file__).parents[2] / "examples" / "friday.json"


async def fill(text: str, memories: dict[MemoryKey, list[StoredMessage]], **about: Any) -> None:
    """Writes memories into a store that is written as a user writes it."""
    async with make_store(parse(text), OpenMode.CREATE) as store:
        await write_all(
            store, [samples.sample(key, found, **about) for key, found in memories.items()]
        )


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A place for a SQLite database."""
    return f"sqlite:///{tmp_path}/agents.db"


@pytest.fixture
def sqlite(one: Callable[[str], Place]) -> Place:
    """A SQLite database with nothing in it."""
    return one("sqlite")


@pytest.fixture
def by_model(tmp_path: Path) -> Callable[..., list[object]]:
    """Gives the words of a compress by the model at an address."""

    def words(store: str, url: str, *more: object, **options: Any) -> list[object]:
        path = configure(tmp_path, model(url, **options))
        return ["--config", path, "compress", store, "--summarizer", "model", *more, "--json"]

    return words


@pytest.fixture
def filled(database: str) -> str:
    """A SQLite database with four memories of two users: 10, 20, 30 and 40 messages."""
    keys = [samples.key(number) for number in range(4)]
    asyncio.run(fill(database, {key: samples.entries(10 * n + 10) for n, key in enumerate(keys)}))
    return database


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """A new and empty place of each store in turn."""
    return new_place(request.param, tmp_path, servers)


@pytest.fixture
def one(tmp_path: Path, servers: Servers) -> Callable[[str], Place]:
    """A new and empty place of the store of that name."""

    def make(name: str) -> Place:
        return new_place(name, tmp_path, servers)

    return make


def report(result: Result, code: int = 0) -> dict[str, Any]:
    """The JSON report of a run that ended with ``code``; it is as its schema says."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    found: dict[str, Any] = json.loads(result.stdout)
    check(found)
    return found


def fails(result: Result, code: int, *said: str) -> None:
    """The run ended with ``code``, and told why on one line and what to do on the next."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr + result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("memctl: error:")]
    assert len(lines) == 1, result.stderr
    for text in said:
        assert text in result.stderr, (text, result.stderr)
