"""Tests of doctor's repairs of AgentScope's tables, and of undoing them, in real databases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.ops.doctor.check import Limits, check
from memctl.ops.doctor.repair import QUARANTINED
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Record, Store
from memctl.stores.agentscope1.sql.maintenance import REPAIRS
from memctl.testing import samples
from memctl.testing.drive import read, write_all
from tests.stores.test_sql_findings import ALICE, ALL, BOB, Database, database, fill, messages
from tests.support.places import Notes
from tests.support.servers.pool import Servers

__all__ = ["database"]


def changing(database: Database) -> Store:
    """The store of the database, to be changed, not yet opened."""
    return make_store(parse(database.url), OpenMode.CHANGE)


def broken(database: Database, code: str) -> None:
    """Make the fault."""
    database.unbind()
    for sql in {
        "orphan-mark": ["DELETE FROM message WHERE id IN ('alice-s1-m3', 'b-o-b-s-2-m1')"],
        "duplicate-index": [
            "UPDATE message SET \"index\" = 2 WHERE id IN ('alice-s1-m3', 'alice-s1-m1')",
            "UPDATE message SET \"index\" = 7 WHERE session_id = 's-2'",
        ],
        "no-session-index": ["DROP INDEX session_id ON message"]
        if database.kind == "mysql"
        else [],
    }[code]:
        database.execute(sql)


async def dump(database: Database) -> Any:
    """Everything, in order."""
    async with make_store(parse(database.url)) as store:
        found = await read(store)
        return {key: (one.memory, one.entries) for key, one in found.items()}


async def codes(database: Database) -> dict[str, int]:
    """The codes that are found, and how many of each."""
    async with make_store(parse(database.url)) as store:
        found = await check(store, ALL, Limits())
    return {finding.code: finding.count for finding in found.faults}


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted(REPAIRS))
async def test_sql_repair_is_undone_but_for_what_it_moves(database: Database, code: str) -> None:
    await fill(database)
    broken(database, code)
    before, found = await dump(database), await codes(database)
    notes = Notes()
    async with changing(database) as store:
        assert code in store.features.repairs
        mended = await store.maintenance().repair(code, ALL, notes)
    assert mended >= found[code]
    assert code not in await codes(database)
    after = await dump(database)
    if code == "duplicate-index":
        for key in (ALICE, BOB):
            entries = after[key][1]
            assert [one.id for one in entries] == [one.id for one in before[key][1]]
            assert len({one.position for one in entries}) == 5
    else:
        assert after == before
    async with changing(database) as store:
        assert await store.maintenance().repair(code, ALL, notes) == 0
    for _ in range(0 if code in QUARANTINED else 2):  # the second time, nothing is left to undo
        async with changing(database) as store:
            await store.maintenance().revert(notes.reversed())
        assert await codes(database) == found
        assert await dump(database) == before


@pytest.mark.parametrize("code", sorted(REPAIRS))
async def test_sql_repair_what_cannot_be_noted_stays(database: Database, code: str) -> None:
    async def full(_: Record) -> None:
        raise OSError("no space left")

    await fill(database)
    broken(database, code)
    found = await codes(database)
    with pytest.raises(Exception, match="no space left"):
        async with changing(database) as store:
            await store.maintenance().repair(code, ALL, full)
    assert await codes(database) == found


async def test_sql_repair_only_the_selected_sessions(database: Database) -> None:
    await fill(database)
    broken(database, "duplicate-index")
    notes = Notes()
    async with changing(database) as store:
        assert await store.maintenance().repair(
            "duplicate-index", Selection(users=frozenset(["alice"])), notes
        )
    async with make_store(parse(database.url)) as store:
        found = await check(store, ALL, Limits())
    assert [one.key for one in found.faults if one.code == "duplicate-index"] == [BOB]


async def test_sql_repair_order_that_many_share(database: Database) -> None:
    """Half of the positions are taken twice: the order stays, and gaps are used up first."""
    await fill(database, {MemoryKey("u", "s"): messages(60)})
    database.execute('UPDATE message SET "index" = "index" - 1 WHERE "index" IN (3, 7, 8, 20)')
    before = (await dump(database))[MemoryKey("u", "s")][1]
    notes = Notes()
    async with changing(database) as store:
        await store.maintenance().repair("duplicate-index", ALL, notes)
    after = (await dump(database))[MemoryKey("u", "s")][1]
    assert [one.id for one in after] == [one.id for one in before]
    assert [one.position for one in after] == list(range(60))
    assert sum(len(record["rows"]) for record in notes.records) == 4


@pytest.mark.slow
async def test_sql_repair_agents_write_while_the_index_is_made(database: Database) -> None:
    await fill(database)
    broken(database, "no-session-index")
    keys = [MemoryKey("w", f"w{n}") for n in range(20)]

    async def write() -> None:
        async with make_store(parse(database.url), OpenMode.CREATE) as store:
            for key in keys:
                await write_all(store, [samples.sample(key, messages(3))])

    async def mend() -> None:
        async with changing(database) as store:
            await store.maintenance().repair("no-session-index", ALL, Notes())

    await asyncio.gather(write(), mend())
    assert set(await dump(database)) == {ALICE, BOB, *keys}
    assert "no-session-index" not in await codes(database)


@pytest.mark.slow
async def test_sql_repair_index_that_was_left_unfinished(
    servers: Servers, postgresql_url: str
) -> None:
    """PostgreSQL keeps what it had when it was stopped, and never uses it."""
    database = Database("postgresql", postgresql_url, lambda _: None)
    await fill(database)
    async with changing(database) as store:
        await store.maintenance().repair("no-session-index", ALL, Notes())
    assert await codes(database) == {}
    servers.postgresql.execute(
        servers.postgresql.admin_url(postgresql_url),
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'ix_message_session_id'::regclass",
    )
    assert await codes(database) == {"no-session-index": 1}
    async with changing(database) as store:
        assert await store.maintenance().repair("no-session-index", ALL, Notes()) == 1
    assert await codes(database) == {}


async def test_sql_repair_leaves_the_highest_index(database: Database) -> None:
    """There is no room above it: the session stays as it is, and the others are repaired."""
    await fill(database)
    broken(database, "duplicate-index")
    highest = 2**63 - 1
    database.execute(
        f"UPDATE message SET \"index\" = {highest} WHERE id IN ('alice-s1-m3', 'alice-s1-m1')"
    )
    before = (await dump(database))[ALICE]
    async with changing(database) as store:
        assert await store.maintenance().repair("duplicate-index", ALL, Notes())
    assert (await dump(database))[ALICE] == before
    async with make_store(parse(database.url)) as store:
        found = await check(store, ALL, Limits())
    assert [one.key for one in found.faults if one.code == "duplicate-index"] == [ALICE]
