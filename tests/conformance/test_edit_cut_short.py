"""Edits that end early: memories are changed as a whole, or as they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from memctl.model import Edit, MemoryKey, WriteResult
from tests.conformance.backends import Place
from tests.conformance.drive import assert_same, read
from tests.conformance.editing import (
    changing,
    edit,
    edits,
    filled,
    gone,
)
from tests.conformance.samples import Sample, sample


class Broken(Exception):
    """What the source of an edit raises in these tests."""


async def test_a_source_that_breaks_in_the_middle(many_place: Place) -> None:
    """The memory that was being changed stays as it was; what has a WriteResult is changed."""
    done, broken, untouched = await filled(many_place, 10, 4000, 10)

    async def breaking() -> AsyncGenerator[Edit]:
        for one in edits(done.key, [gone(entry) for entry in done.entries[:5]]):
            yield one
        for one in edits(broken.key, [gone(entry) for entry in broken.entries], 500):
            if one.last:
                raise Broken
            yield one

    tallies: dict[MemoryKey, WriteResult] = {}

    async def work() -> None:
        async for tally in store.edit(breaking()):
            tallies[tally.key] = tally

    async with changing(many_place) as store:
        with pytest.raises(Broken):
            await work()
        await assert_whole(many_place, tallies, done, [broken, untouched])
    await assert_whole(many_place, tallies, done, [broken, untouched])
    assert strays(many_place) == []


async def test_an_edit_that_is_cancelled(many_place: Place) -> None:
    """As Ctrl-C does: the task ends as cancelled, the store is usable, the memory as it was."""
    done, broken, untouched = await filled(many_place, 10, 4000, 10)
    stuck = asyncio.Event()

    async def hanging() -> AsyncGenerator[Edit]:
        for one in edits(done.key, [gone(entry) for entry in done.entries[:5]]):
            yield one
        for one in edits(broken.key, [gone(entry) for entry in broken.entries], 500):
            if one.last:
                stuck.set()
                await asyncio.sleep(60)
            yield one

    tallies: dict[MemoryKey, WriteResult] = {}

    async def work() -> None:
        async for tally in store.edit(hanging()):
            tallies[tally.key] = tally

    async with changing(many_place) as store:
        task = asyncio.create_task(work())
        await asyncio.wait_for(stuck.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_whole(many_place, tallies, done, [broken, untouched])
        assert not (await edit(store, edits(untouched.key, [gone(untouched.entries[0])])))[
            untouched.key
        ].failure
    untouched.entries.pop(0)
    await assert_whole(many_place, tallies, done, [broken, untouched])
    assert strays(many_place) == []


async def assert_whole(
    place: Place, tallies: dict[MemoryKey, WriteResult], done: Sample, untouched: list[Sample]
) -> None:
    """The first is changed or as it was, and changed if there is a result; the rest as it was."""
    assert set(tallies) <= {done.key}
    async with place.store(create=False) as store:
        found = await read(store)
    assert set(found) == {done.key, *(one.key for one in untouched)}
    for one in untouched:
        assert_same(store, found[one.key], one)
    whole = tallies or len(found[done.key].entries) == 5
    assert_same(store, found[done.key], sample(done.key, done.entries[5 if whole else 0 :]))


def strays(place: Place) -> list[str]:
    """Files that an edit left behind."""
    return [str(path) for path in place.folder.rglob("*") if ".tmp" in path.name]
