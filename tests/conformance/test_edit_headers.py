"""What a memory has beside messages: its expiry stays, its summary changes with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memctl.model import Memory, WriteResult
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import assert_same, read, write_all
from tests.conformance.editing import (
    TTL,
    assert_changed,
    assert_holds,
    changing,
    edit,
    edit_all,
    edits,
    filled,
    gone,
    mixture,
    put,
)
from tests.conformance.samples import sample


async def test_expiry_stays(place: Place) -> None:
    keys = place.keys(2)
    before = [sample(key, samples.entries(9), ttl=TTL) for key in keys]
    async with place.store() as store:
        if not store.features.ttl:
            pytest.skip("nothing expires")
        await write_all(store, before)
    one = before[0]
    changes, after = mixture(one.entries, samples.entries(9, start=100))
    async with changing(place) as store:
        tallies = await edit(store, edits(Memory(one.key, ttl=5.0), changes))
        assert not tallies[one.key].failure
        found = await read(store)
    assert_same(store, found[one.key], sample(one.key, after))
    for key in keys:
        assert found[key].memory.ttl == pytest.approx(TTL, abs=600)


async def test_what_has_no_expiry_gets_none(place: Place) -> None:
    [one] = await filled(place, 9)
    async with changing(place) as store:
        if not store.features.ttl:
            pytest.skip("nothing expires")
        memory = Memory(one.key, ttl=5.0)
        tallies = await edit(store, edits(memory, [gone(one.entries[0])]))
        assert not tallies[one.key].failure
        assert (await read(store))[one.key].memory.ttl is None


@pytest.mark.parametrize("count", [9, 3000])
async def test_the_summary_changes_with_the_messages(place: Place, count: int) -> None:
    keys = place.keys(2)
    before = [sample(key, samples.entries(count), summary="what was") for key in keys]
    async with place.store() as store:
        if not store.features.summaries:
            pytest.skip("holds no summaries")
        await write_all(store, before)
    one = before[0]
    changes, after = mixture(one.entries, samples.entries(9, start=10_000))
    later, last = mixture(after, samples.entries(9, start=20_000))
    async with changing(place) as store:
        new = Memory(one.key, "what is 😀\n")
        for wrong in ("", "What was", "what was ", new.summary):
            bad = [replace(each, summary=wrong) for each in edits(new, changes, 700)]
            assert_changed((await edit(store, bad))[one.key])
        good = [replace(each, summary="what was") for each in edits(new, changes, 700)]
        assert not (await edit(store, good))[one.key].failure
        found = await read(store)
        assert found[one.key].memory.summary == new.summary
        assert_same(store, found[one.key], sample(one.key, after))
        assert not (await edit(store, edits(one.key, later, 700)))[one.key].failure
        found = await read(store)
        assert found[one.key].memory.summary == new.summary, "an edit that names none leaves it"
        assert_same(store, found[one.key], sample(one.key, last))
        for key in keys[1:]:
            assert found[key].memory.summary == "what was"


async def test_the_summary_alone(place: Place) -> None:
    [key] = place.keys(1)
    one = sample(key, samples.entries(5), summary="what was")
    async with place.store() as store:
        if not store.features.summaries:
            pytest.skip("holds no summaries")
        await write_all(store, [one])
    async with changing(place) as store:
        for summary in ("what is", ""):
            tallies = await edit(store, edits(Memory(key, summary), []))
            assert tallies == {key: WriteResult(key)}
            assert (await read(store))[key].memory.summary == summary
    await assert_holds(place, [one])


async def test_a_memory_keeps_its_summary_when_its_messages_go(place: Place) -> None:
    keys = place.keys(2)
    before = [sample(key, samples.entries(5), summary="what was") for key in keys]
    async with place.store() as store:
        if not (store.features.summaries and store.features.empty):
            pytest.skip("has no place for it")
        await write_all(store, before)
    one = before[0]
    async with changing(place) as store:
        await edit_all(store, one.key, [gone(entry) for entry in one.entries])
        assert (await read(store))[one.key].memory.summary == "what was"
        await edit_all(store, one.key, [put(entry) for entry in one.entries])
        assert (await read(store))[one.key].memory.summary == "what was"
    await assert_holds(place, before)


async def test_a_summary_that_the_store_cannot_hold_is_ignored(place: Place) -> None:
    [one] = await filled(place, 5)
    async with changing(place) as store:
        if store.features.summaries:
            pytest.skip("holds summaries")
        changes = edits(Memory(one.key, "new"), [gone(one.entries[0])])
        tallies = await edit(store, [replace(each, summary="old") for each in changes])
        assert tallies == {one.key: WriteResult(one.key, deleted=1)}
    await assert_holds(place, [sample(one.key, one.entries[1:])])
