"""Uses a store, and holds it to the order of pages and tallies on the way.

Streams are read to their end before anything is asserted: one that a failing test left open would
get into the way of the next.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable

from memctl import codec
from memctl.model import (
    PAGE_ENTRIES,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Store
from tests.conformance.samples import Sample

ALL = Selection()


async def pages(
    samples: Iterable[Sample], *, offset: int = 0, size: int = 700
) -> AsyncGenerator[Page]:
    """The memories in pages of at most ``size`` messages, behind ``offset`` others."""
    for sample in samples:
        starts = range(0, len(sample.entries), size) or [0]
        for start in starts:
            chunk = sample.entries[start : start + size]
            yield Page(sample.memory, chunk, offset + start, start + size >= len(sample.entries))


async def write(
    store: Store,
    samples: Iterable[Sample],
    mode: WriteMode = WriteMode.ADD,
    *,
    offset: int = 0,
    size: int = 700,
) -> dict[MemoryKey, WriteResult]:
    """Writes the memories; each must have exactly one WriteResult."""
    samples = list(samples)
    tallies: dict[MemoryKey, WriteResult] = {}
    source = pages(samples, offset=offset, size=size)
    for tally in [tally async for tally in store.write(source, mode)]:
        assert tally.key not in tallies, f"a second WriteResult of {tally.key}"
        assert not tally.failure or not tally.written, "a memory that failed is not written"
        tallies[tally.key] = tally
    assert set(tallies) == {sample.key for sample in samples}
    return tallies


async def write_all(store: Store, samples: Iterable[Sample]) -> None:
    """Writes the memories, of which none may fail."""
    samples = list(samples)
    tallies = await write(store, samples)
    for sample in samples:
        tally = tallies[sample.key]
        assert tally.failure is None, tally
        assert tally.written == len(sample.entries)


async def read(store: Store, where: Selection = ALL) -> dict[MemoryKey, Sample]:
    """What the store gives for the selection, its pages being in order."""
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
    """What ``Selection`` itself picks out of everything."""
    found: dict[MemoryKey, Sample] = {}
    async for page in where.apply(pages(one for one in everything if where.has_key(one.key))):
        found.setdefault(page.memory.key, Sample(page.memory)).entries.extend(page.messages)
    return found


async def infos(store: Store, where: Selection = ALL) -> dict[MemoryKey, MemoryInfo]:
    """The catalogue; each memory must be in it once."""
    found: dict[MemoryKey, MemoryInfo] = {}
    for info in [info async for info in store.list_memories(where)]:
        assert info.key not in found, f"{info.key} is listed twice"
        found[info.key] = info
    return found


def plain(entry: StoredMessage, store: Store) -> tuple[str, str, tuple[str, ...]]:
    """What must come back of a message: its id, its value with the order of keys, its marks."""
    in_order = store.features.mark_order
    marks = entry.marks if in_order else tuple(sorted(entry.marks))
    return entry.id, json.dumps(codec.loads(entry.message)), marks


def assert_same(store: Store, found: Sample | None, expected: Sample) -> None:
    """The messages are the same, in the same order."""
    assert found is not None, f"{expected.key} is missing"
    assert [entry.id for entry in found.entries] == [entry.id for entry in expected.entries]
    for one, other in zip(found.entries, expected.entries, strict=True):
        assert plain(one, store) == plain(other, store)
        one.message.decode()
