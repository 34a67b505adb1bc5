"""What is otherwise than the edit says: the memory stays as it was."""

from __future__ import annotations

import asyncio

import pytest

from memctl.model import Change, StoredMessage
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import write
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
    mixture,
    put,
)
from tests.conformance.samples import sample


def faults(entries: list[StoredMessage]) -> dict[str, Change]:
    """Changes that cannot be, in a memory with these messages."""
    plain = next(entry for entry in entries if not entry.marks)
    one = next(entry for entry in entries if len(entry.marks) == 1)
    new = samples.entry("new", 7)
    return {
        "gone": Change("m9999999", ()),
        "gone, to be marked": Change("m9999999", (), ("x",)),
        "marked otherwise": Change(one.id, ("other",)),
        "marked meanwhile": Change(plain.id, ("hint",)),
        "no longer marked": Change(one.id, ()),
        "one mark more": Change(one.id, (*one.marks, "other")),
        "one mark less": Change(entries[1].id, entries[1].marks[:1]),
        "a mark in other letters": Change(one.id, tuple(mark.upper() for mark in one.marks)),
        "an id in other letters": Change(plain.id.upper(), ()),
        "marked otherwise, to be marked": Change(one.id, ("other",), ("x",)),
        "there already": put(plain),
        "no place for it": put(new, samples.entry("m9999999")),
    }


@pytest.mark.parametrize("size", [1000, 2])
@pytest.mark.parametrize("fault", list(faults(samples.entries(12))))
async def test_a_memory_that_is_otherwise_stays(place: Place, fault: str, size: int) -> None:
    one, *others = await filled(place, 12, 5)
    bad = faults(one.entries)[fault]
    fine, _ = mixture(one.entries[6:], samples.entries(9, start=100))
    async with changing(place) as store:
        assert_changed((await edit(store, edits(one.key, [bad, *fine], size)))[one.key])
        assert_changed((await edit(store, edits(one.key, [*fine, bad], size)))[one.key])
    await assert_holds(place, [one, *others])


@pytest.mark.parametrize("fault", ["gone", "marked otherwise", "there already", "no place for it"])
@pytest.mark.parametrize("first", [True, False])
async def test_a_large_memory_that_is_otherwise_stays(
    place: Place, fault: str, first: bool
) -> None:
    """The fault stands in the first of many edits, or in the last."""
    one, *others = await filled(place, 5000, 5)
    bad = faults(one.entries)[fault]
    fine, _ = mixture(one.entries[12:-12], samples.entries(1000, start=10_000))
    changes = [bad, *fine] if first else [*fine, bad]
    async with changing(place) as store:
        assert_changed((await edit(store, edits(one.key, changes, 700)))[one.key])
    await assert_holds(place, [one, *others])


@pytest.mark.parametrize("count", [1, 1500])
async def test_a_memory_that_does_not_exist(many_place: Place, count: int) -> None:
    [one] = await filled(many_place, 3)
    missing = many_place.keys(2)[1]
    entries = samples.entries(count)
    other = samples.entry("new")
    async with changing(many_place) as store:
        for changes in (
            [gone(entry) for entry in entries],
            [marked(entry, "x") for entry in entries],
            [put(other, entries[0])],
        ):
            assert_changed((await edit(store, edits(missing, changes)))[missing])
    await assert_holds(many_place, [one])


async def test_what_was_done_cannot_be_done_again(place: Place) -> None:
    [one] = await filled(place, 12)
    changes, after = mixture(one.entries, samples.entries(9, start=100))
    async with changing(place) as store:
        await edit_all(store, one.key, changes)
        assert_changed((await edit(store, edits(one.key, changes)))[one.key])
    await assert_holds(place, [sample(one.key, after)])


async def test_what_others_added_stays(place: Place) -> None:
    """The edit was planned before an agent went on."""
    [one] = await filled(place, 12)
    changes, after = mixture(one.entries, samples.entries(9, start=100))
    more = samples.entries(1200, start=2000)
    async with place.store() as store:
        await write(store, [sample(one.key, more)], offset=12)
    async with changing(place) as store:
        await edit_all(store, one.key, changes)
    await assert_holds(place, [sample(one.key, [*after, *more])])


async def test_two_edits_of_one_memory_at_once(place: Place) -> None:
    """One is done, the other finds what it did."""
    [one] = await filled(place, 3000)
    changes = [gone(entry) for entry in one.entries[::2]]
    async with changing(place) as store, changing(place) as other:
        if not store.features.parallel:
            pytest.skip("is written by one at a time")
        ended = await asyncio.gather(
            edit(store, edits(one.key, changes)), edit(other, edits(one.key, changes))
        )
    failed = [found[one.key] for found in ended if found[one.key].failure]
    assert len(failed) == 1
    assert_changed(failed[0])
    await assert_holds(place, [sample(one.key, one.entries[1::2])])
