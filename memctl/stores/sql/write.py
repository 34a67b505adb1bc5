"""Writing AgentScope's SQL memory: transactions, row ids and positions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import Failure
from memctl.model import Entry, MemoryKey, Page, Tally, WriteMode
from memctl.stores._batches import Large, Small, gather
from memctl.stores.sql.database import Position, Refused, SqlDatabase


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

    async def write(self, pages: AsyncIterator[Page]) -> AsyncIterator[Tally]:
        """See ``Store.write``."""
        self._learn((await self._store.positions()).items())
        async for batch in gather(pages):
            if isinstance(batch, Large):
                yield await self._write_large(batch)
            else:
                for tally in await self._write_small(batch):
                    yield tally

    def _learn(self, positions: Iterable[tuple[MemoryKey, Position]]) -> None:
        for key, position in positions:
            self._messages[key] = position.messages
            self._tops[key.session] = max(self._tops.get(key.session, -1), position.top)

    # Small memories share a transaction

    async def _write_small(self, batch: list[Small]) -> list[Tally]:
        tallies = []
        good = []
        for small in batch:
            failure = self._objection(small.memory.key, small.offset) or _repeats(small.entries)
            if failure:
                tallies.append(Tally(small.memory.key, failure=failure))
            else:
                good.append(small)
        if not good:
            return tallies
        try:
            return tallies + await self._commit_small(good)
        except Refused as refused:
            if len(good) == 1:
                return [*tallies, Tally(good[0].memory.key, failure=refused.failure)]
        # One of them was refused, and the database does not say which.
        for small in good:
            tallies += await self._write_small([small])
        return tallies

    async def _commit_small(self, batch: list[Small]) -> list[Tally]:
        tops = dict.fromkeys((small.memory.key.session for small in batch), -1)
        tops |= {session: self._tops.get(session, -1) for session in tops}
        tallies = []
        with self._store.errors():
            async with self._store.transaction() as connection:
                keys = [small.memory.key for small in batch]
                await self._claim(connection, keys)
                stale = [
                    small for small in batch if self._objection(small.memory.key, small.offset)
                ]
                deleted = await self._clear(connection, keys)
                rows: list[Row] = []
                for small in batch:
                    key = small.memory.key
                    if small in stale:
                        failure = self._objection(key, small.offset)
                        tallies.append(Tally(key, failure=failure))
                        continue
                    start = _start(small.entries, small.offset, tops[key.session])
                    numbered, last = _number(small.entries, start)
                    tops[key.session] = max(tops[key.session], last)
                    rows += _rows(key, numbered)
                    tallies.append(Tally(key, len(small.entries), deleted.get(key, 0)))
                await self._insert(connection, rows)
        for tally, small in zip(tallies, batch, strict=True):
            if not tally.failure:
                self._messages[tally.key] = small.offset + tally.written
        self._tops |= tops
        return tallies

    # A large memory has a transaction of its own

    async def _write_large(self, large: Large) -> Tally:
        key = large.memory.key
        failure = self._objection(key, large.offset)
        if failure:
            await _drain(large.pages)
            return Tally(key, failure=failure)
        try:
            with self._store.errors():
                return await self._commit_large(key, large)
        except Refused as refused:
            await _drain(large.pages)
            return Tally(key, failure=refused.failure)

    async def _commit_large(self, key: MemoryKey, large: Large) -> Tally:
        written = 0
        async with self._store.transaction() as connection:
            await self._claim(connection, [key])
            failure = self._objection(key, large.offset)
            if failure:
                await _drain(large.pages)
                return Tally(key, failure=failure)
            deleted = await self._clear(connection, [key])
            last: int | None = None
            async for page in large.pages:
                if last is None:
                    last = _start(page.entries, large.offset, self._tops.get(key.session, -1))
                last = await self._insert_page(connection, page, last)
                written += len(page.entries)
                del page  # a huge message must be gone before the next step of its transaction
        self._messages[key] = large.offset + written
        self._tops[key.session] = max(self._tops.get(key.session, -1), last or 0)
        return Tally(key, written, deleted.get(key, 0))

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
        store = self._store
        sessions = {key.session: key.user for key in reversed(keys)}
        there = f"SELECT id FROM session WHERE id IN :sessions ORDER BY id {store.row_lock}"
        result = await connection.execute(*store.bind(there, {"sessions": sorted(sessions)}))
        known = {row[0] for row in result}
        users = sorted({(key.user,) for key in keys})
        await store.insert_missing(connection, "users", ["id"], users)
        new = sorted((name, user) for name, user in sessions.items() if name not in known)
        if new and len(new) > await store.insert_missing(
            connection, "session", ["id", "user_id"], new
        ):
            known |= {name for name, _ in new}
        if known:
            for key in keys:
                if key.session in known:
                    self._messages[key] = 0
            found = await store.count_positions(connection, {"sessions": sorted(known)})
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

    async def _insert_page(self, connection: AsyncConnection, page: Page, last: int) -> int:
        numbered, last = _number(page.entries, last)
        await self._insert(connection, _rows(page.memory.key, numbered))
        return last

    async def _insert(self, connection: AsyncConnection, rows: list[Row]) -> None:
        if not rows:
            return
        messages = [(row.id, row.message, row.session, row.index) for row in rows]
        columns = ["id", "msg", "session_id", "index"]
        await self._store.insert(connection, "message", columns, messages)
        marks = [(row.id, mark) for row in rows for mark in row.marks]
        if marks:
            await self._store.insert(connection, "message_mark", ["msg_id", "mark"], marks)


class Row(NamedTuple):
    """A row of ``message``, and its marks."""

    id: str
    message: bytes
    session: str
    index: int  # type: ignore[assignment]
    marks: tuple[str, ...]


def _rows(key: MemoryKey, numbered: list[tuple[Entry, int]]) -> list[Row]:
    start = f"{key.user}-{key.session}-"
    return [
        Row(start + entry.id, entry.message, key.session, index, tuple(dict.fromkeys(entry.marks)))
        for entry, index in numbered
    ]


def _start(entries: list[Entry], offset: int, top: int) -> int:
    """The index that a memory's new messages follow.

    A memory that is new here keeps the positions it had in another SQL store, because they also
    order the messages of users who share a session; otherwise it follows what the session holds,
    as AgentScope's ``_get_next_index`` has it.
    """
    kept = offset == 0 and entries and entries[0].index is not None
    return -1 if kept else top


def _number(entries: list[Entry], last: int) -> tuple[list[tuple[Entry, int]], int]:
    """Gives each message an index above the one before; the last index given."""
    numbered = []
    for entry in entries:
        last = max(last + 1, entry.index or 0)
        numbered.append((entry, last))
    return numbered, last


def _repeats(entries: list[Entry]) -> Failure | None:
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            return Failure("repeated-id", f"the message id {entry.id!r} occurs twice")
        seen.add(entry.id)
    return None


async def _drain(pages: AsyncIterator[Page]) -> None:
    async for _ in pages:
        pass
