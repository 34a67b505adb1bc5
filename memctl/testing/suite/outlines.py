"""Tests that an outline and a read return the same memories, ids, order and marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import memories_of_hard_names, outline, write
from memctl.testing.samples import Sample, sample


def memories(place: Place) -> list[Sample]:
    """Return memories to write: one of several pages, some with names that are hard to store.

    Several users have a session of the same name.  A store for a single memory gets only one.
    """
    keys = place.keys(3)
    found = [sample(keys[0], samples.entries(place.size(1234)))]
    found += [sample(key, samples.entries(3, start=n)) for n, key in enumerate(keys[1:])]
    return found + memories_of_hard_names(place)[1:]


class OutlineTests:
    """Tests that an outline and a read return the same memories, ids, order and marks."""

    async def test_outline_agrees_with_reading(self, make_place: Callable[[], Place]) -> None:
        place = make_place()
        async with place.store() as store:
            written = memories(place)
            results = await write(store, written)
            assert place.backend.refuses_names or not any(one.failure for one in results.values())
            if store.features.empty and not place.backend.only:
                await write(store, [sample(samples.key(7))])
            good = [memory.key for memory in written if not results[memory.key].failure]
            chosen = frozenset([*good[::2], MemoryKey("nobody", "nothing")])
            for where in (
                Selection(),
                Selection(keys=chosen),
                Selection(users=frozenset({good[0].user, "a"})),
                Selection(sessions=frozenset({good[0].session, "shared"})),
            ):
                found = await outline(store, where, read=False)
                assert found == await outline(store, where, read=True)
                assert found

    async def test_count_of_marks_agrees_with_reading(
        self, make_place: Callable[[], Place]
    ) -> None:
        place = make_place()
        async with place.store() as store:
            await write(store, memories(place))
            for where in Selection(), Selection(users=frozenset({place.keys(3)[-1].user})):
                read = Counter(
                    [
                        (page.memory.key, mark)
                        async for page in store.read(where)
                        for entry in page.messages
                        for mark in entry.marks
                    ]
                )
                marks = frozenset(mark for _, mark in read)
                some = frozenset([*sorted(marks)[:2], "unknown"])
                counted: Counter[tuple[MemoryKey, str]] = Counter()
                async for memory, found in store.count_marks(where, some):
                    counted.update({(memory.key, mark): found[mark] for mark in found})
                assert +counted == Counter({one: n for one, n in read.items() if one[1] in some})

    async def test_is_empty(self, make_place: Callable[[], Place]) -> None:
        place = make_place()
        async with place.store(create=True) as store:
            assert await store.is_empty()
            await write(store, [sample(place.keys(1)[0], samples.entries(3))])
            assert not await store.is_empty()
