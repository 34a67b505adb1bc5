"""Any memory comes back from a store; any selection means the same to all of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.model import Memory, MemoryKey
from memctl.ops.copy.compare import compare
from memctl.ops.copy.copy import CopyOptions, copy
from memctl.ops.report import CopyReport
from memctl.selection import Selection
from memctl.testing import Backend, new_place
from memctl.testing.drive import assert_same, infos, picked, read, write, write_all
from memctl.testing.samples import Sample
from tests.properties.strategies import memories, selections
from tests.support.backends import BACKENDS
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

TAKE_ANYTHING = ["sqlite", "redis", "redis-session", "archive", "sessions", "state"]
"""Stores that take every JSON; the others check it in their own way."""


@pytest.fixture(params=TAKE_ANYTHING)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Backend:
    """Each of them in turn."""
    return BACKENDS[request.param](servers)


@given(data=st.data())
def test_property_any_memory_comes_back(
    backend: Backend, tmp_path: Path, data: st.DataObject
) -> None:
    place = new_place(backend, tmp_path)
    written = data.draw(memories(backend.only))
    size = data.draw(st.integers(1, 9))

    async def check() -> None:
        async with place.store() as store:
            result = (await write(store, [written], size=size))[written.key]
            if result.failure:
                assert result.failure.code == "bad-name"
                return
            assert_same(store, (await read(store)).get(written.key), written)
            assert (await infos(store))[written.key].messages == len(written.entries)

    asyncio.run(check())


@given(data=st.data())
def test_property_any_way_through_the_stores_brings_back_what_went_in(
    tmp_path: Path, servers: Servers, data: st.DataObject
) -> None:
    way = data.draw(st.lists(st.sampled_from(TAKE_ANYTHING[:-1]), min_size=2, max_size=5))
    written = data.draw(memories(MemoryKey("u", "s")))

    async def check() -> None:
        places = [new_place(BACKENDS[name](servers), tmp_path) for name in way]
        async with places[0].store() as store:
            await write_all(store, [written])
        for here, there in pairwise(places):
            report = CopyReport()
            async with here.store(create=False) as source, there.store() as target:
                await copy(source, target, Selection(), CopyOptions(lossy=True), report)
                assert report.failures == []
                assert (await compare(source, target, Selection())).differences == []
        async with places[-1].store(create=False) as store:
            found = (await read(store))[written.key]
            assert_same(store, in_any_order(found), in_any_order(written))

    asyncio.run(check())


def in_any_order(memory: Sample) -> Sample:
    """The memory with its marks sorted: some stores on the way keep no order of them."""
    entries = [entry._replace(marks=tuple(sorted(entry.marks))) for entry in memory.entries]
    return Sample(Memory(memory.key), entries)


@given(data=st.data())
def test_property_any_selection_means_the_same(
    backend: Backend, tmp_path: Path, data: st.DataObject
) -> None:
    place = new_place(backend, tmp_path)
    keys = [MemoryKey("u", "s"), MemoryKey("u", "t"), MemoryKey("v", "x")]
    written = [data.draw(memories(key)) for key in ([backend.only] if backend.only else keys)]
    where = data.draw(selections(written))

    async def check() -> None:
        async with place.store() as store:
            await write_all(store, written)
            expected = await picked((await read(store)).values(), where)
            found = await read(store, where)
            listed = await infos(store, where)
            assert set(found) == set(expected) == set(listed)
            for key, one in expected.items():
                assert_same(store, found[key], one)
                assert listed[key].messages == len(one.entries)

    asyncio.run(check())
