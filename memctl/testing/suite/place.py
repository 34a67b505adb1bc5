"""Tests of places: missing places, identities, and reads that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from memctl.errors import BadData, NotFound
from memctl.model import MemoryKey
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import infos, read, write_all, write_into
from memctl.testing.samples import Sample, Style, sample

CANCELLED = 20
"""The number of reads to cancel, each at a different moment."""


class PlaceTests:
    """Tests of places: missing places, identities, and reads that change nothing."""

    async def test_place_missing_is_not_created(self, place: Place) -> None:
        if place.backend.exists:
            async with place.store(create=False) as store:
                assert await read(store) == {}
                assert await infos(store) == {}
            return
        before = place.dump()
        with pytest.raises((NotFound, BadData)):
            async with place.store(create=False):
                pass
        assert place.dump() == before

    async def test_place_holds_messages_of_its_style(self, place: Place) -> None:
        async with place.store() as store:
            assert store.features.marks == place.backend.style.marks
            if place.backend.style.dialect != Style().dialect:
                assert store.dialect.name == place.backend.style.dialect

    async def test_place_has_one_identity(self, make_place: Callable[[], Place]) -> None:
        place, other = make_place(), make_place()
        async with (
            place.store() as one,
            place.store() as again,
            make_store(place.alias(), OpenMode.CREATE) as alias,
            other.store() as different,
        ):
            identity = await one.identity()
            assert await again.identity() == identity
            assert await alias.identity() == identity
            assert await different.identity() != identity

    async def test_place_is_not_changed_by_reading(self, place: Place) -> None:
        key, *others = place.keys(3)
        async with place.store() as store:
            large = sample(key, samples.entries(place.backend.large))
            await write_all(store, [large, *samples.several(others, 3, place.backend.large)])
        before = place.dump()
        async with place.store(create=False) as store:
            await read(store)
            await read(store, Selection(marks=frozenset({"hint"}), last=3))
            await infos(store)
            await infos(store, Selection(roles=frozenset({"user"})))
        assert place.dump() == before

    async def test_read_may_stop_early(self, place: Place) -> None:
        """A read that is closed after its first page does not disturb the next read."""
        keys = place.keys(3)
        await write_into(place, samples.several(keys, place.backend.large))
        async with place.store(create=False) as store:
            pages = store.read(Selection())
            await anext(pages)
            await pages.aclose()
            assert set(await read(store)) == set(keys)

    async def test_read_cancelled(self, place: Place) -> None:
        """A read that is cancelled (Ctrl-C), at any moment, ends as a cancelled task."""
        [key] = place.keys(1)
        await write_into(place, [sample(key, samples.entries(300))])
        clock = asyncio.get_running_loop().time
        began = clock()
        async with place.store(create=False) as store:
            whole = await read(store)
        seconds = clock() - began

        async def work() -> dict[MemoryKey, Sample]:
            async with place.store(create=False) as store:
                return await read(store)

        for part in range(CANCELLED):
            task = asyncio.create_task(work())
            await asyncio.sleep(seconds * part / CANCELLED)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result() == whole

    async def test_read_twice_at_once(self, place: Place) -> None:
        """Two reads of one open store may run at once, as ``verify`` of a store with itself."""
        keys = place.keys(2)
        await write_into(place, samples.several(keys, place.backend.large))
        async with place.store(create=False) as store:
            one, other = store.read(Selection()), store.read(Selection())
            first, second = await anext(one), await anext(other)
            await one.aclose()
            await other.aclose()
            assert first.memory.key == second.memory.key

    async def test_place_shows_no_secret(self, place: Place) -> None:
        async with place.store() as store:
            for text in (store.label, await store.identity(), repr(store)):
                assert "pa:ss/w@rd%21" not in text
                assert "pa%3Ass%2Fw%40rd%2521" not in text

    async def test_place_is_created_by_several_at_once(self, place: Place) -> None:
        async def create() -> None:
            async with place.store():
                pass

        await asyncio.gather(*(create() for _ in range(4)))
        async with place.store() as store:
            assert await read(store) == {}
