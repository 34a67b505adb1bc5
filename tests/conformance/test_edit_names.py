"""Edits go by names, and by nothing that looks like them."""

from __future__ import annotations

import pytest

from memctl.model import Change, Edit, MemoryKey, StoredMessage
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import write, write_all
from tests.conformance.editing import (
    assert_changed,
    assert_holds,
    changing,
    edit,
    edit_all,
    edits,
    filled,
    gone,
    marked,
    put,
    with_marks,
)
from tests.conformance.samples import Sample, sample


def named(place: Place) -> list[Sample]:
    """Memories and messages of every name, users who share a session, and similar names."""
    [key] = place.keys(1)
    messages = [
        StoredMessage(name, samples.message(name), (name, "hint") if n % 2 else (name,))
        for n, name in enumerate(samples.NAMES)
    ]
    found = [sample(key, messages)]
    if place.backend.only:
        return found
    for name in samples.NAMES:
        found.append(sample(MemoryKey(name, f"of {name}"), messages))
        found.append(sample(MemoryKey(f"user of {name}", name), messages[:5]))
    sharing = ("a", "b", "A", "a ", "a-shared", "", "-", "*", "%", "_", "[a]")
    found += [sample(MemoryKey(user, "shared"), samples.entries(5)) for user in sharing]
    # Row ids that can be taken apart in several ways.
    found.append(sample(MemoryKey("u", "s"), [samples.entry(id, 1) for id in ("s-m", "u-s-m")]))
    found.append(sample(MemoryKey("u-s", "s"), [samples.entry("k", 1)]))
    found.append(sample(MemoryKey("-", "-"), [samples.entry("---", 1), samples.entry("", 2)]))
    return found


async def test_names_are_names(place: Place) -> None:
    """Of every other memory some messages go and others are marked; the rest is left alone."""
    memories = named(place)
    async with place.store() as store:
        tallies = await write(store, memories)
        assert place.backend.picky or not any(tally.failure for tally in tallies.values())
    memories = [one for one in memories if not tallies[one.key].failure]
    expected = []
    wanted: list[Edit] = []
    for n, one in enumerate(memories):
        if n % 2:
            expected.append(one)
            continue
        wanted += edits(
            one.key,
            [
                gone(entry) if i % 3 == 0 else marked(entry, "*", *entry.marks)
                for i, entry in enumerate(one.entries)
                if i % 3 < 2
            ],
        )
        left = [
            with_marks(entry, "*", *entry.marks) if i % 3 == 1 else entry
            for i, entry in enumerate(one.entries)
            if i % 3
        ]
        expected.append(sample(one.key, left))
    keys = [one.key for one in memories]
    async with changing(place, keys) as store:
        done = await edit(store, wanted)
        assert [tally for tally in done.values() if tally.failure] == []
        store.resolve_names(keys)
    await assert_holds(place, expected)


async def test_a_name_that_matches_others_is_none_of_them(many_place: Place) -> None:
    """``*`` is no pattern: nobody is called so."""
    before = await filled(many_place, 5, 5)
    async with changing(many_place) as store:
        for name in ("*", "%", "_", "user?", "[a-z]*", "USER0"):
            for key in (MemoryKey(name, "session0"), MemoryKey("user0", name)):
                tallies = await edit(store, edits(key, [gone(before[0].entries[0])]))
                assert_changed(tallies[key])
        key = before[0].key
        for pattern in ("*", "m*", "m%", "%", "m000000?", "m000000_"):
            assert_changed((await edit(store, edits(key, [Change(pattern, ())])))[key])
    await assert_holds(many_place, before)


async def test_messages_of_other_users_of_the_session_stay(many_place: Place) -> None:
    """The same ids, in the same session: each user has their own."""
    users = ("a", "b", "a-b", "c")
    memories = [sample(MemoryKey(user, "shared"), samples.entries(6)) for user in users]
    async with many_place.store() as store:
        await write_all(store, memories)
    one = memories[1]
    async with changing(many_place, [one.key for one in memories]) as store:
        await edit_all(store, one.key, [gone(entry) for entry in one.entries])
        new = samples.entries(3, start=3)
        await edit_all(store, one.key, [put(entry) for entry in new])
        third = memories[2]
        await edit_all(store, third.key, [marked(entry, "x") for entry in third.entries])
    memories[1] = sample(one.key, new)
    memories[2] = sample(third.key, [with_marks(entry, "x") for entry in third.entries])
    await assert_holds(many_place, memories)


async def test_a_part_that_the_store_cannot_have(many_place: Place) -> None:
    before = await filled(many_place, 3)
    key = before[0].key._replace(part="agent.memory")
    async with changing(many_place) as store:
        if store.features.parts:
            pytest.skip("holds parts")
        tally = (await edit(store, edits(key, [gone(before[0].entries[0])])))[key]
        assert tally.failure is not None
        assert tally.failure.code in ("bad-name", "changed")
    await assert_holds(many_place, before)
