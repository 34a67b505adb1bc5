"""Changing memories that are there: many small ones in a transaction, a large one in its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import PAGE_BYTES, Change, Edit, MemoryKey, WriteResult
from memctl.stores.batching import PATIENCE
from memctl.stores.sql.changer import Changer, Misfit, Part
from memctl.stores.sql.database import Contended, Refused, SqlDatabase

BATCH_BYTES = 2 * PAGE_BYTES
BATCH_CHANGES = 10_000
"""A memory with more is large: so much of it is done at once."""


@dataclass(slots=True)
class Large:
    """A memory of many changes.  ``pieces`` must be consumed to the end."""

    key: MemoryKey
    pieces: AsyncGenerator[list[Change]]


T = TypeVar("T")

PAUSES = (0.01, 0.03, 0.1, *[0.5] * 100)
"""Seconds between attempts while others hold a memory: InnoDB too waits for 50 seconds."""


class SqlEditor:
    """One ``edit`` of a store."""

    def __init__(self, store: SqlDatabase) -> None:
        self._store = store

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """See ``Store.edit``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async for batch in gather(edits, self._store.batch_changes):
                if connection is None:
                    connection = await stack.enter_async_context(self._store.connected())
                if isinstance(batch, Large):
                    yield await self._edit_large(connection, batch)
                else:
                    for tally in await self._edit_small(connection, batch):
                        yield tally
                del batch  # the next one needs its room

    async def _edit_small(
        self, connection: AsyncConnection, batch: list[Part]
    ) -> list[WriteResult]:
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
        except (Refused, Contended) as error:
            if len(good) > 1:  # It is one of them, and the database does not say which.
                half = len(good) // 2
                done = await self._edit_small(connection, good[:half])
                done += await self._edit_small(connection, good[half:])
            else:
                failures[good[0].key] = error.failure
                done = []
        return [*(WriteResult(key, failure=found) for key, found in failures.items()), *done]

    async def _commit_small(
        self, connection: AsyncConnection, batch: list[Part]
    ) -> list[WriteResult]:
        if len(batch) == 1:
            return await _insist(lambda: self._try_small(connection, batch))
        return await self._try_small(connection, batch)

    async def _try_small(self, connection: AsyncConnection, batch: list[Part]) -> list[WriteResult]:
        async with self._store.transaction(connection):
            changer = Changer(self._store, connection)
            for parts in _apart(batch):
                await changer.apply(parts)
            changer.finish()
        return [WriteResult(part.key, *_count(part.changes)) for part in batch]

    async def _edit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key = large.key
        failure = _objection(key)
        if not failure:
            try:
                return await self._commit_large(connection, large)
            except Misfit as misfit:
                failure = misfit.failures[key]
            except (Refused, Contended) as error:
                failure = error.failure
        async for _ in large.pieces:
            pass
        return WriteResult(key, failure=failure)

    async def _commit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        written = deleted = 0
        changer = Changer(self._store, connection)
        async with await _insist(lambda: self._hold(connection, changer, large.key)):
            async for changes in large.pieces:
                added, removed = _count(changes)
                written += added
                deleted += removed
                parts = [Part(large.key, changes)]
                del changes  # a huge message must be gone before the next step
                await changer.apply(parts)
            changer.finish()
        return WriteResult(large.key, written, deleted)

    async def _hold(
        self, connection: AsyncConnection, changer: Changer, key: MemoryKey
    ) -> AsyncExitStack:
        """A transaction that holds a memory: once its pieces are taken, it cannot begin again."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store.transaction(connection))
            await changer.hold(key.session)
            return stack.pop_all()


async def _insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Tries again while others hold what is to be changed, and lets them go on in between.

    Raises:
        Contended: they hold it all the time.
    """
    for pause in PAUSES:
        try:
            return await attempt()
        except Contended:
            await asyncio.sleep(pause)
    return await attempt()


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


async def gather(edits: AsyncGenerator[Edit], most: int) -> AsyncGenerator[list[Part] | Large]:
    """Lists of small memories, which share ``most`` changes or are alone, and large ones.

    An edit is let go of before it is handed on: one message may be most of the memory in use.
    """
    batch: list[Part] = []
    size = count = 0
    begun = time.monotonic()
    held = _Held()
    async for edit in edits:
        held.add(edit)
        del edit
        key = held.key
        await held.fill(edits)
        if batch and (held.full or _is_full(size + held.size, count + held.count, most)):
            yield batch
            batch, size, count = [], 0, 0
        if held.full:
            yield Large(key, _pieces(held, edits))
            continue
        if not batch:
            begun = time.monotonic()
        size += held.size
        count += held.count
        batch.append(Part(key, held.take()))
        if time.monotonic() - begun > PATIENCE:
            yield batch
            batch, size, count = [], 0, 0
    if batch:
        yield batch


async def _pieces(held: _Held, rest: AsyncGenerator[Edit]) -> AsyncGenerator[list[Change]]:
    """The changes of a large memory, so many that a step is worth its while."""
    while True:
        last = held.last
        yield held.take()
        if last:
            return
        held.add(await anext(rest))
        await held.fill(rest)


class _Held:
    """Edits of one memory that follow one another."""

    def __init__(self) -> None:
        self.key = MemoryKey("", "")
        self.size = 0
        self.count = 0
        self.last = False
        self._changes: list[Change] = []

    def add(self, edit: Edit) -> None:
        """Takes the next one."""
        self.key = edit.memory.key
        self.last = edit.last
        self.size += sum([len(change.message) for change in edit.changes])
        self.count += len(edit.changes) + 1
        self._changes += edit.changes

    async def fill(self, edits: AsyncGenerator[Edit]) -> None:
        """Takes more, up to the end of the memory or until it is a step's worth."""
        while not (self.last or self.full):
            self.add(await anext(edits))

    @property
    def full(self) -> bool:
        """Whether these are enough for a step."""
        return _is_full(self.size, self.count, BATCH_CHANGES)

    def take(self) -> list[Change]:
        """The changes, which are no longer held then."""
        changes = self._changes
        self._changes, self.size, self.count = [], 0, 0
        return changes


def _is_full(size: int, count: int, most: int) -> bool:
    return size > BATCH_BYTES or count > most
