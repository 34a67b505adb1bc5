"""Changes of states, and looks at what became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from memctl import location
from memctl.model import Change, Edit, Entry, Memory, MemoryKey, Tally
from memctl.registry import make_store
from memctl.store import Store

KEY = MemoryKey("u", "s")


def store_of(text: str | Path, /, **options: str) -> Store:
    """A store to be changed, as a user of memctl names it."""
    found = location.parse(str(text))
    found.options.update(options)
    return make_store(found, change=True)


def edit_of(changes: Iterable[Change], key: MemoryKey = KEY, **about: Any) -> Edit:
    expected = about.pop("expected", None)
    return Edit(Memory(key, **about), list(changes), summary=expected)


def paged(edit: Edit, size: int) -> list[Edit]:
    """The same edit in pages."""
    starts = range(0, len(edit.changes), size) or [0]
    return [
        Edit(edit.memory, edit.changes[at : at + size], at, at + size >= len(edit.changes))
        for at in starts
    ]


async def edited(store: Store, *edits: Edit) -> list[Tally]:
    async def stream() -> AsyncIterator[Edit]:
        for one in edits:
            yield one

    return [tally async for tally in store.edit(stream())]


async def edit_file(path: Path, /, *edits: Edit, **options: str) -> list[Tally]:
    async with store_of(path, **options) as store:
        return await edited(store, *edits)


def gone(*ids: str) -> list[Change]:
    return [Change(id, ()) for id in ids]


def put(one: Entry, after: str | None = None) -> Change:
    return Change(one.id, None, one.marks, one.message, after)


def changed(tally: Tally) -> bool:
    return tally.failure is not None and tally.failure.code == "changed"
