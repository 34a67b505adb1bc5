"""Tests that an edit changes each memory completely or not at all."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage, WriteResult
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    TTL,
    assert_changed,
    assert_holds,
    assert_same,
    case,
    changing,
    edit,
    edit_all,
    edits,
    filled,
    gone,
    marked,
    memories_of_hard_names,
    mixture,
    put,
    read,
    with_marks,
    write,
    write_all,
    write_into,
)
from memctl.testing.samples import Sample, sample

GOING = {
    "the first": [0],
    "the last": [11],
    "both ends": [0, 1, 10, 11],
    "one in the middle": [5],
    "every third": [1, 4, 7, 10],
    "all but one": [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11],
    "all": list(range(12)),
}


# Inserted messages


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
    """Return ``entries`` with the new messages inserted.

    ``places`` has, for each new message, the index of the message to insert it after; None inserts
    it first.
    """
    found = list(entries)
    for entry, behind in reversed(list(zip(new, places, strict=True))):
        found.insert(0 if behind is None else behind + 1, entry)
    return found


def faults(entries: list[StoredMessage]) -> dict[str, Change]:
    """Return changes that a memory with these messages must refuse, by a name for the fault."""
    plain = next(entry for entry in entries if not entry.marks)
    one = next((entry for entry in entries if len(entry.marks) == 1), plain)
    new = samples.entry("new", 7)
    found = {
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
    if len(entries[1].marks) < 2:
        del found["one mark less"]
    if not one.marks:
        del found["no longer marked"], found["a mark in other letters"]
    return found


def twins() -> list[StoredMessage]:
    """Return messages of which some have the same id, with equal or different marks."""
    return [
        samples.entry("a", 0),
        samples.entry("twin", 1, ("hint",)),
        samples.entry("b", 2),
        samples.entry("twin", 3),
        samples.entry("twin", 4, ("hint",)),
        samples.entry("c", 5),
        samples.entry("twin", 6, ("hint",)),
    ]


TWINS: dict[str, tuple[list[Change], list[int]]] = {
    "the first with these marks": ([Change("twin", ("hint",))], [0, 2, 3, 4, 5, 6]),
    "the first without": ([Change("twin", ())], [0, 1, 2, 4, 5, 6]),
    "two with these marks": ([Change("twin", ("hint",))] * 2, [0, 2, 3, 5, 6]),
    "all in order": (
        [Change("twin", ("hint",)), Change("twin", ()), *[Change("twin", ("hint",))] * 2],
        [0, 2, 5],
    ),
    "the next behind another": ([Change("twin", ()), Change("c", ())], [0, 1, 2, 4, 6]),
}


class EditTests:
    """Tests that an edit changes each memory completely or not at all."""

    # Marks

    async def test_edit_changes_marks(self, place: Place) -> None:
        one, *others = await filled(place, 12, 5)
        wanted = {
            0: ("hint",),  # added
            1: (),  # all removed
            4: ("compressed",),  # replaced
            5: ("compressed", "new one"),  # added
            7: ("compressed", "a", "hint", "and one more"),  # added
            9: (),
            11: ("*", "%", "[a]"),
        }
        changes = [marked(one.entries[n], *marks) for n, marks in wanted.items()]
        async with changing(place) as store:
            await edit_all(store, one.key, changes)
        after = [
            with_marks(entry, *wanted.get(n, entry.marks)) for n, entry in enumerate(one.entries)
        ]
        await assert_holds(place, [sample(one.key, after), *others])

    async def test_edit_ignores_the_order_of_the_old_marks(self, place: Place) -> None:
        [one] = await filled(place, 8)
        entry = one.entries[1]
        if len(entry.marks) < 2:
            pytest.skip("a message has one mark at most")
        backwards = tuple(reversed(entry.marks))
        async with changing(place) as store:
            await edit_all(store, one.key, [Change(entry.id, backwards, ("x",))])
        one.entries[1] = with_marks(entry, "x")
        await assert_holds(place, [one])

    async def test_edit_with_marks_that_stay_the_same(self, place: Place) -> None:
        """An edit from marks to the same marks succeeds, and changes nothing."""
        [one] = await filled(place, 8)
        async with changing(place) as store:
            await edit_all(store, one.key, [marked(entry, *entry.marks) for entry in one.entries])
        await assert_holds(place, [one])

    async def test_edit_inserts(self, place: Place) -> None:
        one, *others = await filled(place, 6, 5)
        entries = one.entries
        for name, places in PLACES.items():
            with case(name):
                new = samples.entries(len(places), start=100 + len(entries))
                changes = [
                    put(entry, None if behind is None else entries[behind])
                    for entry, behind in zip(new, places, strict=True)
                ]
                async with changing(place) as store:
                    await edit_all(store, one.key, changes)
                entries = inserted(entries, new, places)
                await assert_holds(place, [sample(one.key, entries), *others])

    @pytest.mark.parametrize("indexes", [True, False])
    async def test_edit_deletes_and_restores(self, place: Place, indexes: bool) -> None:
        """An undo restores deleted messages, even if an agent has added messages since."""
        one, *others = await filled(place, 12, 5)
        entries = one.entries
        for number, (name, going) in enumerate(GOING.items()):
            grown = (number + indexes) % 2 * 4  # each case with and without, in one of both tests
            with case((name, grown)):
                left = [entry for n, entry in enumerate(entries) if n not in going]
                more = samples.entries(grown, start=50 + len(entries))
                async with changing(place) as store:
                    before = (await read(store))[one.key].entries
                    await edit_all(store, one.key, [gone(entries[n]) for n in going])
                    await assert_holds(place, [sample(one.key, left), *others])
                    if more:
                        await write(store, [sample(one.key, more)], offset=len(left))
                    kept: StoredMessage | None = None
                    back = []
                    for n, entry in enumerate(before):
                        if n in going:
                            at = entry.position if indexes else None
                            back.append(put(entry._replace(position=at), kept))
                        else:
                            kept = entry
                    await edit_all(store, one.key, back)
                entries = [*entries, *more]
                await assert_holds(place, [sample(one.key, entries), *others])

    async def test_edit_puts_others_in_under_the_same_ids(self, place: Place) -> None:
        one, *others = await filled(place, 12, 5)
        entries = one.entries
        for name, going in GOING.items():
            with case(name):
                after = list(entries)
                changes = []
                kept: StoredMessage | None = None
                for n, entry in enumerate(entries):
                    if n not in going:
                        kept = entry
                        continue
                    marks = samples.possible(("compressed",) if n % 2 else entry.marks)
                    content = f"another {n} for {name}"
                    after[n] = samples.entry(entry.id, 50 + n, marks, content=content)
                    changes += [gone(entry), put(after[n], kept)]
                async with changing(place) as store:
                    await edit_all(store, one.key, changes)
                entries = after
                await assert_holds(place, [sample(one.key, entries), *others])

    async def test_edit_restores_hard_messages(self, place: Place) -> None:
        [key] = place.keys(1)
        hard = list(samples.nasty_entries(skip=place.backend.refuses | place.backend.alters))
        await write_into(place, [sample(key, hard)])
        async with changing(place) as store:
            await edit_all(store, key, [gone(entry) for entry in hard[1:]])
            await edit_all(store, key, [put(entry, hard[0]) for entry in hard[1:]])
        await assert_holds(place, [sample(key, hard)])

    async def test_edit_inserts_a_large_message(self, place: Place) -> None:
        if "wide" in place.backend.refuses or place.backend.largest:
            pytest.skip("takes no message so large")
        one, *_ = await filled(place, 4)
        large = samples.entry("large", 5, ("hint",), content="l" * 20_000_000)
        async with changing(place) as store:
            await edit_all(store, one.key, [put(large, one.entries[1])])
        one.entries.insert(2, large)
        await assert_holds(place, [one])

    async def test_edit_creates_a_memory_anew(self, many_place: Place) -> None:
        """An edit of a missing memory creates the memory with its summary and expiry."""
        [one] = await filled(many_place, 3)
        key = many_place.keys(2)[1]
        new = samples.entries(5, start=9)
        async with changing(many_place) as store:
            memory = Memory(
                key,
                "what was" if store.features.summaries else None,
                TTL if store.features.ttl else None,
            )
            results = await edit(store, edits(memory, [put(entry) for entry in new]))
            assert results == {key: WriteResult(key, written=5)}
            about = (await read(store))[key].memory
            if memory.summary is not None:
                assert about.summary == memory.summary
            if memory.ttl is not None:
                assert about.ttl == pytest.approx(TTL, abs=600)
        await assert_holds(many_place, [one, sample(key, new)])

    # All at once

    @pytest.mark.parametrize(("count", "size"), [(23, 1000), (23, 1), (3000, 170)])
    async def test_edit_with_a_mixture_of_changes(
        self, place: Place, count: int, size: int
    ) -> None:
        """The changes of a memory may come in several ``Edit`` objects."""
        count = place.size(count)
        one, *others = await filled(place, count, 5, 5)
        changes, after = mixture(one.entries, samples.entries(count // 5, start=10_000))
        assert len(changes) >= count // 5 * 3 - 3
        async with changing(place) as store:
            await edit_all(store, one.key, changes, size)
        await assert_holds(place, [sample(one.key, after), *others])

    async def test_edit_of_many_memories(self, many_place: Place) -> None:
        """If edits of some small and large memories fail, all other edits succeed."""
        before = await filled(many_place, *([7] * 40), many_place.size(1500), *([7] * 40))
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
            results = await edit(store, wanted)
        assert {key for key, result in results.items() if result.failure} == failing
        for key in failing:
            assert_changed(results[key])
        await assert_holds(many_place, expected)

    @pytest.mark.parametrize("size", [1000, 2])
    async def test_edit_refused_changes_nothing(self, place: Place, size: int) -> None:
        one, *others = await filled(place, 12, 5)
        fine, _ = mixture(one.entries[6:], samples.entries(9, start=100))
        for fault, bad in faults(one.entries).items():
            with case(fault):
                async with changing(place) as store:
                    for changes in ([bad, *fine], [*fine, bad]):
                        results = await edit(store, edits(one.key, changes, size))
                        assert_changed(results[one.key])
        await assert_holds(place, [one, *others])

    async def test_edit_refused_changes_nothing_of_a_large_memory(self, place: Place) -> None:
        """The change that does not fit is the first or the last of many."""
        one, *others = await filled(place, place.size(2500), 5)
        found = faults(one.entries)
        fine, _ = mixture(one.entries[12:-12], samples.entries(place.size(1000), start=10_000))
        for first, last in (("gone", "marked otherwise"), ("there already", "no place for it")):
            for changes in ([found[first], *fine], [*fine, found[last]]):
                async with changing(place) as store:
                    assert_changed((await edit(store, edits(one.key, changes, 170)))[one.key])
        await assert_holds(place, [one, *others])

    @pytest.mark.parametrize("count", [1, 1500])
    async def test_edit_of_a_missing_memory(self, many_place: Place, count: int) -> None:
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

    async def test_edit_keeps_what_others_added(self, place: Place) -> None:
        """An edit keeps messages that an agent added after the changes were chosen."""
        [one] = await filled(place, 12)
        changes, after = mixture(one.entries, samples.entries(9, start=100))
        more = samples.entries(place.size(1200), start=2000)
        async with place.store() as store:
            await write(store, [sample(one.key, more)], offset=12)
        async with changing(place) as store:
            await edit_all(store, one.key, changes)
        await assert_holds(place, [sample(one.key, [*after, *more])])

    async def test_edit_twice_at_once(self, place: Place) -> None:
        """The first of two equal edits succeeds; the second finds a changed memory."""
        [one] = await filled(place, place.size(2000))
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

    async def test_edit_goes_by_exact_names(self, place: Place) -> None:
        """An edit of every second memory leaves memories with similar names unchanged."""
        memories = memories_of_hard_names(place)
        async with place.store() as store:
            results = await write(store, memories)
            assert place.backend.refuses_names or not any(
                result.failure for result in results.values()
            )
        memories = [one for one in memories if not results[one.key].failure]
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
            assert [result for result in done.values() if result.failure] == []
            store.resolve_names(keys)
        await assert_holds(place, expected)

    async def test_edit_takes_no_name_for_a_pattern(self, many_place: Place) -> None:
        """Names such as ``*`` are literal names of missing users, not patterns."""
        before = await filled(many_place, 5, 5)
        async with changing(many_place) as store:
            for name in ("*", "%", "_", "user?", "[a-z]*", "USER0"):
                for key in (MemoryKey(name, "session0"), MemoryKey("user0", name)):
                    results = await edit(store, edits(key, [gone(before[0].entries[0])]))
                    assert_changed(results[key])
            key = before[0].key
            for pattern in ("*", "m*", "m%", "%", "m000000?", "m000000_"):
                assert_changed((await edit(store, edits(key, [Change(pattern, ())])))[key])
        await assert_holds(many_place, before)

    async def test_edit_leaves_other_users_of_the_session_alone(self, many_place: Place) -> None:
        """Several users have messages with equal ids in sessions of equal names."""
        users = ("a", "b", "a-b", "c")
        memories = [sample(MemoryKey(user, "shared"), samples.entries(6)) for user in users]
        async with many_place.store() as store:
            if store.features.session_owners:
                pytest.skip("a session belongs to one user")
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

    async def test_edit_of_a_part_that_the_store_cannot_have(self, many_place: Place) -> None:
        before = await filled(many_place, 3)
        key = before[0].key._replace(part="agent.memory")
        async with changing(many_place) as store:
            if store.features.parts:
                pytest.skip("holds parts")
            result = (await edit(store, edits(key, [gone(before[0].entries[0])])))[key]
            assert result.failure is not None
            assert result.failure.code in ("bad-name", "changed")
        await assert_holds(many_place, before)

    async def test_edit_keeps_expiry(self, place: Place) -> None:
        keys = place.keys(2)
        before = [sample(key, samples.entries(9), ttl=TTL) for key in keys]
        await write_into(place, before, needs="ttl")
        one = before[0]
        changes, after = mixture(one.entries, samples.entries(9, start=100))
        async with changing(place) as store:
            results = await edit(store, edits(Memory(one.key, ttl=5.0), changes))
            assert not results[one.key].failure
            found = await read(store)
        assert_same(store, found[one.key], sample(one.key, after))
        for key in keys:
            assert found[key].memory.ttl == pytest.approx(TTL, abs=600)

    async def test_edit_adds_no_expiry(self, place: Place) -> None:
        [one] = await filled(place, 9)
        async with changing(place) as store:
            if not store.features.ttl:
                pytest.skip("nothing expires")
            memory = Memory(one.key, ttl=5.0)
            results = await edit(store, edits(memory, [gone(one.entries[0])]))
            assert not results[one.key].failure
            assert (await read(store))[one.key].memory.ttl is None

    @pytest.mark.parametrize("count", [9, 2000])
    async def test_edit_changes_the_summary_with_the_messages(
        self, place: Place, count: int
    ) -> None:
        keys = place.keys(2)
        count = place.size(count)
        before = [sample(key, samples.entries(count), summary="what was") for key in keys]
        await write_into(place, before, needs="summaries")
        one = before[0]
        changes, after = mixture(one.entries, samples.entries(9, start=10_000))
        later, last = mixture(after, samples.entries(9, start=20_000))
        async with changing(place) as store:
            new = Memory(one.key, "what is 😀\n")
            for wrong in ("", "What was", "what was ", new.summary):
                bad = [replace(each, summary=wrong) for each in edits(new, changes, 90)]
                assert_changed((await edit(store, bad))[one.key])
            good = [replace(each, summary="what was") for each in edits(new, changes, 90)]
            assert not (await edit(store, good))[one.key].failure
            found = await read(store)
            assert found[one.key].memory.summary == new.summary
            assert_same(store, found[one.key], sample(one.key, after))
            assert not (await edit(store, edits(one.key, later, 90)))[one.key].failure
            found = await read(store)
            assert found[one.key].memory.summary == new.summary, "an edit that names none leaves it"
            assert_same(store, found[one.key], sample(one.key, last))
            for key in keys[1:]:
                assert found[key].memory.summary == "what was"

    async def test_edit_changes_the_summary_alone(self, place: Place) -> None:
        [key] = place.keys(1)
        one = sample(key, samples.entries(5), summary="what was")
        await write_into(place, [one], needs="summaries")
        async with changing(place) as store:
            for summary in ("what is", ""):
                results = await edit(store, edits(Memory(key, summary), []))
                assert results == {key: WriteResult(key)}
                assert (await read(store))[key].memory.summary == summary
        await assert_holds(place, [one])

    async def test_edit_keeps_the_summary_when_all_messages_go(self, place: Place) -> None:
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

    async def test_edit_ignores_a_summary_that_the_store_cannot_hold(self, place: Place) -> None:
        [one] = await filled(place, 5)
        async with changing(place) as store:
            if store.features.summaries:
                pytest.skip("holds summaries")
            changes = edits(Memory(one.key, "new"), [gone(one.entries[0])])
            results = await edit(store, [replace(each, summary="old") for each in changes])
            assert results == {one.key: WriteResult(one.key, deleted=1)}
        await assert_holds(place, [sample(one.key, one.entries[1:])])

    @pytest.mark.parametrize("name", TWINS)
    async def test_edit_of_repeated_ids(self, place: Place, name: str) -> None:
        """A change of a repeated id applies to the next message with this id and these marks."""
        [key] = place.keys(1)
        before = twins()
        if not before[1].marks:
            pytest.skip("messages have no marks")
        await write_into(place, [sample(key, before)], needs="duplicate_ids")
        planned, left = TWINS[name]
        changes = [one._replace(old=samples.possible(one.old or ())) for one in planned]
        async with changing(place) as store:
            await edit_all(store, key, changes)
        await assert_holds(place, [sample(key, [before[n] for n in left])])

    async def test_edit_of_too_few_repeated_ids(self, place: Place) -> None:
        [key] = place.keys(1)
        one = sample(key, twins())
        await write_into(place, [one], needs="duplicate_ids")
        async with changing(place) as store:
            marks = samples.possible(("hint",))
            results = await edit(store, edits(key, [Change("twin", marks)] * 5))
            assert_changed(results[key])
        await assert_holds(place, [one])
