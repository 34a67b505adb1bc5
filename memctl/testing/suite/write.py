"""Tests that a write stores each memory whole or not at all, even if other memories fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from memctl.model import MemoryKey, WriteMode, WriteResult
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    assert_same,
    case,
    changing,
    edit,
    edits,
    gone,
    infos,
    put,
    read,
    write,
    write_all,
)
from memctl.testing.samples import sample


class WriteTests:
    """Tests that a write stores each memory whole or not at all, even if other memories fail."""

    async def test_write_appends(self, place: Place) -> None:
        keys = place.keys(2)
        before, after = place.size(1100), place.size(1300)
        async with place.store() as store:
            await write_all(store, [sample(key, samples.entries(before)) for key in keys])
            for key in keys:
                more = [sample(key, samples.entries(after, start=before))]
                results = await write(store, more, offset=before)
                assert results[key] == WriteResult(key, written=after)
            found = await read(store)
            for key in keys:
                assert_same(store, found.get(key), sample(key, samples.entries(before + after)))

    async def test_results_that_an_undo_needs_are_told_before_the_commit(
        self, place: Place
    ) -> None:
        told: list[WriteResult] = []
        found: list[WriteResult] = []
        keys = place.keys(2)
        async with place.store() as store:
            with store.foreseen(told.extend):
                found += (
                    await write(store, [sample(key, samples.entries(3)) for key in keys])
                ).values()
        async with changing(place, keys) as store:
            entries = (await read(store))[keys[0]].entries
            with store.foreseen(told.extend):
                for changes in [gone(one) for one in entries], [put(one) for one in entries[:1]]:
                    found += (await edit(store, edits(keys[0], changes))).values()
        assert not any(one.failure for one in found)
        foreseen = [(one, one.before, one.shared_ids) for one in told]
        for one in found:
            if one.before or one.shared_ids:
                assert (one, one.before, one.shared_ids) in foreseen

    @pytest.mark.parametrize("count", [2, 1500])
    async def test_write_at_the_wrong_offset_changes_nothing(
        self, place: Place, count: int
    ) -> None:
        keys = place.keys(3)
        before = [sample(key, samples.entries(3)) for key in keys]
        more = sample(keys[0], samples.entries(count, start=10))
        async with place.store() as store:
            await write_all(store, before)
            for offset in (0, 2, 4, 2000):
                with case(offset):
                    failure = (await write(store, [more], offset=offset))[keys[0]].failure
                    assert failure is not None
                    assert failure.code == "changed"
                    found = await read(store)
                    assert set(found) == set(keys)
                    for one in before:
                        assert_same(store, found[one.key], one)

    async def test_write_at_an_offset_of_a_missing_memory(self, place: Place) -> None:
        [key] = place.keys(1)
        async with place.store() as store:
            results = await write(store, [sample(key, samples.entries(3))], offset=5)
            failure = results[key].failure
            assert failure is not None
            assert failure.code == "changed"
            assert await read(store) == {}

    async def test_write_replaces(self, place: Place) -> None:
        keys = place.keys(3)
        others = [sample(key, samples.entries(place.size(1200))) for key in keys[1:]]
        async with place.store() as store:
            await write_all(store, others)
            before = 0
            for start, after in enumerate(map(place.size, (5, 3, 1234, 4))):
                with case((before, after)):
                    new = sample(keys[0], samples.entries(after, start=start))
                    results = await write(store, [new], WriteMode.REPLACE)
                    assert results[keys[0]] == WriteResult(keys[0], written=after, deleted=before)
                    found = await read(store)
                    for one in (new, *others):
                        assert_same(store, found.get(one.key), one)
                before = after

    async def test_write_replaces_with_nothing(self, place: Place) -> None:
        keys = place.keys(2)
        count = place.size(1234)
        async with place.store() as store:
            await write_all(store, [sample(key, samples.entries(count)) for key in keys])
            results = await write(store, [sample(keys[0])], WriteMode.REPLACE)
            assert results[keys[0]] == WriteResult(keys[0], deleted=count)
            found = await read(store)
            assert not found.get(keys[0], sample(keys[0])).entries
            assert (keys[0] in found) == (store.features.empty)
            for key in keys[1:]:
                assert_same(store, found.get(key), sample(key, samples.entries(count)))

    @pytest.mark.parametrize("count", [2, 1500])
    async def test_write_of_an_existing_id(self, place: Place, count: int) -> None:
        keys = place.keys(2)
        before = [sample(key, samples.entries(3)) for key in keys]
        again = sample(keys[0], [*samples.entries(count, start=3), samples.entry("m0000001", 9)])
        async with place.store() as store:
            await write_all(store, before)
            results = await write(store, [again], offset=3)
            found = await read(store)
            if store.features.duplicate_ids:
                both = sample(keys[0], [*before[0].entries, *again.entries])
                assert_same(store, found[keys[0]], both)
            else:
                failure = results[keys[0]].failure
                assert failure is not None
                assert failure.code == "repeated-id"
                assert_same(store, found.get(keys[0]), before[0])
            for one in before[1:]:
                assert_same(store, found.get(one.key), one)

    @pytest.mark.parametrize("mode", list(WriteMode))
    async def test_write_failures_harm_no_other_memory(
        self, many_place: Place, mode: WriteMode
    ) -> None:
        """Memories that the store refuses, small and large, come first and in the middle."""
        keys = many_place.keys(9)
        part = MemoryKey("user", "session", "agent.memory")
        large = many_place.size(1500)
        good = [sample(key, samples.entries(large if n == 3 else 3)) for n, key in enumerate(keys)]
        bad = [
            sample(
                keys[1]._replace(session="twice"), [samples.entry("t", 1), samples.entry("t", 2)]
            ),
            sample(
                keys[1]._replace(session="twice and long"),
                [*samples.entries(large), samples.entry("m0000000", 3)],
            ),
        ]
        async with many_place.store() as store:
            if store.features.duplicate_ids:
                good += bad
                bad = []
            if not store.features.parts:
                bad.append(sample(part, samples.entries(2)))
            mixed = [*bad[:1], *good[:4], *bad[1:], *good[4:]]
            results = await write(store, mixed, mode)
            codes = {key: result.failure.code for key, result in results.items() if result.failure}
            assert codes == {
                one.key: "bad-name" if one.key == part else "repeated-id" for one in bad
            }
            found = await read(store)
            assert set(found) == {one.key for one in good}
            for one in good:
                assert_same(store, found[one.key], one)

    async def test_write_of_many_small_memories(self, many_place: Place) -> None:
        keys = many_place.keys(many_place.backend.many)
        many = [sample(key, samples.entries(3, start=n)) for n, key in enumerate(keys)]
        async with many_place.store() as store:
            await write_all(store, many)
            found = await read(store)
            assert set(found) == set(keys)
            for one in many:
                assert_same(store, found[one.key], one)
            listed = await infos(store)
            assert {key: info.messages for key, info in listed.items()} == dict.fromkeys(keys, 3)
            await write(
                store, [sample(key, samples.entries(1, start=9000)) for key in keys], offset=3
            )
            listed = await infos(store)
            assert {key: info.messages for key, info in listed.items()} == dict.fromkeys(keys, 4)

    async def test_write_by_several_at_once(self, place: Place) -> None:
        """Several writers each write different sessions, as ``migrate --jobs`` does."""
        keys = place.keys(40)
        written = [
            sample(key, samples.entries(place.size(1200) if n % 9 == 0 else 5))
            for n, key in enumerate(keys)
        ]
        async with place.store() as store:
            if not store.features.parallel:
                pytest.skip("is written by one at a time")
            parts = await asyncio.gather(*(write(store, written[n::4]) for n in range(4)))
            assert not [result for part in parts for result in part.values() if result.failure]
            found = await read(store)
            assert set(found) == set(keys)
            for one in written:
                assert_same(store, found[one.key], one)

    async def test_write_of_one_memory_by_two_at_once(self, place: Place) -> None:
        """The slower writer finds an unexpected number of messages and fails."""
        [key] = place.keys(1)
        first = sample(key, samples.entries(place.size(1500)))
        second = sample(key, samples.entries(place.size(1500), start=5000))
        async with place.store() as store, place.store() as other:
            if not store.features.parallel:
                pytest.skip("is written by one at a time")
            ended = await asyncio.gather(
                write(store, [first]), write(other, [second]), return_exceptions=True
            )
            results = [end[key] for end in ended if not isinstance(end, BaseException)]
            assert [end for end in ended if isinstance(end, BaseException)] == []
            good = [
                one
                for one, result in zip((first, second), results, strict=True)
                if not result.failure
            ]
            assert len(good) == 1
            assert_same(store, (await read(store)).get(key), good[0])

    async def test_write_of_pages_of_one_message(self, place: Place) -> None:
        [key] = place.keys(1)
        one = sample(key, samples.entries(30))
        async with place.store() as store:
            await write(store, [one], size=1)
            assert_same(store, (await read(store)).get(key), one)

    async def test_write_of_many_pages_takes_a_time_that_is_linear(self, place: Place) -> None:
        """A page that is appended to a memory takes no longer after a hundred other pages."""
        [key] = place.keys(1)
        size, start = max(1, place.size(20_000) // 100), 0
        times: list[float] = []
        async with place.store() as store:
            for pages_ in (1, 10, 100):
                more = [sample(key, samples.entries(pages_ * size, start=start))]
                begin = time.process_time()
                results = await write(store, more, offset=start, size=size)
                times.append(time.process_time() - begin)
                assert results[key].written == pages_ * size
                start += pages_ * size
        assert times[2] < 100 * max(times[1], 0.01), times  # ten times, and much noise
