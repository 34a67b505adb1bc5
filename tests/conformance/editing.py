"""Changes for a store, and looks at what became of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage, WriteResult
from memctl.registry import make_store
from memctl.store import OpenMode, Store
from tests.conformance import samples
from tests.conformance.backends import Place
from tests.conformance.drive import assert_same, read, write_all
from tests.conformance.samples import Sample, sample

TTL = 100_000.0
"""Seconds; no test lasts so long."""


def gone(entry: StoredMessage) -> Change:
    return Change(entry.id, entry.marks)


def marked(entry: StoredMessage, *marks: str) -> Change:
    return Change(entry.id, entry.marks, marks)


def put(entry: StoredMessage, after: StoredMessage | None = None) -> Change:
    return Change(
        entry.id, None, entry.marks, entry.message, after.id if after else None, entry.position
    )


def with_marks(entry: StoredMessage, *marks: str) -> StoredMessage:
    return entry._replace(marks=marks)


def changing(place: Place, keys: Iterable[MemoryKey] = ()) -> Store:
    """A store of the place whose memories are changed, not yet opened."""
    store = make_store(place.location, OpenMode.CHANGE)
    store.resolve_names(keys)
    return store


def edits(memory: Memory | MemoryKey, changes: list[Change], size: int = 1000) -> list[Edit]:
    """The changes of one memory, so many in an Edit."""
    about = Memory(memory) if isinstance(memory, MemoryKey) else memory
    starts = range(0, len(changes), size) or [0]
    return [
        Edit(about, changes[start : start + size], start, start + size >= len(changes))
        for start in starts
    ]


async def stream(found: Iterable[Edit]) -> AsyncGenerator[Edit]:
    for one in found:
        yield one


async def edit(store: Store, found: Iterable[Edit]) -> dict[MemoryKey, WriteResult]:
    """Changes the memories; each must have exactly one WriteResult."""
    found = list(found)
    tallies: dict[MemoryKey, WriteResult] = {}
    for tally in [tally async for tally in store.edit(stream(found))]:
        assert tally.key not in tallies, f"a second WriteResult of {tally.key}"
        assert not tally.failure or not (tally.written or tally.deleted)
        tallies[tally.key] = tally
    assert set(tallies) == {one.memory.key for one in found}
    return tallies


async def edit_all(store: Store, key: MemoryKey, changes: list[Change], size: int = 1000) -> None:
    """Changes a memory, which must not fail."""
    tallies = await edit(store, edits(key, changes, size))
    deleted = sum(change.new is None for change in changes)
    assert tallies == {key: WriteResult(key, len(changes) - deleted, deleted)}


def assert_changed(tally: WriteResult) -> None:
    assert tally.failure is not None
    assert tally.failure.code == "changed", tally.failure
    assert tally.failure.message


async def assert_holds(place: Place, expected: Iterable[Sample]) -> None:
    """All that the place holds, seen by a new connection."""
    expected = list(expected)
    async with place.store(create=False) as store:
        store.resolve_names([one.key for one in expected])
        found = await read(store)
        kept = [one for one in expected if one.entries or store.features.empty]
        assert set(found) == {one.key for one in kept}
        for one in kept:
            assert_same(store, found[one.key], one)


async def filled(place: Place, *counts: int) -> list[Sample]:
    """Memories of so many messages, written; one at least."""
    keys = place.keys(len(counts))
    found = [sample(key, samples.entries(count)) for key, count in zip(keys, counts, strict=False)]
    async with place.store() as store:
        await write_all(store, found)
    return found


def mixture(
    entries: list[StoredMessage], new: list[StoredMessage]
) -> tuple[list[Change], list[StoredMessage]]:
    """Some of each change, three of five messages being changed, and what comes of them."""
    changes: list[Change] = []
    after: list[StoredMessage] = []
    fresh = iter(new)
    kept: StoredMessage | None = None
    for n, entry in enumerate(entries):
        match n % 5:
            case 1:
                changes.append(gone(entry))
                continue
            case 2:
                other = with_marks(entry, f"mark {n % 3}", "x")
                changes.append(marked(entry, *other.marks))
                after.append(other)
            case 3:
                after.append(entry)
                kept = entry
                another = next(fresh, None)
                if another:
                    changes.append(put(another, kept))
                    after.append(another)
            case _:
                after.append(entry)
    return changes, after
