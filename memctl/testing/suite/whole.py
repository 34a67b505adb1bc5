"""Tests of stores whose memories are only added, replaced and deleted whole."""

from __future__ import annotations

from dataclasses import replace

from memctl.model import Change, Memory, MemoryKey, WriteMode
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    assert_changed,
    assert_holds,
    changing,
    edit,
    edits,
    filled,
    gone,
    put,
    read,
    write,
)
from memctl.testing.samples import Sample, sample


async def memory_of(place: Place, key: MemoryKey) -> Memory:
    """Return a memory as the store reads it, with its version."""
    async with place.store(create=False) as store:
        return (await read(store))[key].memory


class WholeTests:
    """Tests that a memory comes, goes and is replaced whole, and that nothing else changes."""

    async def test_whole_memories_are_what_was_written(self, place: Place) -> None:
        await assert_holds(place, await filled(place, 1, 5, place.backend.large))

    async def test_whole_memory_takes_no_further_messages(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        more = sample(one.key, samples.entries(2, start=50))
        async with place.store() as store:
            for offset in 0, 6:
                result = (await write(store, [more], offset=offset))[one.key]
                assert result.failure is not None
        await assert_holds(place, [one, *others])

    async def test_whole_memory_is_replaced_at_its_version_alone(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        memory = await memory_of(place, one.key)
        new = Sample(memory, samples.entries(4, start=90))
        missing = place.keys(3)[2]
        async with place.store() as store:
            result = (await write(store, [new], WriteMode.REPLACE))[one.key]
            assert result.failure is None
            assert (result.written, result.deleted) == (4, 6)
            assert_changed((await write(store, [new], WriteMode.REPLACE))[one.key])
            absent = Sample(replace(memory, key=missing), new.entries)
            assert_changed((await write(store, [absent], WriteMode.REPLACE))[missing])
        await assert_holds(place, [sample(one.key, new.entries), *others])

    async def test_whole_memory_goes_and_comes_back_by_edits(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        removal = [gone(entry) for entry in one.entries]
        return_ = [
            put(entry, after)
            for entry, after in zip(one.entries, [None, *one.entries], strict=False)
        ]
        for changes, left in (removal, others), (return_, [one, *others]):
            async with changing(place) as store:
                result = (await edit(store, edits(one.key, changes, 4)))[one.key]
            assert result.failure is None
            await assert_holds(place, left)

    async def test_whole_memory_refuses_changes_inside(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        first, last, new = one.entries[0], one.entries[-1], samples.entries(1, start=50)[0]
        cases: list[list[Change]] = [
            [gone(first)],
            [gone(last)],
            [put(new, last)],
            [*map(gone, one.entries[:-1])],
            [*map(gone, one.entries), gone(new)],
        ]
        for changes in cases:
            async with changing(place) as store:
                result = (await edit(store, edits(one.key, changes)))[one.key]
            assert result.failure is not None, changes
            await assert_holds(place, [one, *others])
