"""States for tests: any messages, documents made by hand, written and read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from memctl.model import (
    Change,
    Edit,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.states.file import StateFileStore
from tests.support.places import edited

ALL = Selection()
KEY = MemoryKey("u", "s")
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
NASTY = st.sampled_from(['}, ["x"]], [{', "]], [", "}, []],", '"', "\\", "\0", "\ud800", "hint"])
JSON = st.recursive(
    st.none() | st.integers() | st.floats() | TEXTS | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.builds(
    lambda first, id, more: {
        **first,
        "id": id,
        "name": "n",
        "role": "user",
        **more,
    },
    st.just({}) | st.dictionaries(NASTY, JSON, max_size=1),
    TEXTS | NASTY,
    st.dictionaries(st.sampled_from(["content", "metadata", "x", "}, ["]), JSON, max_size=3),
)
PAIRS = st.tuples(MESSAGES, st.lists(TEXTS | NASTY, unique=True, max_size=3)).map(list)


def message(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "name": "n", "role": "user", "content": "c", "timestamp": "t" + id, **fields}


def entry(id: str, *marks: str, **fields: Any) -> StoredMessage:
    return StoredMessage(id, json.dumps(message(id, **fields)).encode(), marks)


def dump(value: Any, indent: int | None = None) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "surrogatepass")


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8", "surrogatepass"))


def store_of(path: Path, /, *, create: bool = False, **options: str) -> StateFileStore:
    found = parse(str(path))
    return StateFileStore(
        replace(found, options=options), OpenMode.CREATE if create else OpenMode.READ
    )


async def read(
    path: Path, where: Selection = ALL, /, **options: str
) -> dict[MemoryKey, tuple[str | None, list[StoredMessage]]]:
    found: dict[MemoryKey, tuple[str | None, list[StoredMessage]]] = {}
    async with store_of(path, **options) as store:
        async for page in store.read(where):
            _, entries = found.setdefault(page.memory.key, (page.memory.summary, []))
            assert len(entries) == page.offset
            entries += page.messages
    return found


async def only(path: Path, /, **options: str) -> tuple[str | None, list[StoredMessage]]:
    [found] = (await read(path, **options)).values()
    return found


async def one_page(page: Page) -> AsyncGenerator[Page]:
    yield page


async def write(
    path: Path,
    entries: Iterable[StoredMessage] = (),
    /,
    *,
    mode: WriteMode = WriteMode.ADD,
    offset: int = 0,
    key: MemoryKey = KEY,
    summary: str | None = None,
    **options: str,
) -> WriteResult:
    async with store_of(path, create=True, **options) as store:
        page = Page(Memory(key, summary), list(entries), offset)
        [result] = [result async for result in store.write(one_page(page), mode)]
        return result


def editable(text: str | Path, /, **options: str) -> Store:
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


async def edit_file(path: Path, /, *edits: Edit, **options: str) -> list[WriteResult]:
    async with editable(path, **options) as store:
        return await edited(store, *edits)


def gone(*ids: str) -> list[Change]:
    return [Change(id, ()) for id in ids]


def put(one: StoredMessage, after: str | None = None) -> Change:
    return Change(one.id, None, one.marks, one.message, after)


def changed(result: WriteResult) -> bool:
    return result.failure is not None and result.failure.code == "changed"
