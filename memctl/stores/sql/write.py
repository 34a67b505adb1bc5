"""Writing AgentScope's SQL memory: transactions, row ids and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice, repeat
from operator import lt
from typing import cast

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import PAGE_BYTES, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.stores.batching import Large, Small, gather
from memctl.stores.sql.database import Position, Refused, SqlDatabase
from memctl.stores.sql.locks import claim

BATCH_BYTES = 2 * PAGE_BYTES
BATCH_MESSAGES = 10_000
"""What small memories share a transaction: a commit waits for the disk."""


class SqlWriter:
    """One ``write`` of a store.

    The sizes of the memories are counted once, before the first write: without an index on
    ``session_id`` each question about one session scans the table.  What is written to is counted
    again within its own transaction.
    """

    def __init__(self, store: SqlDatabase, mode: WriteMode) -> None:
        self._store = store
        self._mode = mode
        self._messages: dict[MemoryKey, int] = {}
        self._tops: dict[str, int] = {}

    async def write(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[WriteResult]:
        """See ``Store.write``."""
        async with AsyncExitStack() as stack:
            connection: AsyncConnection | None = None
            async for batch in gather(pages, BATCH_BYTES, BATCH_MESSAGES):
                if connection is None:
                    connection = await stack.enter_async_context(self._store.connected())
                    await self._count(connection)
                if isinstance(batch, Large):
                    yield await self._write_large(connection, batch)
                else:
                    for tally in await self._write_small(connection, batch):
                        yield tally
                del batch  # the next one needs its room

    async def _count(self, connection: AsyncConnection) -> None:
        async with self._store.reading(connection):
            self._learn((await self._store.count_positions(connection, {})).items())

    def _learn(self, positions: Iterable[tuple[MemoryKey, Position]]) -> None:
        for key, position in positions:
            self._messages[key] = position.messages
            self._tops[key.session] = max(self._tops.get(key.session, -1), position.top)

    # Small memories share a transaction

    async def _write_small(
        self, connection: AsyncConnection, batch: list[Small]
    ) -> list[WriteResult]:
        tallies = []
        good = []
        for small in batch:
            failure = self._objection(small.memory.key, small.offset) or _repeats(small.entries)
            if failure:
                tallies.append(WriteResult(small.memory.key, failure=failure))
            else:
                good.append(small)
        if not good:
            return tallies
        try:
            return tallies + await self._commit_small(connection, good)
        except Refused as refused:
            if len(good) == 1:
                return [*tallies, WriteResult(good[0].memory.key, failure=refused.failure)]
        # One of them was refused, and the database does not say which.
        half = len(good) // 2
        tallies += await self._write_small(connection, good[:half])
        return tallies + await self._write_small(connection, good[half:])

    async def _commit_small(
        self, connection: AsyncConnection, batch: list[Small]
    ) -> list[WriteResult]:
        tallies = []
        async with self._store.transaction(connection):
            keys = [small.memory.key for small in batch]
            await self._claim(connection, keys)
            stale = [self._objection(small.memory.key, small.offset) for small in batch]
            deleted = await self._clear(connection, keys)
            tops = {key.session: self._tops.get(key.session, -1) for key in keys}
            rows = Rows()
            for small, failure in zip(batch, stale, strict=True):
                key = small.memory.key
                if failure:
                    tallies.append(WriteResult(key, failure=failure))
                    continue
                start = _start(small.entries, small.offset, tops[key.session])
                tops[key.session] = max(tops[key.session], rows.add(key, small.entries, start))
                tallies.append(WriteResult(key, len(small.entries), deleted.get(key, 0)))
            await rows.insert(self._store, connection)
        for tally, small in zip(tallies, batch, strict=True):
            if not tally.failure:
                self._messages[tally.key] = small.offset + tally.written
        self._tops |= tops
        return tallies

    # A large memory has a transaction of its own

    async def _write_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key = large.memory.key
        failure = self._objection(key, large.offset)
        if failure:
            await _drain(large.pages)
            return WriteResult(key, failure=failure)
        try:
            return await self._commit_large(connection, key, large)
        except Refused as refused:
            await _drain(large.pages)
            return WriteResult(key, failure=refused.failure)

    async def _commit_large(
        self, connection: AsyncConnection, key: MemoryKey, large: Large
    ) -> WriteResult:
        written = 0
        async with self._store.transaction(connection):
            await self._claim(connection, [key])
            failure = self._objection(key, large.offset)
            if failure:
                await _drain(large.pages)
                return WriteResult(key, failure=failure)
            deleted = await self._clear(connection, [key])
            last: int | None = None
            async for page in large.pages:
                if last is None:
                    last = _start(page.messages, large.offset, self._tops.get(key.session, -1))
                rows = Rows()
                last = rows.add(key, page.messages, last)
                written += len(page.messages)
                del page  # a huge message must be gone before the next step of its transaction
                await rows.insert(self._store, connection)
        self._messages[key] = large.offset + written
        self._tops[key.session] = max(self._tops.get(key.session, -1), last or 0)
        return WriteResult(key, written, deleted.get(key, 0))

    # Steps of a transaction

    def _objection(self, key: MemoryKey, offset: int) -> Failure | None:
        """Why the memory cannot be written: its name, or that it is not as long as expected."""
        if key.part:
            return Failure(
                "bad-name", f"SQL memory holds one memory a session, not a part like {key.part!r}"
            )
        held = self._messages.get(key, 0)
        if self._mode is WriteMode.ADD and held != offset:
            return Failure("changed", f"the target holds {held} messages, not {offset}")
        return None

    async def _claim(self, connection: AsyncConnection, keys: list[MemoryKey]) -> None:
        """Makes the sessions ours until the transaction ends, and sure of what they hold.

        A session that is created here is empty.  One that was there is locked and counted again:
        an agent, or another run, may have written meanwhile.
        """
        known = await claim(self._store, connection, keys, self._store.row_lock)
        if known:
            for key in keys:
                if key.session in known:
                    self._messages[key] = 0
            found = await self._store.count_positions(connection, {"sessions": sorted(known)})
            self._learn(found.items())

    async def _clear(
        self, connection: AsyncConnection, keys: list[MemoryKey]
    ) -> dict[MemoryKey, int]:
        """Deletes what REPLACE replaces; the number of messages of each memory."""
        deleted: dict[MemoryKey, int] = {}
        if self._mode is not WriteMode.REPLACE:
            return deleted
        store = self._store
        for key in keys:
            if not self._messages.get(key):
                continue
            # The inner SELECT is wrapped once more for MySQL, which cannot delete from a table
            # that it reads in the same statement unless the rows are collected first.
            doomed = (
                f"(SELECT id FROM (SELECT m.id AS id FROM {store.source()} "
                f"WHERE {store.exact('m.session_id')} = {store.exact(':session')} "
                f"AND {store.exact(store.user)} = {store.exact(':user')}) AS doomed)"
            )
            values = {"session": key.session, "user": key.user}
            await connection.execute(
                *store.bind(f"DELETE FROM message_mark WHERE msg_id IN {doomed}", values)
            )
            result = await connection.execute(
                *store.bind(f"DELETE FROM message WHERE id IN {doomed}", values)
            )
            deleted[key] = result.rowcount
        return deleted


class Rows:
    """Rows of ``message`` and ``message_mark``."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, bytes, str, int]] = []
        self._marks: list[tuple[str, str]] = []

    def add(self, key: MemoryKey, entries: list[StoredMessage], last: int) -> int:
        """Takes messages of a memory, their index above ``last``; the last index given."""
        if not entries:
            return last
        ids, messages, marks, positions = zip(*entries, strict=True)
        numbers = _numbers(positions, last)
        start = f"{key.user}-{key.session}-"
        row_ids = [start + id for id in ids]
        self._messages += zip(row_ids, messages, repeat(key.session), numbers)
        self._marks += [
            (row_id, mark)
            for row_id, labels in zip(row_ids, marks, strict=True)
            if labels
            for mark in dict.fromkeys(labels)
        ]
        return numbers[-1]

    async def insert(self, store: SqlDatabase, connection: AsyncConnection) -> None:
        """Inserts them, and holds them no more."""
        messages, marks = self._messages, self._marks
        self._messages, self._marks = [], []
        if messages:
            columns = ["id", "msg", "session_id", "index"]
            await store.insert(connection, "message", columns, messages)
        if marks:
            await store.insert(connection, "message_mark", ["msg_id", "mark"], marks)


def _start(entries: list[StoredMessage], offset: int, top: int) -> int:
    """The index that a memory's new messages follow.

    A memory that is new here keeps the positions it had in another SQL store, because they also
    order the messages of users who share a session; otherwise it follows what the session holds,
    as AgentScope's ``_get_next_index`` has it.
    """
    kept = offset == 0 and entries and entries[0].position is not None
    return -1 if kept else top


def _numbers(positions: Sequence[int | None], last: int) -> Sequence[int]:
    """An index for each message, above the one before; its own where that can be kept."""
    first = positions[0]
    if first is not None and first > last and None not in positions:
        kept = cast("Sequence[int]", positions)
        if all(map(lt, kept, islice(kept, 1, None))):
            return kept
    numbers = []
    for position in positions:
        last = max(last + 1, position or 0)
        numbers.append(last)
    return numbers


def _repeats(entries: list[StoredMessage]) -> Failure | None:
    ids = [entry.id for entry in entries]
    if len(set(ids)) == len(ids):
        return None
    [(id, _)] = Counter(ids).most_common(1)
    return Failure("repeated-id", f"the message id {id!r} occurs twice")


async def _drain(pages: AsyncGenerator[Page]) -> None:
    async for _ in pages:
        pass
