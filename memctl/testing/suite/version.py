"""Tests of the versions of memories; the defaults of ``Store`` rely on ``Memory.version``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memctl.model import Memory, MemoryKey, WriteMode
from memctl.store import Store
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import SimpleStore
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import (
    assert_changed,
    assert_holds,
    changing,
    edit_all,
    filled,
    gone,
    marked,
    read,
    write,
)
from memctl.testing.samples import Sample, sample


async def memory_of(place: Place, key: MemoryKey) -> Memory:
    """Read and return the memory of a key; skip the test if the memory has no version."""
    async with place.store(create=False) as store:
        memory = (await read(store))[key].memory
    if memory.version is None:
        pytest.skip("sets no versions")
    return memory


class VersionTests:
    """Tests that a version changes with the memory, and that an old version is not replaced."""

    async def test_version_changes_with_the_memory(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        seen = [(await memory_of(place, one.key)).version]
        assert (await memory_of(place, one.key)).version == seen[0], "reading changes none"
        if samples.style().marks != frozenset():
            async with changing(place) as store:
                await edit_all(store, one.key, [marked(one.entries[0], "new")])
            seen.append((await memory_of(place, one.key)).version)
        async with place.store() as store:
            await write(store, [sample(one.key, samples.entries(1, start=50))], offset=6)
        seen.append((await memory_of(place, one.key)).version)
        for other in others:
            untouched = (await memory_of(place, other.key)).version
            async with changing(place) as store:
                await edit_all(store, one.key, [gone(one.entries[3])])
            assert (await memory_of(place, other.key)).version == untouched
        assert len(set(seen)) == len(seen)

    async def test_version_that_is_old_is_not_replaced(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        old = await memory_of(place, one.key)
        more = samples.entries(2, start=50)
        new = samples.entries(4, start=90)
        async with place.store() as store:
            await write(store, [sample(one.key, more)], offset=6)
            results = await write(store, [Sample(old, new)], WriteMode.REPLACE)
        assert_changed(results[one.key])
        await assert_holds(place, [sample(one.key, [*one.entries, *more]), *others])

    async def test_version_that_is_stored_is_replaced(self, place: Place) -> None:
        one, *others = await filled(place, 6, 3)
        memory = await memory_of(place, one.key)
        new = samples.entries(4, start=90)
        async with place.store() as store:
            results = await write(store, [Sample(memory, new)], WriteMode.REPLACE)
        assert results[one.key].failure is None
        await assert_holds(place, [sample(one.key, new), *others])

    async def test_version_of_a_memory_that_is_gone(self, many_place: Place) -> None:
        [one] = await filled(many_place, 6)
        memory = await memory_of(many_place, one.key)
        missing = many_place.keys(2)[1]
        async with many_place.store() as store:
            wrong = Sample(replace(memory, key=missing), samples.entries(2))
            assert_changed((await write(store, [wrong], WriteMode.REPLACE))[missing])
        await assert_holds(many_place, [one])

    async def test_version_lets_an_edit_keep_what_comes_meanwhile(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A message that an agent adds while the default ``edit`` runs is kept."""
        [one] = await filled(place, 6)
        await memory_of(place, one.key)
        more = samples.entries(1, start=50)
        async with changing(place) as store, place.store() as agent:
            if type(store).edit is not Store.edit:
                pytest.skip("edits in its own way")
            late = [sample(one.key, more)]
            plain = store.snapshot

            async def add() -> None:
                while late:
                    await write(agent, [late.pop()], offset=6)

            async def snapshot_then_add(key: MemoryKey) -> Snapshot:
                found = await plain(key)
                await add()
                return found

            if isinstance(store, SimpleStore):
                load = store.load

                async def load_then_add(key: MemoryKey) -> Snapshot | None:
                    found = await load(key)
                    await add()
                    return found

                monkeypatch.setattr(store, "load", load_then_add)
            monkeypatch.setattr(store, "snapshot", snapshot_then_add)
            await edit_all(store, one.key, [gone(one.entries[0])])
        assert not late
        await assert_holds(place, [sample(one.key, [*one.entries[1:], *more])])
