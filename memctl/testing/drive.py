"""Calls of a store that also check the order of pages and results.

The functions read a stream to its end before the first assertion: a failing test must not leave an
open stream to the next test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from memctl.dialects.registry import DIALECTS
from memctl.json import jsonio
from memctl.model import (
    PAGE_ENTRIES,
    Change,
    Edit,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.samples import Sample, sample

ALL = Selection()


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case of a test that failed: a test tries many cases on one memory."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name!r}")
        raise


async def pages(
    memories: Iterable[Sample], *, offset: int = 0, size: int = 700
) -> AsyncGenerator[Page]:
    """Yield memories in pages of at most ``size`` messages.

    ``offset`` is the offset of each memory's first page, 0 for a new memory.
    """
    for one in memories:
        starts = range(0, len(one.entries), size) or [0]
        for start in starts:
            chunk = one.entries[start : start + size]
            yield Page(one.memory, chunk, offset + start, start + size >= len(one.entries))


async def write(
    store: Store,
    memories: Iterable[Sample],
    mode: WriteMode = WriteMode.ADD,
    *,
    offset: int = 0,
    size: int = 700,
) -> dict[MemoryKey, WriteResult]:
    """Write memories, assert that each has exactly one WriteResult, and return the results.

    ``offset`` is the offset of each memory's first page, and ``size`` the maximum number of
    messages in a page.
    """
    memories = list(memories)
    results: dict[MemoryKey, WriteResult] = {}
    source = pages(memories, offset=offset, size=size)
    for result in [result async for result in store.write(source, mode)]:
        assert result.key not in results, f"a second WriteResult of {result.key}"
        assert not result.failure or not result.written, "a memory that failed is not written"
        results[result.key] = result
    assert set(results) == {one.key for one in memories}
    return results


async def write_all(store: Store, memories: Iterable[Sample]) -> None:
    """Write memories; assert that all messages of each are written."""
    memories = list(memories)
    results = await write(store, memories)
    for one in memories:
        result = results[one.key]
        assert result.failure is None, result
        assert result.written == len(one.entries)


async def write_into(place: Place, memories: Iterable[Sample], *, needs: str = "") -> None:
    """Write memories with a new connection; assert that all messages of each are written.

    Skips the test if ``needs`` names a feature that the store lacks.
    """
    async with place.store() as store:
        if needs and not getattr(store.features, needs):
            pytest.skip(f"the store lacks the feature {needs!r}")
        await write_all(store, memories)


async def read(store: Store, where: Selection = ALL) -> dict[MemoryKey, Sample]:
    """Read and return the selected memories; assert that their pages come in order."""
    found: dict[MemoryKey, Sample] = {}
    open_key: MemoryKey | None = None
    for page in [page async for page in store.read(where)]:
        key = page.memory.key
        if open_key is None:
            assert key not in found, f"{key} comes a second time"
            found[key] = Sample(page.memory)
            open_key = key
        assert key == open_key, f"{key} before the last page of {open_key}"
        assert page.memory == found[key].memory
        assert page.offset == len(found[key].entries)
        assert len(page.messages) <= 2 * PAGE_ENTRIES
        found[key].entries += page.messages
        if page.last:
            open_key = None
    assert open_key is None, f"no last page of {open_key}"
    return found


async def picked(everything: Iterable[Sample], where: Selection) -> dict[MemoryKey, Sample]:
    """Return the memories that ``where`` selects from ``everything``, with the selected messages.

    The selection is made by ``Selection.apply``, without a store.
    """
    found: dict[MemoryKey, Sample] = {}
    some = pages(one for one in everything if where.has_key(one.key))
    async for page in where.apply(some, DIALECTS[samples.style().dialect]):
        found.setdefault(page.memory.key, Sample(page.memory)).entries.extend(page.messages)
    return found


async def infos(store: Store, where: Selection = ALL) -> dict[MemoryKey, MemoryInfo]:
    """Return the catalog of the selected memories; assert that each is listed once."""
    found: dict[MemoryKey, MemoryInfo] = {}
    for info in [info async for info in store.list_memories(where)]:
        assert info.key not in found, f"{info.key} is listed twice"
        found[info.key] = info
    return found


def plain(entry: StoredMessage, store: Store) -> tuple[str, str, tuple[str, ...]]:
    """Return a message's id, JSON text and marks, for comparison.

    The order of fields or marks is normalized if the store does not keep the order.
    """
    in_order = store.features.mark_order
    marks = entry.marks if in_order else tuple(sorted(entry.marks))
    small = len(entry.message) < 1000
    value = _cached_value if small else _value
    return entry.id, value(entry.message, samples.style().in_order), marks


def _value(message: bytes, in_order: bool) -> str:
    return json.dumps(jsonio.loads(message), sort_keys=not in_order)


# Cached, because every test reads the same samples.
_cached_value = lru_cache(20_000)(_value)


def assert_same(store: Store, found: Sample | None, expected: Sample) -> None:
    """Assert that a read memory has the expected messages in the expected order."""
    assert found is not None, f"{expected.key} is missing"
    assert [entry.id for entry in found.entries] == [entry.id for entry in expected.entries]
    for one, other in zip(found.entries, expected.entries, strict=True):
        # Parse only if the texts differ: parsing is slow.
        if (one.message, one.marks) != (other.message, other.marks):
            assert plain(one, store) == plain(other, store)
            one.message.decode()


TTL = 100_000.0
"""An expiry in seconds, longer than any test."""


def gone(entry: StoredMessage) -> Change:
    return Change(entry.id, entry.marks)


def marked(entry: StoredMessage, *marks: str) -> Change:
    return Change(entry.id, entry.marks, samples.possible(marks))


def put(entry: StoredMessage, after: StoredMessage | None = None) -> Change:
    return Change(
        entry.id, None, entry.marks, entry.message, after.id if after else None, entry.position
    )


def with_marks(entry: StoredMessage, *marks: str) -> StoredMessage:
    return entry._replace(marks=samples.possible(marks))


def changing(place: Place, keys: Iterable[MemoryKey] = ()) -> Store:
    """Return an unopened store that changes existing memories.

    ``keys`` are memories whose names the store may need to know beforehand.
    """
    store = place.store(change=True)
    store.resolve_names(keys)
    return store


def edits(memory: Memory | MemoryKey, changes: list[Change], size: int = 1000) -> list[Edit]:
    """Return the changes of one memory as ``Edit`` objects of at most ``size`` changes each."""
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
    """Apply edits, assert that each memory has exactly one WriteResult, and return the results."""
    found = list(found)
    results: dict[MemoryKey, WriteResult] = {}
    for result in [result async for result in store.edit(stream(found))]:
        assert result.key not in results, f"a second WriteResult of {result.key}"
        assert not result.failure or not (result.written or result.deleted)
        results[result.key] = result
    assert set(results) == {one.memory.key for one in found}
    return results


async def edit_all(store: Store, key: MemoryKey, changes: list[Change], size: int = 1000) -> None:
    """Apply changes to a memory; assert that all are made.

    ``size`` is the maximum number of changes in an ``Edit``.
    """
    results = await edit(store, edits(key, changes, size))
    deleted = sum(change.new is None for change in changes)
    assert results == {key: WriteResult(key, len(changes) - deleted, deleted)}


def assert_changed(result: WriteResult) -> None:
    assert result.failure is not None
    assert result.failure.code == "changed", result.failure
    assert result.failure.message


async def assert_holds(place: Place, expected: Iterable[Sample]) -> None:
    """Assert that the store holds exactly the expected memories, read with a new connection."""
    expected = list(expected)
    async with place.store(create=False) as store:
        store.resolve_names([one.key for one in expected])
        found = await read(store)
        kept = [one for one in expected if one.entries or store.features.empty]
        assert set(found) == {one.key for one in kept}
        for one in kept:
            assert_same(store, found[one.key], one)


async def filled(place: Place, *counts: int) -> list[Sample]:
    """Write one memory for each count, with this number of messages; return the memories.

    A store for a single memory gets only the first.
    """
    keys = place.keys(len(counts))
    found = [sample(key, samples.entries(count)) for key, count in zip(keys, counts, strict=False)]
    await write_into(place, found)
    return found


def memories_of_hard_names(place: Place) -> list[Sample]:
    """Return memories to write, with names that are hard to store or look alike.

    Several users have a session of the same name.  A store for a single memory gets only one.
    """
    [key] = place.keys(1)
    messages = [
        samples.entry(name, marks=(name, "hint") if n % 2 else (name,))
        for n, name in enumerate(samples.NAMES)
    ]
    found = [sample(key, messages)]
    if place.backend.only:
        return found
    for name in samples.NAMES:
        found.append(sample(MemoryKey(name, f"of {name}"), messages))
        found.append(sample(MemoryKey(f"user of {name}", name), messages[:5]))
    sharing = ("a", "b", "A", "a ", "a-shared", "", "-", "*", "%", "_", "[a]")
    found += [sample(MemoryKey(user, "shared"), samples.entries(5)) for user in sharing]
    # Keys and ids whose row ids can be split in several ways.
    found.append(sample(MemoryKey("u", "s"), [samples.entry(id, 1) for id in ("s-m", "u-s-m")]))
    found.append(sample(MemoryKey("u-s", "s"), [samples.entry("k", 1)]))
    found.append(sample(MemoryKey("-", "-"), [samples.entry("---", 1), samples.entry("", 2)]))
    return found


def mixture(
    entries: list[StoredMessage], new: list[StoredMessage]
) -> tuple[list[Change], list[StoredMessage]]:
    """Return changes of many kinds to a memory, and the messages that it has after the changes.

    The memory has the messages ``entries``.  The changes delete messages, set marks, and insert
    messages of ``new``.
    """
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


Outline = list[tuple[MemoryKey, str | None, list[tuple[str, tuple[str, ...], int | None]]]]


async def outline(store: Store, where: Selection, *, read: bool) -> Outline:
    """Return the outline of the selected memories; assert that their pages come in order.

    With ``read``, the outline is made from ``Store.read``, otherwise from ``Store.outline``.
    """
    found: Outline = []
    pages = store.read(where) if read else store.outline(where)
    last = True
    for page in [page async for page in pages]:
        if last:
            assert page.offset == 0
            found.append((page.memory.key, page.memory.summary, []))
        key, _, entries = found[-1]
        assert page.memory.key == key
        assert page.offset == len(entries)
        entries += [(entry.id, entry.marks, entry.position) for entry in page.messages]
        last = page.last
    assert last
    return found
