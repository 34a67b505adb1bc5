"""Outlines tell of memories what reading tells, but for the messages: ids, order and marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.sql.database import SqlDatabase
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import write
from tests.conformance.samples import Sample, sample
from tests.conftest import Servers

Outline = list[tuple[MemoryKey, str | None, list[tuple[str, tuple[str, ...], int | None]]]]


async def outline(store: Store, where: Selection, *, read: bool) -> Outline:
    """Memories in the order in which they come, each page in its place."""
    found: Outline = []
    pages = store.read(where) if read else store.outline(where)
    last = True
    for page in [page async for page in pages]:
        if last:
            assert page.offset == 0
            found.append((page.memory.key, page.memory.summary, []))
        key, _, entries = found[-1]
        assert page.memory.key == key
        assert page.offset == len(entries)
        entries += [(entry.id, entry.marks, entry.position) for entry in page.messages]
        last = page.last
    assert last
    return found


def memories(place: Place) -> list[Sample]:
    """A memory of several pages, memories with every name, and users who share a session."""
    keys = place.keys(3)
    found = [sample(keys[0], samples.entries(2345))]
    found += [sample(key, samples.entries(3, start=n)) for n, key in enumerate(keys[1:])]
    if place.backend.only:
        return found
    for name in samples.NAMES:
        named = [StoredMessage(other, samples.message(other), (name,)) for other in samples.NAMES]
        found.append(sample(MemoryKey(name, f"of {name}"), named))
        found.append(sample(MemoryKey(f"user of {name}", name), named[:3]))
    for user in ("a", "b", "a-shared", "", "-"):
        found.append(sample(MemoryKey(user, "shared"), samples.entries(5)))
    # Row ids that can be taken apart in several ways.
    found.append(sample(MemoryKey("u", "s"), [samples.entry(id, 1) for id in ("s-m", "u-s-m")]))
    found.append(sample(MemoryKey("u-s", "s"), [samples.entry("k", 1)]))
    found.append(sample(MemoryKey("-", "-"), [samples.entry("---", 1), samples.entry("", 2)]))
    return found


async def test_outlines_are_what_is_read(make_place: Callable[[], Place]) -> None:
    place = make_place()
    async with place.store() as store:
        written = memories(place)
        tallies = await write(store, written)
        assert place.backend.picky or not any(one.failure for one in tallies.values())
        if store.features.empty and not place.backend.only:
            await write(store, [sample(samples.key(7))])
        good = [memory.key for memory in written if not tallies[memory.key].failure]
        chosen = frozenset([*good[::2], MemoryKey("nobody", "nothing")])
        for where in (
            Selection(),
            Selection(keys=chosen),
            Selection(users=frozenset({good[0].user, "a"})),
            Selection(sessions=frozenset({good[0].session, "shared"})),
        ):
            found = await outline(store, where, read=False)
            assert found == await outline(store, where, read=True)
            assert found


FOREIGN = {
    "another message id": ("u-s-x", {"id": "y"}),
    "no message id": ("u-s-None", {"id": None}),
    "no user": ("just-a-name", {"id": "z"}),
    "another user": ("v-s-x", {"id": "x"}),
    "another user and message id": ("v-s-x2", {"id": "y2"}),
    "two ways, the first": ("u-s-a-s-b", {"id": "a-s-b"}),
    "two ways, the second": ("u-s-a-s-c", {"id": "c"}),
    "two ways, neither": ("u-s-a-s-d", {"id": "e"}),
    "huge": ("big", {"id": "h", "content": "x" * 9_000_000}),
}
"""Row ids that are not of memctl's making, with the fields of their messages."""

NAMES = {
    "another message id": ("u", "x"),
    "no message id": ("u", "None"),
    "no user": ("u", "z"),
    "another user": ("v", "x"),
    "another user and message id": ("u", "y2"),
    "two ways, the first": ("u", "a-s-b"),
    "two ways, the second": ("u-s-a", "c"),
    "two ways, neither": ("u", "a-s-d"),
    "huge": ("u", "h"),
}
"""What user and message each is taken for."""


PLACES = {
    "sqlite": lambda folder, _: f"sqlite:///{folder}/m.db",
    "postgresql": lambda _, servers: servers.postgresql.fresh(),
    "mysql": lambda _, servers: servers.mariadb.fresh(),
}


@pytest.mark.parametrize("kind", PLACES)
async def test_row_ids_of_another_form(kind: str, tmp_path: Path, servers: Servers) -> None:
    whole = json.loads(samples.message("", 1))
    rows = [
        (row_id, json.dumps(whole | fields).encode(), "s", number)
        for number, (row_id, fields) in enumerate(FOREIGN.values())
    ]
    async with make_store(parse(PLACES[kind](tmp_path, servers)), OpenMode.CREATE) as store:
        assert isinstance(store, SqlDatabase)
        async with store.connected() as connection, store.transaction(connection):
            await store.insert_missing(connection, "users", ["id"], [("u",)])
            await store.insert_missing(connection, "session", ["id", "user_id"], [("s", "u")])
            columns = ["id", "msg", "session_id", "index"]
            await store.insert(connection, "message", columns, rows)
            marks = [("u-s-x", "hint"), ("big", "b"), ("big", "a")]
            await store.insert(connection, "message_mark", ["msg_id", "mark"], marks)
        found = await outline(store, Selection(), read=True)
        assert found == await outline(store, Selection(), read=False)
        names = {(key.user, id): index for key, _, entries in found for id, _, index in entries}
        assert names == {name: number for number, name in enumerate(NAMES.values())}
        for name in {user for user, _ in NAMES.values()}:
            where = Selection(users=frozenset({name}))
            own = [memory for memory in found if memory[0].user == name]
            assert await outline(store, where, read=True) == own
            assert await outline(store, where, read=False) == own
        for user, id in NAMES.values():
            where = Selection(users=frozenset({user}), ids=frozenset({id}))
            for pages in (store.read(where), store.read_with_anchors(where)):
                [page] = [page async for page in pages]
                assert [(page.memory.key.user, entry.id) for entry in page.messages] == [(user, id)]
                assert b"timestamp" in page.messages[0].message


async def test_a_store_says_whether_it_is_empty(make_place: Callable[[], Place]) -> None:
    place = make_place()
    async with place.store(create=True) as store:
        assert await store.is_empty()
        await write(store, [sample(place.keys(1)[0], samples.entries(3))])
        assert not await store.is_empty()
