"""Tests of locks: one memctl run at a time writes to a place, and a lock leaves no traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pytest

from memctl.errors import Busy
from memctl.registry import make_store
from memctl.shard import Shard
from memctl.store import OpenMode, Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import infos, read, write_all, write_into
from memctl.testing.lock_holder import lock_elsewhere
from memctl.testing.samples import sample

FIRST = "pid 4242 since 2026-11-21T02:17:53Z on web-1"


SECOND = "pid 4243 since 2026-11-21T02:18:00Z on web-2"


THIRD = "pid 4244 since 2026-11-21T02:19:00Z on web-3"


PART, OTHER = Shard(0, 4), Shard(1, 4)


def part_of(place: Place, shard: Shard | None) -> Store:
    """Return an unopened store at a place, limited to a shard."""
    store = place.store()
    store.shard = shard
    return store


async def is_busy(place: Place, shard: Shard | None = None) -> str:
    """Assert that another memctl run cannot lock the store or shard; return the error message."""
    async with part_of(place, shard) as store:
        with pytest.raises(Busy) as caught:
            await store.lock(THIRD)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


async def free_soon(place: Place) -> None:
    """Assert that another run can lock the store within 15 seconds.

    A server needs time to notice that the client with the lock has ended.
    """
    deadline = time.monotonic() + 15
    async with place.store() as store:
        while True:
            try:
                await store.lock(SECOND)
                return
            except Busy:
                assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


class LockTests:
    """Tests of locks: one memctl run at a time writes to a place, and a lock leaves no traces."""

    async def test_lock_names_its_owner_to_a_second_run(self, place: Place) -> None:
        async with place.store() as store:
            await store.lock(FIRST)
            assert FIRST in await is_busy(place)
            assert FIRST in await is_busy(place)  # asking changes nothing
            async with make_store(place.alias(), OpenMode.CREATE) as alias:
                with pytest.raises(Busy, match="web-1"):
                    await alias.lock(SECOND)
        async with place.store() as store:
            await store.lock(SECOND)
            assert SECOND in await is_busy(place)

    async def test_lock_of_a_shard_excludes_it_and_the_whole(self, place: Place) -> None:
        async with place.store():
            pass
        before = place.dump()
        async with part_of(place, PART) as store:
            await store.lock(FIRST)
            assert FIRST in await is_busy(place, PART)
            assert FIRST in await is_busy(place)
            async with part_of(place, OTHER) as other:
                with suppress(Busy):  # a store with one writer
                    await other.lock(SECOND)
                    assert SECOND in await is_busy(place, OTHER)
            assert FIRST in await is_busy(place)
        async with place.store() as store:
            await store.lock(FIRST)
            assert FIRST in await is_busy(place, PART)
        assert place.dump() == before

    async def test_lock_lasts(self, place: Place) -> None:
        async with place.store() as store:
            await store.lock(FIRST)
            await asyncio.sleep(3 * place.backend.lease)
            assert FIRST in await is_busy(place)
            assert store.warnings == []

    async def test_lock_leaves_nothing(self, place: Place) -> None:
        key, *_ = place.keys(1)
        await write_into(place, [sample(key, samples.entries(3))])
        before = place.dump()
        async with place.store() as store:
            await store.lock(FIRST)
            await is_busy(place)
        assert place.dump() == before

    async def test_lock_is_of_one_place(self, make_place: Callable[[], Place]) -> None:
        async with make_place().store() as one, make_place().store() as other:
            await one.lock(FIRST)
            await other.lock(SECOND)

    async def test_lock_hinders_neither_its_owner_nor_readers(self, place: Place) -> None:
        keys = place.keys(3)
        memories = samples.several(keys, 5)
        async with place.store() as store:
            await store.lock(FIRST)
            await write_all(store, memories)
            async with place.store(create=False) as reader:
                assert set(await read(reader)) == set(keys)
                assert set(await infos(reader)) == set(keys)
            assert set(await read(store)) == set(keys)

    async def test_lock_goes_to_one_of_many(self, place: Place) -> None:
        async with place.store():
            pass
        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(place.store()) for _ in range(6)]
            ends = await asyncio.gather(
                *(store.lock(f"pid {number}") for number, store in enumerate(stores)),
                return_exceptions=True,
            )
            assert [type(end) for end in ends if end is not None] == [Busy] * 5, ends
        async with place.store() as store:
            await store.lock(SECOND)

    async def test_lock_cancelled_while_taken_leaves_none(self, place: Place) -> None:
        # A cancelled driver may leave a future without a reader, such as asyncpg while it asks for
        # TLS.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with place.store():
            pass
        for pause in (0, 0.001, 0.003, 0.01, 0.03):
            async with place.store() as store:
                taking = asyncio.create_task(store.lock(FIRST))
                await asyncio.sleep(pause)
                taking.cancel()
                await asyncio.wait([taking])
            await free_soon(place)

    async def test_lock_of_a_killed_run_is_free(self, place: Place) -> None:
        with lock_elsewhere(place.text, FIRST, place.backend.lock_holder) as process:
            assert FIRST in await is_busy(place)
            process.kill()
            process.wait()
            await free_soon(place)
