"""Edits of SQL memories whose rows others hold: nobody has to give way to memctl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from memctl.engines.sql import database
from memctl.engines.sql.connection import AsyncConnection
from memctl.model import MemoryKey, StoredMessage, WriteResult
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.agentscope1.sql import edit as editing
from memctl.testing import samples
from memctl.testing.drive import assert_changed, edit, edits, gone, put, read, write_all
from memctl.testing.samples import sample
from tests.support.backends import SQL_PLACES, sql_database
from tests.support.servers.pool import Servers

ALICE = MemoryKey("alice", "of alice")
BOB = MemoryKey("bob", "of bob")
ENTRIES = samples.entries(9)
FIRST, MIDDLE, LAST = ENTRIES[0], ENTRIES[4], ENTRIES[-1]
PATIENCE = 20
"""Seconds for all of it."""
A_WHILE = 0.3
"""Seconds in which memctl would have what it wants, if nobody held any of it."""


@pytest.fixture(params=["postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A server, for SQLite lets but one write at a time."""
    return str(SQL_PLACES[request.param](tmp_path, servers))


@asynccontextmanager
async def filled(url: str) -> AsyncGenerator[Store]:
    """Two memories, which are to be changed."""
    async with make_store(parse(url), OpenMode.CREATE) as store:
        await write_all(store, [sample(ALICE, ENTRIES), sample(BOB, ENTRIES)])
    async with make_store(parse(url), OpenMode.CHANGE) as store, asyncio.timeout(PATIENCE):
        yield store


@asynccontextmanager
async def agent(store: Store) -> AsyncGenerator[AsyncConnection]:
    """A transaction of somebody else."""
    database = sql_database(store)
    async with database.connect() as connection, database.transaction(connection):
        yield connection


async def run(connection: AsyncConnection, sql: str) -> None:
    """A statement that must not have to wait for long."""
    async with asyncio.timeout(10):
        await connection.exec_driver_sql(sql)


async def mark(connection: AsyncConnection, id: str) -> None:
    """Mark a message as AgentScope does."""
    await run(connection, f"INSERT INTO message_mark (msg_id, mark) VALUES ('{row(id)}', 'keep')")


def row(id: str) -> str:
    """The row id of a message of Alice's."""
    return f"{ALICE.user}-{ALICE.session}-{id}"


async def delete(store: Store, *keys: MemoryKey) -> dict[MemoryKey, WriteResult]:
    """Delete all messages, in pieces of three where they are too many for one."""
    changes = [gone(entry) for entry in ENTRIES]
    return await edit(store, [one for key in keys for one in edits(key, changes, 3)])


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("order", [[FIRST, LAST], [LAST, FIRST], [MIDDLE, LAST]])
async def test_sql_agent_marks_what_is_being_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch, pieces: bool, order: list[StoredMessage]
) -> None:
    if pieces:
        monkeypatch.setattr(editing, "BATCH_CHANGES", 3)
    async with filled(url) as store:
        async with asyncio.TaskGroup() as tasks, agent(store) as connection:
            await mark(connection, order[0].id)
            deleting = tasks.create_task(delete(store, BOB, ALICE))
            await asyncio.sleep(A_WHILE)
            assert not deleting.done()
            await mark(connection, order[1].id)  # is not held by who waits
        results = deleting.result()
        assert results[BOB] == WriteResult(BOB, 0, len(ENTRIES))
        assert_changed(results[ALICE])
        found = await read(store)
    kept = {entry.id for entry in order}
    assert [entry.id for entry in found[ALICE].entries if "keep" in entry.marks] == [
        entry.id for entry in ENTRIES if entry.id in kept
    ]
    assert len(found[ALICE].entries) == len(ENTRIES)


async def test_sql_agent_thinks_better_of_it(url: str) -> None:
    async with filled(url) as store:
        async with asyncio.TaskGroup() as tasks, agent(store) as connection:
            await mark(connection, LAST.id)
            deleting = tasks.create_task(delete(store, ALICE))
            await asyncio.sleep(A_WHILE)
            assert not deleting.done()
            await connection.rollback()
        assert deleting.result() == {ALICE: WriteResult(ALICE, 0, len(ENTRIES))}


@pytest.mark.parametrize("pieces", [False, True])
async def test_sql_agent_deletes_what_is_being_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    """AgentScope deletes the marks of a message first, then the message."""
    if pieces:
        monkeypatch.setattr(editing, "BATCH_CHANGES", 3)
    marked = [entry for entry in ENTRIES if entry.marks]
    going = (marked[-1], marked[0])
    async with filled(url) as store:
        async with asyncio.TaskGroup() as tasks, agent(store) as connection:
            await run(connection, f"DELETE FROM message_mark WHERE msg_id = '{row(going[0].id)}'")
            deleting = tasks.create_task(delete(store, ALICE))
            await asyncio.sleep(A_WHILE)
            assert not deleting.done()
            await run(connection, f"DELETE FROM message_mark WHERE msg_id = '{row(going[1].id)}'")
            for entry in going:
                await run(connection, f"DELETE FROM message WHERE id = '{row(entry.id)}'")
        assert_changed(deleting.result()[ALICE])
        found = (await read(store))[ALICE]
    assert [entry.id for entry in found.entries] == [
        entry.id for entry in ENTRIES if entry not in going
    ]


async def test_sql_agent_adds_where_messages_are_put_back(url: str) -> None:
    """Each that adds holds the row of its session; two of them are waited for by nobody."""
    new = samples.entry("new")
    memories = [one for key in (ALICE, BOB) for one in edits(key, [put(new, MIDDLE)])]
    async with filled(url) as store:
        async with asyncio.TaskGroup() as tasks, agent(store) as connection:
            await run(connection, f"SELECT 1 FROM session WHERE id = '{BOB.session}' FOR UPDATE")
            putting = tasks.create_task(edit(store, memories))
            await asyncio.sleep(A_WHILE)
            assert not putting.done()
            await run(connection, f"SELECT 1 FROM session WHERE id = '{ALICE.session}' FOR UPDATE")
        assert putting.result() == {key: WriteResult(key, 1, 0) for key in (ALICE, BOB)}


async def test_sql_rows_that_move_up_are_held(url: str) -> None:
    """To restore a message, those after it need another index."""
    new = [samples.entry(f"new{n}") for n in range(3)]
    async with filled(url) as store:
        async with asyncio.TaskGroup() as tasks, agent(store) as connection:
            await mark(connection, LAST.id)
            putting = tasks.create_task(
                edit(store, edits(ALICE, [put(one, MIDDLE) for one in new]))
            )
            await asyncio.sleep(A_WHILE)
            await mark(connection, ENTRIES[5].id)
        assert putting.result() == {ALICE: WriteResult(ALICE, 3, 0)}
        found = (await read(store))[ALICE]
    ids = [entry.id for entry in ENTRIES]
    assert [entry.id for entry in found.entries] == [*ids[:5], "new0", "new1", "new2", *ids[5:]]


async def test_sql_rows_move_up_beside_those_that_are_held(url: str) -> None:
    """Nobody waits for the agent of another session, though there is no index on sessions."""
    new = [samples.entry(f"new{n}") for n in range(3)]
    async with filled(url) as store, agent(store) as connection:
        bobs = f"{BOB.user}-{BOB.session}-{FIRST.id}"
        for table, id in ("session", BOB.session), ("message", bobs):
            await run(connection, f"SELECT 1 FROM {table} WHERE id = '{id}' FOR UPDATE")
        done = await edit(store, edits(ALICE, [put(one, MIDDLE) for one in new]))
    assert done == {ALICE: WriteResult(ALICE, 3, 0)}


@pytest.mark.parametrize("pieces", [False, True])
async def test_sql_who_never_lets_go(
    url: str, monkeypatch: pytest.MonkeyPatch, pieces: bool
) -> None:
    monkeypatch.setattr(database, "PAUSES", (0.01, 0.01))
    if pieces:
        monkeypatch.setattr(editing, "BATCH_CHANGES", 3)
    async with filled(url) as store:
        async with agent(store) as connection:
            await mark(connection, LAST.id)
            results = await delete(store, ALICE, BOB)
        failure = results[ALICE].failure
        assert failure is not None
        assert failure.code == "locked"
        assert results[BOB] == WriteResult(BOB, 0, len(ENTRIES)), "nobody held that one"
        assert len((await read(store))[ALICE].entries) == len(ENTRIES)


async def test_sql_erase_of_many_beside_one_that_is_held(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSES", (0.01, 0.01))
    async with filled(url) as store:
        await write_all(store, [sample(MemoryKey("eve", f"of eve {n}"), ENTRIES) for n in range(5)])
        async with agent(store) as connection:
            await mark(connection, LAST.id)
            results = {result.key: result async for result in store.erase(Selection())}
        failure = results.pop(ALICE).failure
        assert failure is not None
        assert failure.code == "locked"
        assert {one.deleted for one in results.values()} == {len(ENTRIES)}
        assert (await read(store)).keys() == {ALICE}
