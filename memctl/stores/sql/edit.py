"""Changing memories that are there: many small ones in a transaction, a large one in its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import Change, Edit, MemoryKey, Tally
from memctl.store import PAGE_BYTES
from memctl.stores._batches import PATIENCE
from memctl.stores.sql.changer import Changer, Misfit, Part
from memctl.stores.sql.database import Refused, SqlDatabase

BATCH_BYTES = 2 * PAGE_BYTES
BATCH_CHANGES = 10_000
"""What shares a transaction, and what of a large memory is done at once."""


@dataclass(slots=True)
class Large:
    """A memory of many changes.  ``pieces`` must be consumed to the end."""

    key: MemoryKey
    pieces: AsyncIterator[list[Change]]


class SqlEditor:
    """One ``edit`` of a store."""

    def __init__(self, store: SqlDatabase) -> None:
        self._store = store

    async def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        """See ``Store.edit``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async for batch in gather(edits):
                if connection is None:
                    connection = await stack.enter_async_context(self._store.connected())
                if isinstance(batch, Large):
                    yield await self._edit_large(connection, batch)
                else:
                    for tally in await self._edit_small(connection, batch):
                        yield tally
                del batch  # the next one needs its room

    async def _edit_small(self, connection: AsyncConnection, batch: list[Part]) -> list[Tally]:
        """Changes small memories together, without those that cannot be changed."""
        failures = {part.key: found for part in batch if (found := _objection(part.key))}
        good = [part for part in batch if part.key not in failures]
        try:
            done = await self._commit_small(connection, good) if good else []
        except Misfit as misfit:
            failures |= misfit.failures
            done = await self._edit_small(
                connection, [part for part in good if part.key not in failures]
            )
        except Refused as refused:
            if len(good) == 1:
                failures[good[0].key] = refused.failure
                done = []
            else:  # One of them was refused, and the database does not say which.
                half = len(good) // 2
                done = await self._edit_small(connection, good[:half])
                done += await self._edit_small(connection, good[half:])
        return [*(Tally(key, failure=found) for key, found in failures.items()), *done]

    async def _commit_small(self, connection: AsyncConnection, batch: list[Part]) -> list[Tally]:
        async with self._store.transaction(connection):
            changer = Changer(self._store, connection)
            for parts in _apart(batch):
                await changer.apply(parts)
            changer.finish()
        return [Tally(part.key, *_count(part.changes)) for part in batch]

    async def _edit_large(self, connection: AsyncConnection, large: Large) -> Tally:
        key = large.key
        failure = _objection(key)
        if not failure:
            try:
                return await self._commit_large(connection, large)
            except Misfit as misfit:
                failure = misfit.failures[key]
            except Refused as refused:
                failure = refused.failure
        async for _ in large.pieces:
            pass
        return Tally(key, failure=failure)

    async def _commit_large(self, connection: AsyncConnection, large: Large) -> Tally:
        written = deleted = 0
        async with self._store.transaction(connection):
            changer = Changer(self._store, connection)
            async for changes in large.pieces:
                added, removed = _count(changes)
                written += added
                deleted += removed
                parts = [Part(large.key, changes)]
                del changes  # a huge message must be gone before the next step
                await changer.apply(parts)
            changer.finish()
        return Tally(large.key, written, deleted)


def _objection(key: MemoryKey) -> Failure | None:
    if not key.part:
        return None
    return Failure(
        "bad-name", f"SQL memory holds one memory a session, not a part like {key.part!r}"
    )


def _count(changes: list[Change]) -> tuple[int, int]:
    """How many messages are written, and how many deleted."""
    deleted = sum([change.new is None for change in changes])
    return len(changes) - deleted, deleted


def _apart(batch: list[Part]) -> list[list[Part]]:
    """The memories in lists within which no two share a session."""
    lists: list[list[Part]] = []
    times: dict[str, int] = {}
    for part in batch:
        number = times.get(part.key.session, 0)
        times[part.key.session] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(part)
    return lists


async def gather(edits: AsyncIterator[Edit]) -> AsyncIterator[list[Part] | Large]:
    """Lists of small memories, and large ones one by one.

    An edit is let go of before it is handed on: one message may be most of the memory in use.
    """
    batch = _Batch()
    held: list[Edit] = []
    async for edit in edits:
        held.append(edit)
        del edit
        while not held[-1].last and not _enough(held):
            held.append(await anext(edits))
        if held[-1].last and not _enough(held):
            if _is_full(batch.size + _size(held), batch.changes + _length(held)) and batch.parts:
                yield batch.take()
            batch.add(held)
            if batch.waited():
                yield batch.take()
            continue
        if batch.parts:
            yield batch.take()
        yield Large(held[0].memory.key, _pieces(held, edits))
    if batch.parts:
        yield batch.take()


class _Batch:
    """Small memories on their way into one transaction."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0
        self.changes = 0
        self._begun = 0.0

    def add(self, held: list[Edit]) -> None:
        """Takes the edits of a memory, which are no longer in the list then."""
        if not self.parts:
            self._begun = time.monotonic()
        self.size += _size(held)
        self.changes += _length(held)
        self.parts.append(Part(held[0].memory.key, _joined(held)))

    def waited(self) -> bool:
        """Whether the first of these has waited for others for long enough."""
        return time.monotonic() - self._begun > PATIENCE

    def take(self) -> list[Part]:
        """What was gathered; the next begins."""
        parts = self.parts
        self.parts, self.size, self.changes = [], 0, 0
        return parts


async def _pieces(held: list[Edit], rest: AsyncIterator[Edit]) -> AsyncIterator[list[Change]]:
    """The changes of a large memory, so many that a step is worth its while."""
    while True:
        while held and not held[-1].last and not _enough(held):
            held.append(await anext(rest))
        last = held[-1].last
        yield _joined(held)
        if last:
            return
        held.append(await anext(rest))


def _joined(held: list[Edit]) -> list[Change]:
    """The changes of these edits, which are no longer in the list then."""
    changes = [change for edit in held for change in edit.changes]
    held.clear()
    return changes


def _enough(held: list[Edit]) -> bool:
    return _is_full(_size(held), _length(held))


def _is_full(size: int, changes: int) -> bool:
    return size > BATCH_BYTES or changes > BATCH_CHANGES


def _size(held: list[Edit]) -> int:
    return sum([len(change.message) for edit in held for change in edit.changes])


def _length(held: list[Edit]) -> int:
    return sum([len(edit.changes) + 1 for edit in held])
