"""Locks: one memctl run at a time writes to a place, and what it leaves behind is nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from memctl.errors import Busy
from memctl.registry import make_store
from memctl.store import OpenMode
from memctl.stores.redis import lock
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import infos, read, write_all
from tests.conformance.lock_holder import elsewhere
from tests.conformance.samples import sample

FIRST = "pid 4242 since 2026-11-21T02:17:53Z on web-1"
SECOND = "pid 4243 since 2026-11-21T02:18:00Z on web-2"
THIRD = "pid 4244 since 2026-11-21T02:19:00Z on web-3"
LEASE = 0.6


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test waits for 30 seconds."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", LEASE)


async def is_busy(place: Place) -> str:
    """The message that another run gets; it leaves nothing behind."""
    async with place.store() as store:
        with pytest.raises(Busy) as caught:
            await store.lock(THIRD)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


async def test_a_second_run_is_told_who_holds_the_lock(place: Place) -> None:
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


async def test_the_lock_lasts(place: Place) -> None:
    async with place.store() as store:
        await store.lock(FIRST)
        await asyncio.sleep(3 * LEASE)
        assert FIRST in await is_busy(place)
        assert store.warnings == []


async def test_nothing_of_a_lock_is_left(place: Place) -> None:
    key, *_ = place.keys(1)
    async with place.store() as store:
        await write_all(store, [sample(key, samples.entries(3))])
    before = place.dump()
    async with place.store() as store:
        await store.lock(FIRST)
        await is_busy(place)
    assert place.dump() == before


async def test_places_have_locks_of_their_own(make_place: Callable[[], Place]) -> None:
    async with make_place().store() as one, make_place().store() as other:
        await one.lock(FIRST)
        await other.lock(SECOND)


async def test_the_lock_hinders_neither_its_holder_nor_readers(place: Place) -> None:
    keys = place.keys(3)
    memories = [sample(key, samples.entries(5)) for key in keys]
    async with place.store() as store:
        await store.lock(FIRST)
        await write_all(store, memories)
        async with place.store(create=False) as reader:
            assert set(await read(reader)) == set(keys)
            assert set(await infos(reader)) == set(keys)
        assert set(await read(store)) == set(keys)


async def test_of_many_at_once_one_gets_the_lock(place: Place) -> None:
    async with place.store():
        pass
    stores = [place.store() for _ in range(6)]
    try:
        for store in stores:
            await store.open(store.mode)
        ends = await asyncio.gather(
            *(store.lock(f"pid {number}") for number, store in enumerate(stores)),
            return_exceptions=True,
        )
        assert [type(end) for end in ends if end is not None] == [Busy] * 5, ends
    finally:
        for store in stores:
            await store.close()
    async with place.store() as store:
        await store.lock(SECOND)


async def test_who_is_stopped_while_taking_the_lock_leaves_none(place: Place) -> None:
    if place.backend.name == "postgresql":
        # asyncpg, stopped while it asks for TLS, leaves a future that nobody waits for.
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


async def free_soon(place: Place) -> None:
    """The lock can be taken, within the time that a server takes to see that a client has gone."""
    deadline = time.monotonic() + 15
    async with place.store() as store:
        while True:
            try:
                await store.lock(SECOND)
                return
            except Busy:
                assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_a_killed_run_holds_no_lock(place: Place) -> None:
    with elsewhere(place.text, FIRST, LEASE) as process:
        assert FIRST in await is_busy(place)
        process.kill()
        process.wait()
        await free_soon(place)
