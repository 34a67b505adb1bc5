"""Changes of memories that are there: each memory as the edit says, or as it was."""

from __future__ import annotations

import pytest

from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage, WriteResult
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import read, write, write_all
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
    marked,
    mixture,
    put,
    with_marks,
)
from tests.conformance.samples import Sample, sample

GOING = {
    "the first": [0],
    "the last": [11],
    "both ends": [0, 1, 10, 11],
    "one in the middle": [5],
    "every third": [1, 4, 7, 10],
    "all but one": [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11],
    "all": list(range(12)),
}


@pytest.mark.parametrize("name", GOING)
async def test_messages_go(place: Place, name: str) -> None:
    one, *others = await filled(place, 12, 5, 5)
    changes = [gone(one.entries[n]) for n in GOING[name]]
    async with changing(place) as store:
        await edit_all(store, one.key, changes)
    left = [entry for n, entry in enumerate(one.entries) if n not in GOING[name]]
    await assert_holds(place, [sample(one.key, left), *others])


async def test_agents_go_on_behind_what_is_left(place: Place) -> None:
    """What is written next comes last, whatever went before."""
    [one] = await filled(place, 6)
    async with changing(place) as store:
        await edit_all(store, one.key, [gone(one.entries[0]), gone(one.entries[5])])
        more = samples.entries(3, start=50)
        await write(store, [sample(one.key, more)], offset=4)
    await assert_holds(place, [sample(one.key, [*one.entries[1:5], *more])])


# Marks


async def test_marks_change(place: Place) -> None:
    one, *others = await filled(place, 12, 5)
    wanted = {
        0: ("hint",),  # added
        1: (),  # all removed
        4: ("compressed",),  # one removed
        5: ("compressed", "new one"),  # others
        7: ("compressed", "a", "hint", "and one more"),  # added
        9: (),
        11: ("*", "%", "[a]"),
    }
    changes = [marked(one.entries[n], *marks) for n, marks in wanted.items()]
    async with changing(place) as store:
        await edit_all(store, one.key, changes)
    after = [with_marks(entry, *wanted.get(n, entry.marks)) for n, entry in enumerate(one.entries)]
    await assert_holds(place, [sample(one.key, after), *others])


async def test_the_order_of_the_old_marks_does_not_count(place: Place) -> None:
    [one] = await filled(place, 8)
    entry = one.entries[1]
    assert len(entry.marks) > 1
    backwards = tuple(reversed(entry.marks))
    async with changing(place) as store:
        await edit_all(store, one.key, [Change(entry.id, backwards, ("x",))])
    one.entries[1] = with_marks(entry, "x")
    await assert_holds(place, [one])


async def test_marks_that_stay_the_same(place: Place) -> None:
    """It makes sure of the marks, and changes nothing."""
    [one] = await filled(place, 8)
    async with changing(place) as store:
        await edit_all(store, one.key, [marked(entry, *entry.marks) for entry in one.entries])
    await assert_holds(place, [one])


# Messages that are put in


PLACES: dict[str, list[int | None]] = {
    "at the beginning": [None],
    "in the middle": [3],
    "at the end": [5],
    "several at the beginning": [None, None, None],
    "several in the middle": [2, 2, 2],
    "several at the end": [5, 5, 5, 5],
    "everywhere": [None, None, 0, 1, 1, 1, 4, 5, 5],
}


def inserted(
    entries: list[StoredMessage], new: list[StoredMessage], places: list[int | None]
) -> list[StoredMessage]:
    """The messages with the new ones, each behind the one with the number of its place."""
    found = list(entries)
    for entry, behind in reversed(list(zip(new, places, strict=True))):
        found.insert(0 if behind is None else behind + 1, entry)
    return found


@pytest.mark.parametrize("name", PLACES)
async def test_messages_are_put_in(place: Place, name: str) -> None:
    one, *others = await filled(place, 6, 5)
    places = PLACES[name]
    new = samples.entries(len(places), start=100)
    changes = [
        put(entry, None if behind is None else one.entries[behind])
        for entry, behind in zip(new, places, strict=True)
    ]
    async with changing(place) as store:
        await edit_all(store, one.key, changes)
    await assert_holds(place, [sample(one.key, inserted(one.entries, new, places)), *others])


@pytest.mark.parametrize("indexes", [True, False])
@pytest.mark.parametrize("grown", [0, 4])
@pytest.mark.parametrize("name", GOING)
async def test_what_went_comes_back(place: Place, name: str, grown: int, indexes: bool) -> None:
    """As an undo does it, while an agent may have written more."""
    one, *others = await filled(place, 12, 5)
    going = GOING[name]
    async with changing(place) as store:
        before = (await read(store))[one.key].entries
        await edit_all(store, one.key, [gone(one.entries[n]) for n in going])
        more = samples.entries(grown, start=50)
        if more:
            await write(store, [sample(one.key, more)], offset=12 - len(going))
        kept: StoredMessage | None = None
        back = []
        for n, entry in enumerate(before):
            if n in going:
                back.append(put(entry if indexes else entry._replace(position=None), kept))
            else:
                kept = entry
        await edit_all(store, one.key, back)
    await assert_holds(place, [sample(one.key, [*one.entries, *more]), *others])


async def test_hard_messages_come_back(place: Place) -> None:
    [key] = place.keys(1)
    hard = list(samples.nasty_entries(skip=place.backend.refuses))
    async with place.store() as store:
        await write_all(store, [sample(key, hard)])
    async with changing(place) as store:
        await edit_all(store, key, [gone(entry) for entry in hard[1:]])
        await edit_all(store, key, [put(entry, hard[0]) for entry in hard[1:]])
    await assert_holds(place, [sample(key, hard)])


async def test_a_large_message_is_put_in(place: Place) -> None:
    one, *_ = await filled(place, 4)
    large = samples.entry("large", 5, ("hint",), content="l" * 20_000_000)
    async with changing(place) as store:
        await edit_all(store, one.key, [put(large, one.entries[1])])
    one.entries.insert(2, large)
    await assert_holds(place, [one])


async def test_a_memory_is_made_anew(many_place: Place) -> None:
    """Its messages went, and it with them: it comes back as it was, with what it had."""
    [one] = await filled(many_place, 3)
    key = many_place.keys(2)[1]
    new = samples.entries(5, start=9)
    async with changing(many_place) as store:
        memory = Memory(
            key,
            "what was" if store.features.summaries else None,
            TTL if store.features.ttl else None,
        )
        tallies = await edit(store, edits(memory, [put(entry) for entry in new]))
        assert tallies == {key: WriteResult(key, written=5)}
        about = (await read(store))[key].memory
        if memory.summary is not None:
            assert about.summary == memory.summary
        if memory.ttl is not None:
            assert about.ttl == pytest.approx(TTL, abs=600)
    await assert_holds(many_place, [one, sample(key, new)])


# All at once


@pytest.mark.parametrize(("count", "size"), [(23, 1000), (23, 1), (5000, 1000), (5000, 170)])
async def test_a_mixture_of_changes(place: Place, count: int, size: int) -> None:
    """The large one comes in many edits."""
    one, *others = await filled(place, count, 5, 5)
    changes, after = mixture(one.entries, samples.entries(count // 5, start=10_000))
    assert len(changes) >= count // 5 * 3 - 3
    async with changing(place) as store:
        await edit_all(store, one.key, changes, size)
    await assert_holds(place, [sample(one.key, after), *others])


async def test_many_memories(many_place: Place) -> None:
    """Small ones and a large one; those that fail harm no other."""
    before = await filled(many_place, *([7] * 40), 2500, *([7] * 40))
    wanted: list[Edit] = []
    expected: list[Sample] = []
    failing: set[MemoryKey] = set()
    for n, one in enumerate(before):
        changes, after = mixture(one.entries, samples.entries(500, start=10_000))
        if n % 9 == 4:
            changes.append(Change("m9999999", ()))
            failing.add(one.key)
            after = one.entries
        wanted += edits(one.key, changes, 3 if n % 2 else 600)
        expected.append(sample(one.key, after))
    async with changing(many_place) as store:
        tallies = await edit(store, wanted)
    assert {key for key, tally in tallies.items() if tally.failure} == failing
    for key in failing:
        assert_changed(tallies[key])
    await assert_holds(many_place, expected)
