"""Tests that the shards of a store are disjoint and together the whole, however it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import case, infos, outline, read, write
from memctl.testing.samples import Sample, sample, several
from memctl.testing.suite.outlines import memories

_SHARDS = [Shard(number, 3) for number in range(3)]


async def _read(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    # The time to expiry counts down, and a version says nothing about the contents.
    return {key: found.entries for key, found in (await read(store, where)).items()}


async def _outline(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    return {key: rest for key, *rest in await outline(store, where, read=False)}


async def _infos(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    return {key: info.messages for key, info in (await infos(store, where)).items()}


async def _headers(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    return {memory.key: bool(memory.summary) async for memory in store.headers(where)}


async def _keys(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    return {key: None async for key in store.list_keys(where)}


async def _names(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    return {key: None async for key in store.names(where)}


async def _messages(store: Store, where: Selection) -> dict[MemoryKey, Any]:
    found: dict[MemoryKey, Any] = {}
    messages = store.find_messages(where, lambda texts: range(len(texts)))
    for key, entry in [pair async for pair in messages]:
        found.setdefault(key, []).append(entry.id)
    return {key: sorted(ids) for key, ids in found.items()}


_WAYS: Mapping[str, Callable[[Store, Selection], Awaitable[dict[MemoryKey, Any]]]] = {
    "read": _read,
    "outline": _outline,
    "list_memories": _infos,
    "headers": _headers,
    "list_keys": _keys,
    "names": _names,
    "find_messages": _messages,
}


class ShardTests:
    """Tests that the shards of a store are disjoint and together the whole, however it is read."""

    async def test_shards_are_disjoint_and_the_whole(self, make_place: Callable[[], Place]) -> None:
        place = make_place()
        async with place.store() as store:
            await write(store, self._memories(place, store))
            await write(store, [sample(samples.key(7))] if store.features.empty else [])
            for name, way in _WAYS.items():
                with case(name):
                    whole = await way(store, Selection())
                    together: dict[MemoryKey, Any] = {}
                    for shard in _SHARDS:
                        found = await way(store, Selection(shard=shard))
                        assert all(map(shard.has, found)), shard
                        assert together.keys().isdisjoint(found)
                        together |= found
                    assert together == whole
                    assert whole

    def _memories(self, place: Place, store: Store) -> list[Sample]:
        if not store.dialect.facts:
            return memories(place)
        return several(place.keys(6), 3)
