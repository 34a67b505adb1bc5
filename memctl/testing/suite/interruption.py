"""Tests that a write or an edit that stops midway leaves each memory whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import pytest

from memctl.model import MemoryKey, Page, WriteMode, WriteResult
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    assert_same,
    changing,
    edit_all,
    edits,
    filled,
    gone,
    pages,
    read,
    write_all,
)
from memctl.testing.samples import Sample, sample

T = TypeVar("T")
Results = dict[MemoryKey, WriteResult]


class Broken(Exception):
    """An error that the source of a write or an edit raises in these tests."""


class Stop(Enum):
    """The ways to stop a write or an edit."""

    ERROR = auto()
    """Its source raises an error."""
    CANCEL = auto()
    """The task is cancelled (Ctrl-C), while its source waits."""


async def stopped(
    run: Callable[[AsyncGenerator[T]], AsyncGenerator[WriteResult]], items: list[T], how: Stop
) -> Results:
    """Write pages or carry out edits, and stop before the last of ``items``.

    Returns the results until then.
    """
    results: Results = {}
    waits = asyncio.Event()

    async def source() -> AsyncGenerator[T]:
        for item in items[:-1]:
            yield item
        waits.set()
        if how is Stop.ERROR:
            raise Broken
        await asyncio.sleep(60)

    async def work() -> None:
        async for result in run(source()):
            results[result.key] = result

    task = asyncio.create_task(work())
    await asyncio.wait_for(waits.wait(), 30)
    if how is Stop.CANCEL:
        task.cancel()
    with pytest.raises(Broken if how is Stop.ERROR else asyncio.CancelledError):
        await task
    return results


async def assert_whole(place: Place, results: Results, before: list[Sample], done: Sample) -> None:
    """Assert that the store holds the memories ``before``, of which at most one became ``done``.

    With a result in ``results``, it did.
    """
    assert results.keys() <= {done.key}
    async with place.store(create=False) as store:
        found = await read(store)
    expected = {one.key: one for one in before}
    changed = done.key in found and len(found[done.key].entries) == len(done.entries)
    if results or changed:
        expected[done.key] = done
    assert found.keys() == expected.keys()
    for key, one in expected.items():
        assert_same(store, found[key], one)
    # A write or an edit leaves no temporary file in the folder of the store.
    assert [path for path in place.folder.rglob("*") if ".tmp" in path.name] == []


class InterruptionTests:
    """Tests that a write or an edit that stops midway leaves each memory whole."""

    @pytest.mark.parametrize("how", Stop)
    @pytest.mark.parametrize("mode", WriteMode)
    async def test_write_stopped(self, many_place: Place, mode: WriteMode, how: Stop) -> None:
        """The unfinished memory is unchanged; a memory with a WriteResult is stored."""
        key, *keys = many_place.keys(3)
        before = [sample(one, samples.entries(4)) for one in keys]
        done = sample(key, samples.entries(10))
        unfinished = sample(keys[0], samples.entries(3000, 50))
        async with many_place.store() as store:
            await write_all(store, before)
            source = [page async for page in pages([done])]
            offset = 4 if mode is WriteMode.ADD else 0
            source += [page async for page in pages([unfinished], offset=offset)]
            results = await stopped(partial(store.write, mode=mode), source, how)
            await assert_whole(many_place, results, before, done)
        await assert_whole(many_place, results, before, done)

    async def test_write_stopped_at_once_leaves_nothing(self, place: Place) -> None:
        first = Page(sample(place.keys(1)[0]).memory, [])
        async with place.store() as store:
            assert await stopped(store.write, [first], Stop.ERROR) == {}
            assert await read(store) == {}
        assert [path for path in place.folder.rglob("*") if ".tmp" in path.name] == []

    @pytest.mark.parametrize("how", Stop)
    async def test_edit_stopped(self, many_place: Place, how: Stop) -> None:
        """The unfinished memory is unchanged; a memory with a WriteResult is changed."""
        first, unfinished, last = before = await filled(many_place, 10, many_place.size(2000), 10)
        done = sample(first.key, first.entries[5:])
        wanted = edits(first.key, [gone(entry) for entry in first.entries[:5]])
        wanted += edits(unfinished.key, [gone(entry) for entry in unfinished.entries], 100)
        async with changing(many_place) as store:
            if store.features.whole_memories:
                pytest.skip("changes nothing inside a memory")
            results = await stopped(store.edit, wanted, how)
            await assert_whole(many_place, results, before, done)
            await edit_all(store, last.key, [gone(last.entries.pop(0))])
        await assert_whole(many_place, results, before, done)
