"""Tests that lists of keys and windows agree with the messages read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.catalog import span
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import case, read, write, write_all, write_into
from memctl.testing.samples import Sample, sample, several
from memctl.testing.suite.outlines import memories


async def _keys(store: Store, where: Selection) -> list[MemoryKey]:
    return [key async for key in store.list_keys(where)]


def _slice(found: Sample, start: int, count: int) -> Page:
    """Return the window that a memory, read whole, must have."""
    places = span(len(found.entries), start, count)
    entries = found.entries[places.start : places.stop]
    return Page(found.memory, entries, places.start, places.stop == len(found.entries))


async def _assert_window(store: Store, found: Sample, start: int, count: int) -> None:
    page = await store.window(found.key, start, count)
    assert page is not None
    ttl = found.memory.ttl if page.memory.ttl is not None else None  # a ttl counts down
    shown = Page(replace(page.memory, ttl=ttl), page.messages, page.offset, page.last)
    assert shown == _slice(found, start, count)


class NameTests:
    """Tests that keys and windows agree with reading for names that are hard to store."""

    async def test_keys_and_windows_of_any_name(self, make_place: Callable[[], Place]) -> None:
        place = make_place()
        async with place.store() as store:
            written = memories(place)
            await write(store, written)
            everything = await read(store)
            good = list(everything)
            for where in (
                Selection(),
                Selection(users=frozenset({good[0].user, "a"})),
                Selection(sessions=frozenset({good[0].session, "shared"})),
                Selection(users=frozenset({good[-1].user}), sessions=frozenset({good[-1].session})),
                Selection(users=frozenset({"nobody"})),
            ):
                keys = await _keys(store, where)
                assert sorted(keys) == sorted(filter(where.has_key, everything))
            for key in good if store.features.cheap_windows else good[::8]:  # for speed
                with case(key):
                    await _assert_window(store, everything[key], -2, 2)


class WindowTests:
    """Tests that lists of keys and windows agree with the messages read."""

    async def test_windows_are_slices_of_a_memory(self, place: Place) -> None:
        key, *others = place.keys(2)
        async with place.store() as store:
            # The default of ``window`` reads the whole memory for each window.
            count = place.size(1234) if store.features.cheap_windows else 40
            written = [sample(key, samples.entries(count)), *several(others, 3, start=count)]
            await write_all(store, written)
            everything = await read(store)
            assert sorted(await _keys(store, Selection())) == sorted(everything)
            found = everything[key]
            for window in (
                (0, 1),
                (0, 20),
                (0, count),
                (0, 2 * count),
                (3, 10),
                (count // 2 - 5, 10),
                (count - 10, 20),
                (count - 1, 1),
                (count, 5),
                (count + 5, 5),
                (-1, 1),
                (-20, 5),
                (-20, 50),
                (-count, 2),
                (-2 * count, 7),
            ):
                with case(window):
                    await _assert_window(store, found, *window)

    async def test_windows_of_empty_and_missing_memories(self, place: Place) -> None:
        [key] = place.keys(1)
        missing = MemoryKey("nobody", "nothing") if not place.backend.only else key
        async with place.store() as store:
            assert await store.window(missing, 0, 5) is None
            assert await _keys(store, Selection()) == []
            await write(store, [sample(key)])
            if not store.features.empty:
                assert await store.window(key, 0, 5) is None
                return
            assert await _keys(store, Selection()) == [key]
            found = (await read(store))[key]
            for start in (0, 3, -3):
                with case(start):
                    await _assert_window(store, found, start, 5)

    async def test_windows_while_another_store_counts(self, place: Place) -> None:
        """A program lists memories, and counts them with a second store opened beside."""
        key, *others = place.keys(3)
        written = [sample(key, samples.entries(5)), *several(others, 3, start=5)]
        await write_into(place, written)
        async with place.store(create=False) as store, place.store(create=False) as counting:
            store.resolve_names([one.key for one in written])
            counting.resolve_names([one.key for one in written])
            counts: dict[MemoryKey, int] = {}
            lasts: list[tuple[int, int]] = []
            async with aclosing(counting.list_memories(Selection())) as infos:
                async for info in infos:
                    counts[info.key] = info.messages
                    page = await store.window(info.key, -2, 2)
                    if page is not None:
                        lasts.append((page.offset, len(page.messages)))
            assert counts == {one.key: len(one.entries) for one in written}
            assert lasts == [(count - 2, 2) for count in counts.values()]
            assert sorted(await _keys(store, Selection())) == sorted(counts)
