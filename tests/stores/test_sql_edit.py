"""Tests special to edits of SQL memories: positions, other row ids, shared sessions."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.model import Change, MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.agentscope1.sql.positions import InsertRun, PositionAllocator
from memctl.testing import samples
from memctl.testing.drive import (
    assert_changed,
    case,
    edit,
    edit_all,
    edits,
    gone,
    marked,
    outline,
    put,
    read,
    write,
    write_all,
)
from memctl.testing.samples import sample
from tests.stores.test_sql_row_ids import FOREIGN, NAMES
from tests.support.backends import SQL_PLACES, sql_database
from tests.support.cli import Run, fails, report
from tests.support.servers.pool import Servers

ALICE = MemoryKey("alice", "s")
BOB = MemoryKey("bob", "s")
AWAY = MemoryKey("alice", "another")

Rows = list[tuple[int | None, str]]


@pytest.fixture(params=SQL_PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty database of each kind."""
    return str(SQL_PLACES[request.param](tmp_path, servers))


def at(index: int, name: str = "m") -> StoredMessage:
    """A message with a position."""
    id = f"{name}{index}"
    return StoredMessage(id, samples.message(id, index), ("hint",), index)


def new(*names: str) -> list[StoredMessage]:
    """Return messages without a position."""
    return [samples.entry(name) for name in names]


async def fill(url: str, *memories: tuple[MemoryKey, Iterable[StoredMessage]]) -> None:
    async with make_store(parse(url), OpenMode.CREATE) as store:
        await write_all(store, [sample(key, entries) for key, entries in memories])


def changing(url: str) -> Store:
    return make_store(parse(url), OpenMode.CHANGE)


async def rows(url: str) -> dict[MemoryKey, Rows]:
    """Return the positions and ids of all messages, in order."""
    async with make_store(parse(url)) as store:
        found = await read(store)
    return {
        key: [(one.position, one.id) for one in memory.entries] for key, memory in found.items()
    }


async def count(url: str, table: str) -> int:
    async with make_store(parse(url)) as store:
        database = sql_database(store)
        async with database.snapshot(find_huge=False) as connection:
            result = await connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}")
            return int(result.scalar())


# Positions


@pytest.mark.slow
async def test_sql_edit_positions_come_back(url: str) -> None:
    entries = [at(n) for n in (0, 3, 4, 10, 11)]
    await fill(url, (ALICE, entries), (BOB, [at(n) for n in (1, 2, 5, 12)]))
    before = await rows(url)
    for going in ([0], [1, 2], [4], [0, 1, 2, 3, 4], [0, 4]):
        async with changing(url) as store:
            await edit_all(store, ALICE, [gone(entries[n]) for n in going])
            kept = None
            back = []
            for n, entry in enumerate(entries):
                if n in going:
                    back.append(put(entry, kept))
                else:
                    kept = entry
            await edit_all(store, ALICE, back)
        assert await rows(url) == before


async def test_sql_edit_what_came_meanwhile_moves_up(url: str) -> None:
    """AgentScope gives the index of a last message that went to the next one."""
    old = [at(n) for n in range(4)]
    await fill(url, (ALICE, old), (AWAY, old))
    async with changing(url) as store:
        await edit_all(store, ALICE, [gone(old[2]), gone(old[3])])
        await write(store, [sample(ALICE, new("x", "y", "z"))], offset=2)
        assert (await rows(url))[ALICE] == [(0, "m0"), (1, "m1"), (2, "x"), (3, "y"), (4, "z")]
        await edit_all(store, ALICE, [put(old[2], old[1]), put(old[3], old[1])])
    assert await rows(url) == {
        ALICE: [(0, "m0"), (1, "m1"), (2, "m2"), (3, "m3"), (4, "x"), (5, "y"), (6, "z")],
        AWAY: [(n, f"m{n}") for n in range(4)],
    }


async def test_sql_edit_all_went_and_the_agent_began_anew(url: str) -> None:
    old = [at(n) for n in (5, 7, 8)]
    await fill(url, (ALICE, old))
    async with changing(url) as store:
        await edit_all(store, ALICE, [gone(entry) for entry in old])
        await write(store, [sample(ALICE, new("x", "y"))])
        await edit_all(store, ALICE, [put(entry) for entry in old])
    assert [id for _, id in (await rows(url))[ALICE]] == ["m5", "m7", "m8", "x", "y"]


async def test_sql_edit_rows_behind_make_room(url: str) -> None:
    """By as many as needed, in this session alone, and other users' messages stay in order."""
    await fill(
        url,
        (ALICE, [at(n) for n in (0, 1, 5, 6)]),
        (BOB, [at(n, "b") for n in (2, 3, 7)]),
        (AWAY, [at(n) for n in range(9)]),
    )
    a, b, c, d, e = new("a", "b", "c", "d", "e")
    async with changing(url) as store:
        await edit_all(store, ALICE, [put(a), put(b, at(0)), put(c, at(1)), put(d, at(6)), put(e)])
    found = await rows(url)
    assert [id for _, id in found[ALICE]] == ["a", "e", "m0", "b", "m1", "c", "m5", "m6", "d"]
    indexes = [index for index, _ in found[ALICE]]
    assert len(set(indexes)) == len(indexes)
    together = sorted((index, id) for key in (ALICE, BOB) for index, id in found[key])
    old = [id for _, id in together if id[0] != "m" or id in ("m0", "m1", "m5", "m6")]
    assert [id for id in old if id not in "abcde"] == ["m0", "m1", "b2", "b3", "m5", "m6", "b7"]
    assert found[AWAY] == [(n, f"m{n}") for n in range(9)]


async def test_sql_edit_room_in_many_sessions_at_once(url: str) -> None:
    keys = [MemoryKey(f"u{n % 3}", f"session {n}") for n in range(40)]
    entries = [at(n) for n in range(30)]
    await fill(url, *((key, entries) for key in keys))
    fresh = new(*(f"x{n}" for n in range(30)))
    changes = [put(one, entry) for one, entry in zip(fresh, entries, strict=True)]
    async with changing(url) as store:
        wanted = [one for key in keys[::2] for one in edits(key, changes)]
        results = await edit(store, wanted)
        assert not [tally for tally in results.values() if tally.failure]
    found = await rows(url)
    mixed = [id for pair in zip(entries, fresh, strict=True) for id in (pair[0].id, pair[1].id)]
    for n, key in enumerate(keys):
        ids = [id for _, id in found[key]]
        assert ids == ([entry.id for entry in entries] if n % 2 else mixed)


@pytest.mark.slow
@pytest.mark.parametrize("indexes", [True, False])
async def test_sql_edit_more_than_a_step_is_put_in(url: str, indexes: bool) -> None:
    """Into a large memory, in several steps of one transaction, at one place and at many."""
    entries = [at(n) for n in range(3000)]
    await fill(url, (ALICE, entries), (BOB, [at(n, "b") for n in (7, 4000)]))
    before = await rows(url)
    large = [
        StoredMessage(f"large{n}", samples.message(f"large{n}", content="l" * 9000))
        for n in range(900)
    ]
    changes = [put(one, entries[9]) for one in large]
    changes += [put(one, entries[10 + 3 * n]) for n, one in enumerate(new(*map(str, range(900))))]
    async with changing(url) as store:
        await edit_all(store, ALICE, changes, 300)
    ids = [id for _, id in (await rows(url))[ALICE]]
    expected = [entry.id for entry in entries]
    for change in reversed(changes):
        expected.insert(expected.index(change.after or "") + 1, change.id)
    assert ids == expected
    back = [Change(change.id, change.new) for change in changes]
    async with changing(url) as store:
        await edit_all(store, ALICE, back, 300)
        if indexes:
            await edit_all(store, ALICE, [gone(entry) for entry in entries[100:]])
            await edit_all(store, ALICE, [put(entry, entries[99]) for entry in entries[100:]], 300)
    assert [id for _, id in (await rows(url))[ALICE]] == [id for _, id in before[ALICE]]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[int], list[InsertRun]]:
    numbers = st.integers(0, 30)
    own = sorted(draw(st.sets(numbers)))
    others = sorted(draw(st.lists(numbers, max_size=10)))
    places = sorted(draw(st.sets(st.sampled_from([-1, *own]))))
    wanted = st.lists(st.none() | numbers, min_size=1, max_size=4)
    return own, others, [InsertRun(None if n < 0 else n, None, draw(wanted)) for n in places]


@pytest.mark.slow
@given(layouts())
def test_sql_edit_positions(layout: tuple[list[int], list[int], list[InsertRun]]) -> None:
    """Everything comes where it belongs, and what was there stays in order."""
    own, others, runs = layout
    allocator = PositionAllocator(array("q", own), array("q", others))
    numbers, moves = allocator.insert(runs)

    def moved(index: int) -> int:
        return index + max([(one.low, one.by) for one in moves if one.low <= index] or [(0, 0)])[1]

    assert list(allocator.own) == [moved(index) for index in own]
    assert list(allocator.others) == [moved(index) for index in others]
    expected = [moved(index) for index in own]
    for run, found in zip(reversed(runs), reversed(numbers), strict=True):
        assert len(found) == len(run.wanted)
        start = 0 if run.after is None else own.index(run.after) + 1
        expected[start:start] = found
    assert expected == sorted(set(expected))
    both = sorted(own + others)
    assert [moved(index) for index in both] == sorted(moved(index) for index in both)


# Rows


async def test_sql_edit_rows_of_users_and_sessions_stay(url: str) -> None:
    entries = [at(n) for n in range(3)]
    await fill(url, (ALICE, entries))
    async with changing(url) as store:
        await edit_all(store, ALICE, [gone(entry) for entry in entries])
    assert [await count(url, name) for name in ("users", "session")] == [1, 1]
    assert [await count(url, name) for name in ("message", "message_mark")] == [0, 0]


async def test_sql_edit_rows_of_users_and_sessions_are_made_only_where_something_is_put_in(
    url: str,
) -> None:
    await fill(url, (ALICE, [at(0)]))
    bob, carol = MemoryKey("bob", "b"), MemoryKey("carol", "c")
    async with changing(url) as store:
        wanted = [
            *edits(bob, [put(at(1), at(0))]),
            *edits(carol, [put(at(0))]),
            *edits(MemoryKey("dave", "d"), [gone(at(0))]),
        ]
        results = await edit(store, wanted)
        assert {key.user for key, tally in results.items() if tally.failure} == {"bob", "dave"}
    assert [await count(url, name) for name in ("users", "session")] == [2, 2]
    assert await rows(url) == {ALICE: [(0, "m0")], carol: [(0, "m0")]}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", [10, 5_000_000])
async def test_sql_edit_message_takes_the_place_of_another_with_its_id(
    url: str, size: int, first: bool
) -> None:
    """As a repair does it: one edit, whether the old one goes before or after that.

    Where the new one is large the two are done in different steps.
    """
    entries = [at(n) for n in range(4)]
    await fill(url, (ALICE, entries))
    text = "m" * size
    other = StoredMessage("m2", samples.message("m2", 9, content=text), ("hint", "x"))
    changes = [gone(entries[2]), put(other, entries[1])]
    async with changing(url) as store:
        await edit_all(store, ALICE, changes if first else changes[::-1], 1)
        found = (await read(store))[ALICE].entries
        again = await edit(store, edits(ALICE, [put(other, entries[1]), marked(entries[3])], 1))
        assert_changed(again[ALICE])
    assert [one.id for one in found] == [one.id for one in entries]
    assert json.loads(found[2].message)["content"] == text
    assert found[2].marks == ("hint", "x")


@pytest.mark.slow
async def test_sql_edit_users_who_share_a_session(url: str) -> None:
    """With names of which row ids could be taken apart in several ways."""
    keys = [MemoryKey(user, "s") for user in ("u", "u-s", "v", "", "-s-", "u-s-v")]
    memories = [(key, [at(n, f"{n}-s-")._replace(position=None) for n in range(3)]) for key in keys]
    await fill(url, *memories)
    for key, entries in memories:
        before = await rows(url)
        async with changing(url) as store:
            await edit_all(store, key, [gone(entries[0]), marked(entries[1], "x")])
            after = await rows(url)
            assert after.pop(key) == before.pop(key)[1:]
            assert after == before
            found = await read(store)
            assert [one.marks for one in found[key].entries] == [("x",), ("hint",)]
            assert_changed((await edit(store, edits(key, [gone(entries[0])])))[key])


def same(entries: list[StoredMessage]) -> list[object]:
    """Return what must be the same when a message comes back: all but its position."""
    return [(one.id, json.loads(one.message), one.marks) for one in entries]


async def foreign(url: str) -> None:
    """Write the rows of ``FOREIGN``."""
    whole = json.loads(samples.message("", 1))
    found = [
        (row_id, json.dumps(whole | fields).encode(), "s", number)
        for number, (row_id, fields) in enumerate(FOREIGN.values())
    ]
    async with make_store(parse(url), OpenMode.CREATE) as store:
        database = sql_database(store)
        async with database.connect() as connection, database.transaction(connection):
            await database.insert_missing(connection, "users", ["id"], [("u",)])
            await database.insert_missing(connection, "session", ["id", "user_id"], [("s", "u")])
            await database.insert(
                connection, "message", ["id", "msg", "session_id", "index"], found
            )
            marks = [("u-s-x", "hint"), ("big", "b"), ("big", "a"), ("just-a-name", "hint")]
            await database.insert(connection, "message_mark", ["msg_id", "mark"], marks)


async def listed(store: Store) -> dict[MemoryKey, list[tuple[str, tuple[str, ...]]]]:
    """Return the ids and marks of all messages, without reading their texts."""
    found = await outline(store, Selection(), read=False)
    return {key: [(id, marks) for id, marks, _ in entries] for key, _, entries in found}


@pytest.mark.slow
async def test_sql_edit_row_ids_of_another_form(url: str) -> None:
    """Each can be marked, deleted and restored by the name that reading gives it."""
    await foreign(url)
    async with changing(url) as store:
        before, ids = await read(store), await listed(store)
        for name, (user, id) in NAMES.items():
            with case(name):
                key = MemoryKey(user, "s")
                own = before[key].entries
                place = [entry.id for entry in own].index(id)
                where = Selection(keys=frozenset({key}), ids=frozenset({id}))
                [entry] = (await read(store, where))[key].entries
                again = Change(id, None, (), entry.message, None, None)
                assert_changed((await edit(store, edits(key, [again])))[key])
                stranger = MemoryKey("stranger", "s")
                assert_changed((await edit(store, edits(stranger, [gone(entry)])))[stranger])
                await edit_all(store, key, [marked(entry, "new")])
                await edit_all(store, key, [gone(entry._replace(marks=("new",)))])
                left = [one for one in ids[key] if one[0] != id]
                assert (await listed(store)).get(key, []) == left
                await edit_all(store, key, [put(entry, own[place - 1] if place else None)])
                assert await listed(store) == ids
        after = await read(store)
    assert after.keys() == before.keys()
    for key, memory in before.items():
        assert same(after[key].entries) == same(memory.entries)


async def test_sql_edit_database_that_does_not_tell_case_apart(servers: Servers) -> None:
    url = servers.mariadb.fresh("utf8mb4_general_ci")
    entries = [at(n) for n in range(3)]
    await fill(url, (ALICE, entries))
    before = await rows(url)
    async with changing(url) as store:
        for key in (MemoryKey("Alice", "s"), MemoryKey("alice ", "s"), MemoryKey("alice", "S")):
            assert_changed((await edit(store, edits(key, [gone(entries[0])])))[key])
        for id in ("M0", "m0 ", "ḿ0"):
            assert_changed((await edit(store, edits(ALICE, [Change(id, ("hint",))])))[ALICE])
        assert_changed((await edit(store, edits(ALICE, [Change("m0", ("Hint",))])))[ALICE])
        assert await rows(url) == before
        await edit_all(store, ALICE, [marked(entries[0], "Hint", "b"), gone(entries[1])])
        found = (await read(store))[ALICE].entries
    assert [(entry.id, entry.marks) for entry in found] == [
        ("m0", ("Hint", "b")),
        ("m2", ("hint",)),
    ]


async def test_sql_edit_value_that_is_refused_harms_no_other(servers: Servers) -> None:
    url = servers.postgresql.fresh()
    keys = [MemoryKey("u", f"s{n}") for n in range(5)]
    await fill(url, *((key, [at(0)]) for key in keys))
    bad = StoredMessage("nan", samples.message("nan", metadata={"score": float("nan")}))
    async with changing(url) as store:
        wanted = [
            one
            for n, key in enumerate(keys)
            for one in edits(key, [put(bad if n == 2 else at(1), at(0))])
        ]
        results = await edit(store, wanted)
    codes = [tally.failure and tally.failure.code for tally in (results[key] for key in keys)]
    assert codes == [None, None, "refused", None, None]
    assert [len(one) for one in (await rows(url)).values()] == [2, 2, 1, 2, 2]


async def add_column(url: str, declared: str, sets: str = "") -> None:
    """Add a column to the table of messages, as an application may, and set it."""
    async with make_store(parse(url), OpenMode.CHANGE) as store:
        database = sql_database(store)
        async with database.connect() as connection, database.transaction(connection):
            await connection.exec_driver_sql(f"ALTER TABLE message ADD COLUMN {declared}")
            if sets:
                await connection.exec_driver_sql(f"UPDATE message SET {sets}")


@pytest.mark.slow
def test_edit_refuses_to_delete_values_that_could_not_be_restored(
    url: str, run: Run, tmp_path: Path
) -> None:
    """Columns that AgentScope does not make are neither read nor written by memctl."""
    asyncio.run(fill(url, (ALICE, [at(1), at(2)]), (AWAY, [at(1), at(2)])))
    name = "`a:b 100%%`" if url.startswith("mysql") else '"a:b 100%"'  # as the driver takes it
    declared = f"{name} VARCHAR(20)"
    asyncio.run(add_column(url, declared, f"{name} = 'x' WHERE session_id = 's'"))
    before = asyncio.run(rows(url))
    words = ("--mark", "hint", "--yes")
    refused = run("delete", url, *words)
    fails(refused, 8, "has values in the column 'a:b 100%' of the table 'message'", "--no-backup")
    assert asyncio.run(rows(url)) == before
    source = f"{tmp_path}/new.db"
    asyncio.run(fill(source, *[(key, new("a", "b", "c")) for key in (ALICE, AWAY)]))
    found = report(run("migrate", source, url, "--on-conflict", "replace", "--yes", "--json"), 7)
    [failure] = found["failures"]
    assert (failure["session"], failure["code"]) == ("s", "refused")
    assert "column 'a:b 100%'" in failure["message"]
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert asyncio.run(rows(url)) == before
    assert run("mark", "add", url, "new", "--session", "s").exit_code == 0
    assert run("delete", url, "--session", "another", *words).exit_code == 0
    assert run("delete", url, *words, "--no-backup").exit_code == 0


@pytest.mark.slow
def test_edit_deletes_where_other_columns_have_no_value_of_their_own(url: str, run: Run) -> None:
    asyncio.run(fill(url, (ALICE, [at(1), at(2)])))
    asyncio.run(add_column(url, "extra VARCHAR(20)"))
    kind = "VIRTUAL" if url.startswith("sqlite") else "STORED"
    parent = f"parent VARCHAR(255) GENERATED ALWAYS AS (session_id) {kind}"
    asyncio.run(add_column(url, parent))
    before = asyncio.run(rows(url))
    assert run("delete", url, "--mark", "hint", "--yes").exit_code == 0
    assert not asyncio.run(rows(url)).get(ALICE)
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert asyncio.run(rows(url)) == before
