"""Tests that a store selects the same messages as ``Selection.apply``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from memctl.model import MemoryKey, StoredMessage
from memctl.ops.select import select_with_anchors
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import LARGE, Place
from memctl.testing.drive import assert_same, case, infos, picked, read, write_all
from memctl.testing.samples import Sample, sample


def names(*found: str) -> frozenset[str]:
    return frozenset(found)


def at(minutes: float) -> datetime:
    return samples.BEGIN + timedelta(minutes=minutes)


KEYS = frozenset({samples.key(0), samples.key(4), MemoryKey("nobody", "nothing")})


SELECTIONS = {
    "users": Selection(users=names("user0", "nobody")),
    "nobody": Selection(users=names("nobody")),
    "sessions": Selection(sessions=names("session0", "session4")),
    "user and session": Selection(users=names("user1"), sessions=names("session0", "session4")),
    "keys": Selection(keys=KEYS),
    "keys and a session": Selection(keys=KEYS, sessions=names("session0")),
    "no keys": Selection(keys=frozenset()),
    "a mark": Selection(marks=names("hint")),
    "marks": Selection(marks=names("hint", "a", "unknown")),
    "a mark with case": Selection(marks=names("HINT")),
    "an excluded mark": Selection(exclude_marks=names("compressed")),
    "excluded marks": Selection(exclude_marks=names("hint", "a", "unknown")),
    "a mark and an excluded": Selection(marks=names("hint"), exclude_marks=names("a")),
    "ids": Selection(ids=names("m0000001", "m0001101", "odd:*?[x]", "nothing")),
    "ids of a user": Selection(users=names("user0"), ids=names("m0000001")),
    "many ids": Selection(ids=frozenset(f"m{n:07}" for n in range(3000) if n % 9)),
    "roles": Selection(roles=names("user", "system")),
    "a role with case": Selection(roles=names("User")),
    "names": Selection(names=names("Friday", "会话 😀")),
    "since": Selection(since=at(1000)),
    "until": Selection(until=at(3)),
    "period": Selection(since=at(2), until=at(900.5)),
    "match": Selection(match="message 11"),
    "match with case": Selection(match="Message 1"),
    "match of wildcards": Selection(match="%"),
    "match beyond ASCII": Selection(match="会话 😀"),
    "match of a backslash": Selection(match="\\n"),
    "match in blocks": Selection(match="needle"),
    "match of nothing": Selection(match=""),
    "last": Selection(last=1),
    "last beyond a page": Selection(last=1050),
    "last of a role": Selection(last=700, roles=names("user", "assistant")),
    "last marked": Selection(last=2, marks=names("hint"), users=names("user0")),
    "everything at once": Selection(
        users=names("user0"),
        sessions=names("session0", "session1"),
        marks=names("hint", "a"),
        exclude_marks=names("compressed"),
        roles=names("assistant"),
        names=names("Friday"),
        since=at(1),
        until=at(2000),
        match="message",
        last=20,
    ),
}


def odd() -> list[StoredMessage]:
    """Return messages with unusual ids, names, roles, times and contents."""
    return [
        samples.entry("odd:*?[x]", 1, ("hint", "HINT"), name="会话 😀", content="会话 😀 100%\\n"),
        samples.entry("blocks", 2, content=[{"type": "text", "text": "a needle"}]),
        samples.entry(
            "result",
            3,
            content=[{"type": "tool_result", "output": [{"type": "text", "text": "a needle"}]}],
        ),
        samples.entry("input", 4, content=[{"type": "tool_use", "input": {"text": "a needle"}}]),
        samples.entry("no role", 5, role=None, name=None, timestamp=None, content=None),
        samples.entry("not a text", 5, role=7, name=["Friday"], timestamp=1740830400, content=7),
        samples.entry("bad time", 6, timestamp="yesterday"),
        samples.entry("other time", 7, timestamp="2025-03-02T08:00:00+09:00"),
        samples.entry("day", 8, timestamp="2025-03-02"),
    ]


SMALL_STEP = 55
PAGED = (
    *("keys", "marks", "excluded marks", "many ids", "roles", "period", "match"),
    *("last beyond a page", "last of a role", "everything at once"),
)
"""The selections of a memory of several pages: each kind of condition once."""


def memories(place: Place, step: int) -> list[Sample]:
    """Return a memory that ends with the messages of ``odd``, and small memories.

    The first memory has every ``step``-th of the sample messages: each selection divides them.
    """
    keys = place.keys(6)
    found = [sample(keys[0], [*samples.entries(2345)[1::step], *odd()])]
    found += [sample(key, samples.entries(5, start=n)) for n, key in enumerate(keys[1:])]
    return found


async def fill(place: Place, step: int) -> list[Sample]:
    """Write the memories of ``memories`` to a store, and return all of its memories as read.

    An empty memory is added if the store can hold empty memories.
    """
    async with place.store() as store:
        await write_all(store, memories(place, step))
        if store.features.empty and not place.backend.only:
            await write_all(store, [sample(place.keys(8)[7])])
        return list((await read(store)).values())


def needles(texts: Sequence[bytes]) -> list[int]:
    """Return the indexes of the texts that contain ``needle``."""
    return [place for place, text in enumerate(texts) if b"needle" in text]


async def assert_anchors(store: Store, where: Selection, everything: list[Sample]) -> None:
    """Assert that the anchor of each selected message is the last unselected message before."""
    expected = await picked(everything, where)
    before: dict[MemoryKey, dict[str, str | None]] = {}
    for one in everything:
        own = {entry.id for entry in expected[one.key].entries} if one.key in expected else set()
        kept = None
        for entry in one.entries:
            before.setdefault(one.key, {})[entry.id] = kept
            kept = kept if entry.id in own else entry.id
    found: dict[MemoryKey, list[tuple[StoredMessage, str | None]]] = {}
    for page in [page async for page in select_with_anchors(store, where)]:
        assert page.anchors is not None
        found.setdefault(page.memory.key, []).extend(zip(page.messages, page.anchors, strict=True))
    assert set(found) == set(expected)
    for key, one in expected.items():
        assert_same(store, sample(key, [entry for entry, _ in found[key]]), one)
        assert [after for _, after in found[key]] == [before[key][e.id] for e in one.entries]


async def assert_selects(store: Store, where: Selection, everything: list[Sample]) -> None:
    """Assert that the store reads and lists what ``Selection.apply`` selects from its memories."""
    expected = await picked(everything, where)
    found = await read(store, where)
    assert set(found) == set(expected)
    for key, one in expected.items():
        assert_same(store, found[key], one)
    assert set(await infos(store, where)) == set(expected)
    assert {memory.key async for memory in store.headers(where)} == set(expected)
    if not where.whole:
        await assert_anchors(store, where, everything)


class SelectionTests:
    """Tests that a store selects the same messages as ``Selection.apply``."""

    async def test_selection_by_the_store(self, place: Place) -> None:
        everything = await fill(place, SMALL_STEP)
        async with place.store(create=False) as store:
            for name, where in SELECTIONS.items():
                with case(name):
                    await assert_selects(store, where, everything)

    async def test_selection_of_several_pages(self, place: Place) -> None:
        everything = await fill(place, 2 * LARGE // place.backend.large)
        async with place.store(create=False) as store:
            for name in PAGED:
                with case(name):
                    await assert_selects(store, SELECTIONS[name], everything)

    async def test_find_messages_by_their_text(self, place: Place) -> None:
        everything = await fill(place, SMALL_STEP)
        keys = frozenset(list({one.key: None for one in everything})[::2])
        async with place.store(create=False) as store:
            for where in (Selection(), Selection(keys=keys)):
                expected = [
                    (one.key, json.loads(entry.message))
                    for one in everything
                    for entry in one.entries
                    if b"needle" in entry.message and where.has_key(one.key)
                ]
                found = [
                    (key, json.loads(entry.message))
                    async for key, entry in store.find_messages(where, needles)
                ]
                assert len(found) == len(expected) == 3
                assert all(one in found for one in expected)
