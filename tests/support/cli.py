"""Helpers for tests of the command line: stores for a run, and checks of the run's output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner, Result

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import read, write, write_all
from tests.support.schemas import check

Run = Callable[..., Result]
PARSER = cache(get_command)
"""For ``typer.testing``: a process builds the parser once; so do the tests in one."""
FRIDAY = Path(__file__).parents[2] / "examples" / "friday.json"


def in_process() -> Run:
    """Return a function that runs a command of memctl in this process."""
    from memctl.cli import app

    runner = CliRunner()

    def call(*arguments: object, input: str | bytes | None = None) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments], input=input)

    return call


async def fill(text: str, memories: dict[MemoryKey, list[StoredMessage]], **about: Any) -> None:
    """Write memories into the store of a URL or path."""
    async with make_store(parse(text), OpenMode.CREATE) as store:
        await write_all(
            store, [samples.sample(key, found, **about) for key, found in memories.items()]
        )


def report(result: Result, code: int = 0) -> dict[str, Any]:
    """Return the JSON report of a run with this exit code, checked against its schema."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    found: dict[str, Any] = json.loads(result.stdout)
    check(found)
    return found


def fails(result: Result, code: int, *said: str) -> None:
    """Check that a run ended with ``code``, an error on one line, and a hint on the next."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr + result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("memctl: error:")]
    assert len(lines) == 1, result.stderr
    for text in said:
        assert text in result.stderr, (text, result.stderr)


def contents(text: str) -> dict[MemoryKey, list[StoredMessage]]:
    """Return the contents of a store."""

    async def look() -> dict[MemoryKey, list[StoredMessage]]:
        async with make_store(parse(text)) as store:
            return {key: found.entries for key, found in (await read(store)).items()}

    return asyncio.run(look())


def names(text: str) -> set[MemoryKey]:
    """Return the names that an erase of a whole store would remove, with those of empty memories.

    A user without memories has an empty session.
    """

    async def look() -> set[MemoryKey]:
        async with make_store(parse(text)) as store:
            return {key async for key in store.names(Selection())}

    return asyncio.run(look())


def add(source: Path | str, key: MemoryKey, entries: list[StoredMessage], offset: int) -> None:
    """Add messages to a memory, as an agent does."""

    async def work() -> None:
        async with make_store(parse(str(source)), OpenMode.CREATE) as store:
            await write(store, [samples.sample(key, entries)], offset=offset)

    asyncio.run(work())
