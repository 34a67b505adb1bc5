"""Helpers of the tests of changing commands, for places of every store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from memctl.journal.lines import unsealed
from memctl.model import Edit, MemoryKey, StoredMessage, WriteResult
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Record, Store
from memctl.testing import Place
from memctl.testing.drive import read, stream, write
from memctl.testing.samples import Sample, sample


def runs_folder() -> Path:
    """Return the folder of the runs with their changes."""
    return Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs"


def runs_kept() -> list[Path]:
    """Return the folders of the kept runs."""
    return [path for path in runs_folder().iterdir() if path.is_dir()]


Held = dict[MemoryKey, tuple[str | None, bool, list[tuple[str, tuple[str, ...], bytes]]]]


def held(place: Place) -> Held:
    """Return of each memory the summary, whether it expires, and ids, marks and texts."""

    async def look() -> Held:
        async with make_store(place.location) as store:
            return {
                key: (
                    one.memory.summary,
                    one.memory.ttl is not None,
                    [
                        (entry.id, tuple(sorted(entry.marks)), entry.message)
                        for entry in one.entries
                    ],
                )
                for key, one in (await read(store)).items()
                if one.entries
            }

    return asyncio.run(look())


def ids(place: Place, key: MemoryKey) -> list[str]:
    """Return the ids of the messages of a memory, in order."""
    return [id for id, _, _ in held(place).get(key, (None, False, []))[2]]


def put(place: Place, memories: Iterable[Sample]) -> None:
    """Write new memories."""

    async def fill() -> None:
        async with place.store() as store:
            results = await write(store, memories)
            assert not any(result.failure for result in results.values()), results

    asyncio.run(fill())


def append(place: Place, key: MemoryKey, entries: list[StoredMessage]) -> None:
    """Add messages at the end of a memory, as an agent does."""

    async def add() -> None:
        async with place.store() as store:
            found = await read(store, Selection(keys=frozenset({key})))
            offset = len(found[key].entries) if key in found else 0
            results = await write(store, [sample(key, entries)], offset=offset)
            assert not results[key].failure

    asyncio.run(add())


async def edited(store: Store, *edits: Edit) -> list[WriteResult]:
    """Change memories by edits, and return the results."""
    return [result async for result in store.edit(stream(edits))]


def texts_in(value: Any) -> str:
    """Return all texts of a JSON value in one text."""
    match value:
        case str():
            return value
        case dict():
            return "\n".join(map(texts_in, value.values()))
        case list():
            return "\n".join(map(texts_in, value))
    return ""


def quarantined(path: str) -> str:
    """Return the texts of a quarantine file."""
    lines = Path(path).read_bytes().splitlines()
    return "\n".join(texts_in(unsealed(line)) for line in lines)


class Notes:
    """The notes of a repair, as they would come back from a file."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def __call__(self, record: Record) -> None:
        self.records.append(json.loads(json.dumps(record)))

    async def reversed(self) -> AsyncGenerator[Record]:
        for record in reversed(self.records):
            yield record
