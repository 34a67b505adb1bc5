"""Changes of states, and looks at what became of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from memctl.model import Change, Edit, Memory, MemoryKey, StoredMessage, WriteResult
from memctl.registry import make_store, parse
from memctl.store import OpenMode, Store

KEY = MemoryKey("u", "s")


def store_of(text: str | Path, /, **options: str) -> Store:
    """A store to be changed, as a user of memctl names it."""
    found = parse(str(text))
    found.options.update(options)
    return make_store(found, OpenMode.CHANGE)


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


async def edited(store: Store, *edits: Edit) -> list[WriteResult]:
    async def stream() -> AsyncGenerator[Edit]:
        for one in edits:
            yield one

    return [tally async for tally in store.edit(stream())]


async def edit_file(path: Path, /, *edits: Edit, **options: str) -> list[WriteResult]:
    async with store_of(path, **options) as store:
        return await edited(store, *edits)


def gone(*ids: str) -> list[Change]:
    return [Change(id, ()) for id in ids]


def put(one: StoredMessage, after: str | None = None) -> Change:
    return Change(one.id, None, one.marks, one.message, after)


def changed(tally: WriteResult) -> bool:
    return tally.failure is not None and tally.failure.code == "changed"
