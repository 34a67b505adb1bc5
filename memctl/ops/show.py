"""Differences with the lines that differ: both stores are read again, for some at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import islice, zip_longest
from typing import BinaryIO, NamedTuple

from memctl import codec
from memctl.errors import Unavailable
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.ops import excerpts
from memctl.ops.differences import Difference
from memctl.selection import Selection
from memctl.store import Store

TOGETHER = 500
"""Differences that are looked up in one pass over each store."""

_BESIDE = ("summary", "expiry")


class _Kept(NamedTuple):
    """A message of one side: its marks, and where its text is."""

    marks: tuple[str, ...]
    start: int
    size: int


class _Side:
    """What one store has of some messages; their texts are in a file without a name."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._messages: dict[tuple[MemoryKey, str], list[_Kept]] = {}
        self.headers: dict[MemoryKey, Memory] = {}

    async def look_up(self, store: Store, found: list[Difference]) -> None:
        """Reads what these differences are about.

        Raises:
            MemctlError: as ``Store.read``.
        """
        wanted = {(one.key, one.id) for one in found if one.id}
        if wanted:
            keys, ids = zip(*wanted, strict=True)
            where = Selection(keys=frozenset(keys), ids=frozenset(ids))
            async with aclosing(store.read(where)) as pages:
                async for page in pages:
                    for entry in page.messages:
                        if (page.memory.key, entry.id) in wanted:
                            self._keep(page.memory.key, entry)
        beside = frozenset(one.key for one in found if one.code in _BESIDE)
        if beside:
            async with aclosing(store.headers(Selection(keys=beside))) as memories:
                async for memory in memories:
                    self.headers[memory.key] = memory

    def _keep(self, key: MemoryKey, entry: StoredMessage) -> None:
        text = entry.message
        if len(text) > excerpts.LARGEST:
            text = codec.canonical(text)  # by value, as it is compared
        try:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(text)
        except OSError as error:
            raise Unavailable(
                f"there is no room for what differs: {error.strerror}", "point TMPDIR to more"
            ) from error
        kept = _Kept(entry.marks, start, len(text))
        self._messages.setdefault((key, entry.id), []).append(kept)

    def messages(self, one: Difference) -> list[_Kept]:
        """All messages of an id, in their order."""
        return self._messages.get((one.key, one.id), [])

    def text(self, kept: _Kept | None) -> bytes | None:
        """The text of a message."""
        if kept is None:
            return None
        self._file.seek(kept.start)
        return self._file.read(kept.size)


async def with_lines(
    left: Store, right: Store, found: Iterable[Difference]
) -> AsyncGenerator[tuple[Difference, list[str]]]:
    """Each difference with its lines, as ``memctl.ops.excerpts`` has them.

    Raises:
        MemctlError: as ``Store.read``.
    """
    for some in _groups(found):
        with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as other:
            ours, theirs = _Side(one), _Side(other)
            await ours.look_up(left, some)
            await theirs.look_up(right, some)
            for difference in some:
                yield difference, list(_lines(difference, ours, theirs))


def _groups(found: Iterable[Difference]) -> Iterator[list[Difference]]:
    rest = iter(found)
    while some := list(islice(rest, TOGETHER)):
        yield some


def _lines(one: Difference, ours: _Side, theirs: _Side) -> Iterator[str]:
    match one.code:
        case "summary":
            sides = [_summary(side.headers.get(one.key)) for side in (ours, theirs)]
            yield from excerpts.of_texts(*sides)
        case "expiry":
            yield f"-{_expiry(ours.headers.get(one.key))}"
            yield f"+{_expiry(theirs.headers.get(one.key))}"
        case "memory-missing":
            yield f"-{one.message}"
        case "memory-extra":
            yield f"+{one.message}"
        case "order":
            yield f" {one.message}"
        case "marks":
            for before, after in zip_longest(ours.messages(one), theirs.messages(one)):
                if before and after and before.marks != after.marks:
                    yield f"-marks: {_marks(before)}"
                    yield f"+marks: {_marks(after)}"
        case _:
            for before, after in zip_longest(ours.messages(one), theirs.messages(one)):
                yield from _message(one, ours, theirs, before, after)


def _message(
    one: Difference, ours: _Side, theirs: _Side, before: _Kept | None, after: _Kept | None
) -> Iterator[str]:
    """The lines of a message that is on one side, or differs."""
    alone = (before is None) != (after is None)
    if alone != (one.code != "content"):
        return
    kept = before or after
    if alone and kept is not None and kept.marks:
        yield f"{'-' if before else '+'}marks: {_marks(kept)}"
    yield from excerpts.of_messages(ours.text(before), theirs.text(after))


def _summary(memory: Memory | None) -> str:
    return (memory.summary if memory else None) or ""


def _expiry(memory: Memory | None) -> str:
    if memory is None or memory.ttl is None:
        return "never expires"
    return f"expires in {memory.ttl:.0f} seconds"


def _marks(kept: _Kept) -> str:
    return ", ".join(kept.marks) or "none"
