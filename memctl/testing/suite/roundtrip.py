"""Tests of writing and reading back: messages, ids, order, marks, summaries, expiry."""

from __future__ import annotations

import pytest

from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import ALL, assert_same, infos, read, write, write_all, write_into
from memctl.testing.samples import NAMES, Sample, sample


async def _hold_or_refuse(place: Place, written: list[Sample], *, picky: bool = False) -> None:
    """Write memories; assert that each is stored under its exact name, or refused for its name.

    ``picky`` allows refusals even if the backend refuses no names.
    """
    async with place.store() as store:
        results = await write(store, written)
        failures = [result.failure for result in results.values() if result.failure]
        assert {failure.code for failure in failures} <= {"bad-name", "refused", "repeated-id"}
        if not (place.backend.refuses_names or picky):
            assert failures == []
        found = await read(store)
        good = [one for one in written if not results[one.key].failure]
        assert set(found) == {one.key for one in good}
        for one in good:
            assert_same(store, found[one.key], one)
        assert set(await infos(store)) == set(found)


class RoundtripTests:
    """Tests of writing and reading back: messages, ids, order, marks, summaries, expiry."""

    async def test_roundtrip_of_several_pages(self, place: Place) -> None:
        written = [
            sample(key, samples.entries(count), summary="")
            for key, count in zip(place.keys(3), (2345, 3, 1000), strict=False)
        ]
        await write_into(place, written)
        async with place.store(create=False) as store:
            found = await read(store)
            assert set(found) == {one.key for one in written}
            for one in written:
                assert_same(store, found[one.key], one)

    async def test_roundtrip_is_counted_as_it_is_read(self, place: Place) -> None:
        written = [
            sample(key, samples.entries(count))
            for key, count in zip(place.keys(3), (5, 3, 1), strict=False)
        ]
        await write_into(place, written)
        async with place.store(create=False) as store:
            user = Selection(users=frozenset({written[0].key.user}))
            for where in (ALL, user, Selection(roles=frozenset({"user"})), ALL):
                counted = await store.count(where)
                found = await read(store, where)
                messages = sum(len(one.entries) for one in found.values())
                assert counted in (None, (len(found), messages))

    async def test_roundtrip_of_an_empty_place(self, place: Place) -> None:
        async with place.store() as store:
            assert await read(store) == {}
            assert await infos(store) == {}

    async def test_roundtrip_of_hard_messages(self, place: Place) -> None:
        [key] = place.keys(1)
        hard = sample(key, samples.nasty_entries(skip=place.backend.refuses | place.backend.alters))
        async with place.store() as store:
            await write_all(store, [hard])
            assert_same(store, (await read(store)).get(key), hard)

    async def test_roundtrip_a_refused_message_fails_its_memory_alone(
        self, many_place: Place
    ) -> None:
        refused = sorted(many_place.backend.refuses)
        if not refused:
            pytest.skip("takes every message")
        keys = many_place.keys(2 * len(refused) + 1)
        written = [sample(key, samples.entries(5)) for key in keys]
        for number, name in enumerate(refused):
            hard = samples.entry(name, 9, **samples.MESSAGES[name])
            written[2 * number + 1].entries.insert(3, hard)
        bad = {keys[2 * number + 1] for number in range(len(refused))}
        async with many_place.store() as store:
            results = await write(store, written)
            assert {
                key: result.failure.code for key, result in results.items() if result.failure
            } == (dict.fromkeys(bad, "refused"))
            found = await read(store)
            assert set(found) == set(keys) - bad
            for one in written:
                if one.key not in bad:
                    assert_same(store, found[one.key], one)

    @pytest.mark.parametrize("role", ["user", "session"])
    async def test_roundtrip_of_hard_names(self, many_place: Place, role: str) -> None:
        keys = [
            MemoryKey(name, f"s{number}") if role == "user" else MemoryKey(f"u{number}", name)
            for number, name in enumerate(NAMES)
        ]
        written = [sample(key, samples.entries(3)) for key in keys]
        await _hold_or_refuse(many_place, written)

    async def test_roundtrip_of_ambiguous_names(self, many_place: Place) -> None:
        keys = [
            *(MemoryKey("a", "b-c"), MemoryKey("a-b", "c"), MemoryKey("a-b-c", "d")),
            *(MemoryKey("a", "b_c"), MemoryKey("a_b", "c"), MemoryKey("", "a_b_c")),
            *(MemoryKey("a", "b:session:c"), MemoryKey("a:session:b", "c")),
            *(MemoryKey("a", "b:messages"), MemoryKey("a", "b"), MemoryKey("a", "b:msg:x")),
            *(
                MemoryKey("a", "*"),
                MemoryKey("*", "b"),
                MemoryKey("a", "[b]"),
                MemoryKey("a", "b:mark"),
            ),
            *(MemoryKey("A", "b"), MemoryKey("a", "B")),
        ]
        written = [
            sample(key, [samples.entry(f"{number}:{n}", n, ("m", f"{number}")) for n in range(3)])
            for number, key in enumerate(keys)
        ]
        await _hold_or_refuse(many_place, written, picky=True)

    async def test_roundtrip_of_hard_ids_and_marks(self, place: Place) -> None:
        [key] = place.keys(1)
        hard = sample(key)
        for number, name in enumerate(NAMES):
            marks = dict.fromkeys((name, *NAMES[number % 4 : number % 4 + 2]))
            hard.entries.append(samples.entry(name, number, tuple(marks)))
        async with place.store() as store:
            await write_all(store, [hard])
            found = (await read(store)).get(key)
            assert_same(store, found, hard)
            counts = (await infos(store))[key].marks
            for mark in {mark for entry in hard.entries for mark in entry.marks}:
                assert counts[mark] == sum(mark in entry.marks for entry in hard.entries)

    @pytest.mark.parametrize("summary", ['What was said: 😀 "quoted" \0 \ud800 it\'s', ""])
    async def test_roundtrip_of_summaries(self, place: Place, summary: str) -> None:
        [key] = place.keys(1)
        for name, text in ("lone surrogate", "\ud800"), ("null character", "\0"):
            if name in place.backend.refuses:
                summary = summary.replace(text, "")
        async with place.store() as store:
            await write(store, [sample(key, samples.entries(3), summary=summary)])
            memory = (await read(store))[key].memory
            info = (await infos(store))[key]
            if store.features.summaries:
                assert memory.summary == summary
                assert info.summary is bool(summary)
            else:
                assert memory.summary is None
                assert info.summary is None

    async def test_roundtrip_keeps_the_summary_where_none_is_given(self, place: Place) -> None:
        [key] = place.keys(1)
        async with place.store() as store:
            if not store.features.summaries:
                pytest.skip("has no place for summaries")
            await write(store, [sample(key, samples.entries(3), summary="before")])
            await write(store, [sample(key, samples.entries(2, start=3))], offset=3)
            assert (await read(store))[key].memory.summary == "before"
            await write(
                store, [sample(key, samples.entries(1, start=5), summary="after")], offset=5
            )
            assert (await read(store))[key].memory.summary == "after"

    async def test_roundtrip_of_expiry(self, many_place: Place) -> None:
        first, second = many_place.keys(2)
        async with many_place.store() as store:
            await write(store, [sample(first, samples.entries(3), ttl=5000.0)])
            await write(store, [sample(second, samples.entries(3))])
            found = await read(store)
            listed = await infos(store)
            assert found[second].memory.ttl is None
            assert listed[second].ttl is None
            if store.features.ttl:
                assert found[first].memory.ttl == pytest.approx(5000, abs=30)
                assert listed[first].ttl == pytest.approx(5000, abs=30)
            else:
                assert found[first].memory.ttl is None
                assert listed[first].ttl is None

    async def test_roundtrip_of_empty_memories(self, place: Place) -> None:
        keys = place.keys(3)
        written = [
            sample(key, samples.entries(2) if number == 1 else ())
            for number, key in enumerate(keys)
        ]
        async with place.store() as store:
            await write_all(store, written)
            listed = await infos(store)
            found = await read(store)
            assert set(listed) == set(found)
            if store.features.empty:
                assert set(found) == set(keys)
                assert listed[keys[0]].messages == 0
                assert found[keys[0]].entries == []
            else:
                assert set(found) == set(keys[1:2])

    async def test_roundtrip_of_repeated_ids(self, place: Place) -> None:
        keys = place.keys(2)
        one, two = samples.entry("one", 1), samples.entry("two", 2)
        again = samples.entry("one", 3, content="the same id, another message")
        twice = sample(keys[0], [one, two, again, one])
        written = [twice, *(sample(key, samples.entries(2)) for key in keys[1:])]
        async with place.store() as store:
            results = await write(store, written)
            found = await read(store)
            if store.features.duplicate_ids:
                assert_same(store, found.get(keys[0]), twice)
                assert (await infos(store))[keys[0]].repeated in (2, None)
            else:
                failure = results[keys[0]].failure
                assert failure is not None
                assert failure.code == "repeated-id"
                assert keys[0] not in found
            for other in written[1:]:
                assert_same(store, found.get(other.key), other)

    async def test_read_pages_stay_small_when_messages_grow(self, place: Place) -> None:
        if place.backend.largest:
            pytest.skip("memories do not grow so large")
        [key] = place.keys(1)
        text = "g" * 1_000_000
        grown = [samples.entry(f"z{n:03}", n, content=text) for n in range(30)]
        async with place.store() as store:
            await write_all(store, [sample(key, [*samples.entries(place.size(1100)), *grown])])
            largest = 0
            count = 0
            async for page in store.read(ALL):
                largest = max(largest, sum(len(entry.message) for entry in page.messages))
                count += len(page.messages)
            assert count == place.size(1100) + len(grown)
            assert largest < 20_000_000
