"""Sessions that users share in AgentScope's SQL tables: copied, restored and undone exactly."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memctl.engines.sql import executor
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.stores.agentscope1.sql.statements import COLUMNS
from memctl.testing import samples
from tests.support.backends import SQL_PLACES, sql_database
from tests.support.cli import Run, report
from tests.support.cli import fill as fill_text
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

DEFAULT = "default_session"
ADA, BOB, EVE = (MemoryKey(user, DEFAULT) for user in ("ada", "bob", "eve"))
BATCH = 20
MANY = BATCH + 1

SHARED = {
    "the owner has no messages": {ADA: 0, BOB: 3},
    "the owner comes last": {EVE: 3, ADA: 2, BOB: 4},
    "the owner has no messages, others many": {BOB: 0, ADA: MANY, EVE: 2},
    "the owner has many messages": {EVE: MANY, ADA: 2},
}
"""The messages of each memory of a session, that of its owner first."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few messages be more than one statement takes."""
    monkeypatch.setattr(executor, "BATCH_MESSAGES", BATCH)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A SQLite database in which users share a session, and one has another of her own."""
    text = f"sqlite:///{tmp_path}/shared.db"
    found = SHARED[request.param]
    starts = [sum(list(found.values())[:at]) for at in range(len(found))]
    memories = {
        key: samples.entries(count, start)
        for (key, count), start in zip(found.items(), starts, strict=True)
    }
    asyncio.run(fill_text(text, memories | {MemoryKey("bob", "own"): samples.entries(1, 99_000)}))
    return text


@pytest.fixture(params=SQL_PLACES)
def empty(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty database of each kind."""
    return SQL_PLACES[request.param](tmp_path, servers)


def tables(text: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of AgentScope's tables, in order, as texts."""

    async def look() -> dict[str, list[tuple[str, ...]]]:
        async with make_store(parse(text)) as store:
            database = sql_database(store)
            quote = database.syntax.quote
            async with database.snapshot() as connection:
                return {
                    table: sorted(
                        tuple(map(str, row))
                        for row in await database.fetch_all(
                            connection,
                            f"SELECT {', '.join(quote + name + quote for name in names)} "
                            f"FROM {table}",
                            {},
                        )
                    )
                    for table, names in COLUMNS.items()
                }

    return asyncio.run(look())


@pytest.mark.parametrize("jobs", [1, 4])
def test_shared_sessions_are_restored_from_an_archive(
    run: Run, shared: str, empty: str, jobs: int, tmp_path: Path
) -> None:
    archive = tmp_path / "a.ndjson"
    assert run("export", shared, "-o", archive).exit_code == 0
    assert run("migrate", archive, empty, "--jobs", jobs).exit_code == 0
    assert tables(empty)["session"] == tables(shared)["session"]
    assert tables(empty)["users"] == tables(shared)["users"]
    assert {row[0] for row in tables(empty)["message"]} == {
        row[0] for row in tables(shared)["message"]
    }
    assert run("verify", shared, empty).exit_code == 0
    again = report(run("import", archive, empty, "--json"))
    assert again["memories"]["written"] == 0


@pytest.mark.parametrize("shared", ["the owner comes last"], indirect=True)
def test_shared_sessions_of_a_renamed_owner_are_restored(
    run: Run, shared: str, empty: str, tmp_path: Path
) -> None:
    archive = tmp_path / "a.ndjson"
    report(run("export", shared, "-o", archive, "--json"))
    before = archive.read_bytes()
    for place in archive, shared:
        found = report(run("rename", place, "--user", "eve", "cleo", "--yes", "--json"))
    assert b'"eve"' not in archive.read_bytes()
    assert run("migrate", archive, empty).exit_code == 0
    assert tables(empty)["session"] == tables(shared)["session"]
    assert tables(empty)["users"] == tables(shared)["users"]
    report(run("undo", found["run"], "--json"))
    report(run("rename", archive, "--user", "cleo", "eve", "--yes", "--json"))
    assert archive.read_bytes() == before


def test_shared_sessions_are_undone_and_done_again(run: Run, shared: str, empty: str) -> None:
    asyncio.run(fill_text(empty, {MemoryKey("zoe", "there"): samples.entries(2)}))
    before = tables(empty)
    done = report(run("migrate", shared, empty, "--json"))["run"]
    after = tables(empty)
    assert after["session"] == sorted({*before["session"], *tables(shared)["session"]})
    undone = report(run("undo", done, "--store", empty, "--json"))["run"]
    assert tables(empty) == before
    redone = report(run("undo", undone, "--store", empty, "--json"))["run"]
    assert tables(empty)["message"] == after["message"]
    assert tables(empty)["session"] == after["session"]
    report(run("undo", redone, "--store", empty, "--json"))
    assert tables(empty) == before
