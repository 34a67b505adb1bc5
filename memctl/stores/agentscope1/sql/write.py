"""Writing memories into AgentScope 1.x's tables: rows, row ids and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import islice, repeat
from operator import lt
from typing import cast

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import RejectedValue
from memctl.engines.sql.executor import Refused, Writer
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.layouts.sql import name_failure, of_shape
from memctl.machine.spool import ItemSpool
from memctl.model import Memory, MemoryKey, StoredMessage, WriteMode, WriteResult
from memctl.shard import Shard
from memctl.storekit.batching import Large, Small
from memctl.stores.agentscope1.sql.locks import (
    LockedSessions,
    is_plain_id,
    lock_sessions,
    session_owners,
)
from memctl.stores.agentscope1.sql.tables import Extent, MemoryTables

_PAGE = 5000
"""The number of messages to delete in a statement."""

MAX_INDEX = 2**63 - 1


class SqlWriter(Writer):
    """A single call of ``Store.write``.

    The messages of all memories are counted once, before the first batch: without an index on
    ``session_id``, each statement about one session scans the table.  Each transaction counts its
    own memories again.
    """

    memory_errors = (RejectedValue,)
    _database: MemoryTables

    def __init__(self, database: MemoryTables, mode: WriteMode, shard: Shard | None) -> None:
        """``shard`` has all memories to write; None for any memories."""
        super().__init__(database)
        self._shard = shard
        self._mode = mode
        self._exact = mode is WriteMode.REPLACE
        self._messages: dict[MemoryKey, int] = {}
        self._last_indexes: dict[str, int] = {}

    async def prepare(self, connection: AsyncConnection) -> None:
        await self._database.prepare_shard(self._shard)
        async with self._database.read_transaction(connection):
            self._learn((await self._database.extents(connection, {}, self._shard)).items())

    def _learn(self, extents: Iterable[tuple[MemoryKey, Extent]]) -> None:
        for key, extent in extents:
            self._messages[key] = extent.messages
            self._last_indexes[key.session] = max(
                self._last_indexes.get(key.session, -1), extent.last_index
            )

    def failure(self, task: Small | Large) -> Failure | None:
        failure = self._failure(task.memory.key, task.offset)
        if failure is None and isinstance(task, Small):
            return _repeated_id(task.entries)
        return failure

    async def commit(self, connection: AsyncConnection, batch: list[Small]) -> list[WriteResult]:
        results = []
        async with self._database.transaction(connection):
            keys = [small.memory.key for small in batch]
            empty = {small.memory.key for small in batch if not (small.offset or small.entries)}
            memories = [small.memory for small in batch]
            locked = await self._lock_sessions(connection, memories, empty)
            self._refuse(locked, {small.memory.key: small.offset for small in batch})
            _refuse_misread(locked, {small.memory.key: small.entries for small in batch})
            deleted = await self._clear(connection, keys)
            last_indexes = {key.session: self._last_indexes.get(key.session, -1) for key in keys}
            rows = Rows()
            for small in batch:
                key = small.memory.key
                start = _start(small.entries, small.offset, last_indexes[key.session])
                last_indexes[key.session] = max(
                    last_indexes[key.session],
                    rows.add(key, small.entries, start, exact=self._exact),
                )
                counts = len(small.entries), deleted.get(key, 0)
                results.append(WriteResult(key, *counts, before=locked.before(key)))
            await rows.insert(self._database, connection)
            self._database.about_to_commit(results)
        for result, small in zip(results, batch, strict=True):
            self._messages[result.key] = small.offset + result.written
        self._last_indexes |= last_indexes
        return results

    async def commit_large(self, connection: AsyncConnection, large: Large) -> WriteResult:
        key = large.memory.key
        written = 0
        async with self._database.transaction(connection):
            locked = await self._lock_sessions(connection, [large.memory])
            self._refuse(locked, {key: large.offset})
            deleted = await self._clear(connection, [key])
            last: int | None = None
            async for page in large.pages:
                _refuse_misread(locked, {key: page.messages})
                if last is None:
                    last = _start(
                        page.messages, large.offset, self._last_indexes.get(key.session, -1)
                    )
                rows = Rows()
                last = rows.add(key, page.messages, last, exact=self._exact)
                written += len(page.messages)
                del page  # do not hold a huge message during the insertion of its rows
                await rows.insert(self._database, connection)
            result = WriteResult(key, written, deleted.get(key, 0), before=locked.before(key))
            self._database.about_to_commit([result])
        self._messages[key] = large.offset + written
        self._last_indexes[key.session] = max(self._last_indexes.get(key.session, -1), last or 0)
        return result

    # Steps of a transaction

    def _failure(self, key: MemoryKey, offset: int) -> Failure | None:
        """Return why a memory cannot be written; None if it can."""
        if failure := name_failure(key) or self._database.damaged.get(key):
            return failure
        held = self._messages.get(key, 0)
        if self._mode is WriteMode.ADD and held != offset:
            return Failure("changed", f"the target holds {held} messages, not {offset}")
        return None

    def _refuse(self, locked: LockedSessions, offsets: Mapping[MemoryKey, int]) -> None:
        """Refuse locked memories that cannot be written.

        ``offsets`` has the expected number of stored messages of each memory.

        Raises:
            Refused: some memories cannot be written.  The caller must roll back the transaction,
                which may have created rows for them.
        """
        failures = {
            key: Failure("refused", "its session belongs to another user") for key in locked.taken
        }
        failures |= {
            key: failure
            for key, offset in offsets.items()
            if (failure := self._failure(key, offset))
        }
        if failures:
            raise Refused(failures)

    async def _lock_sessions(
        self,
        connection: AsyncConnection,
        memories: Sequence[Memory],
        empty: Collection[MemoryKey] = (),
    ) -> LockedSessions:
        """Lock the sessions of memories until the transaction ends, and count their messages again.

        ``empty`` are the memories to write without messages.

        Raises:
            Refused: a session has messages and no row.
        """
        keys = [memory.key for memory in memories]
        locked = await lock_sessions(
            *(self._database, connection, keys, self._database.statements.row_lock),
            filled=self._last_indexes.keys(),
            empty=empty,
            given=session_owners(memories),
        )
        known = locked.known
        if known:
            for key in keys:
                if key.session in known:
                    self._messages[key] = 0
            found = await self._database.extents(connection, {"sessions": sorted(known)})
            self._learn(found.items())
        return locked

    async def _clear(
        self, connection: AsyncConnection, keys: list[MemoryKey]
    ) -> dict[MemoryKey, int]:
        if self._mode is not WriteMode.REPLACE:
            return {}
        filled = [key for key in keys if self._messages.get(key)]
        return await delete_messages(self._database, connection, filled)


class Rows:
    """Rows of ``message`` and ``message_mark`` to insert together."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, bytes, str, int]] = []
        self._marks: list[tuple[str, str]] = []
        self._blobs: list[str] = []
        """The ids of the rows with the message stored as a blob."""

    def add(
        self, key: MemoryKey, messages: list[StoredMessage], last: int, *, exact: bool = False
    ) -> int:
        """Add messages of a memory with indexes above ``last``; return the last index.

        With ``exact``, the indexes are the positions of the messages, if all messages have
        positions in rising order.
        """
        if not messages:
            return last
        ids, texts, marks, positions, shapes = zip(*messages, strict=True)
        start = f"{key.user}-{key.session}-"
        row_ids = [start + id for id in ids]
        if any(shapes):
            about = list(map(of_shape, shapes))
            row_ids = [one.get("row", id) for one, id in zip(about, row_ids, strict=True)]
            self._blobs += [id for one, id in zip(about, row_ids, strict=True) if one.get("blob")]
        places = list(zip(positions, map(str.encode, row_ids), strict=True)) if exact else []
        if exact and None not in positions and all(map(lt, places, islice(places, 1, None))):
            indexes = cast("Sequence[int]", positions)
        else:
            indexes = _indexes(positions, last)
        self._messages += zip(row_ids, texts, repeat(key.session), indexes)
        self._marks += [
            (row_id, mark)
            for row_id, labels in zip(row_ids, marks, strict=True)
            if labels
            for mark in dict.fromkeys(labels)
        ]
        return indexes[-1]

    async def insert(self, database: MemoryTables, connection: AsyncConnection) -> None:
        """Insert the added rows into the tables, and remove them from this object."""
        messages, marks, blobs = self._messages, self._marks, self._blobs
        self._messages, self._marks, self._blobs = [], [], []
        if messages:
            columns = ["id", "msg", "session_id", "index"]
            await database.insert(connection, "message", columns, messages)
        if blobs and not database.statements.typed:
            named = database.statements.in_row_ids
            sql = f"UPDATE message SET msg = CAST(msg AS BLOB) WHERE id {named}"
            await database.for_rows(connection, sql, blobs)
        if marks:
            await database.insert(connection, "message_mark", ["msg_id", "mark"], marks)


async def delete_messages(
    database: MemoryTables, connection: AsyncConnection, keys: Collection[MemoryKey]
) -> dict[MemoryKey, int]:
    """Delete the messages and marks of memories; return the number of deleted messages of each.

    The rows are deleted by id.  In some databases, a DELETE with a search locks all searched rows,
    and two transactions would wait for each other.
    """
    found: Counter[MemoryKey] = Counter()
    if not keys:
        return found
    statements, wanted = database.statements, set(keys)
    sql = (
        f"SELECT {statements.user}, m.session_id, m.id FROM {statements.source()} "
        "WHERE m.session_id IN :sessions"
    )
    values = {"sessions": sorted({key.session for key in keys})}
    with closing(ItemSpool[list[str]]()) as spool:  # there may be a million row ids
        async with aclosing(database.rows(connection, sql, values, _PAGE)) as partitions:
            async for rows in partitions:
                row_ids = []
                for user, session, row_id in rows:
                    key = MemoryKey(user, session)
                    if key in wanted:
                        found[key] += 1
                        row_ids.append(row_id)
                if row_ids:
                    spool.add(row_ids)
        for row_ids in spool:
            for table, column in (("message_mark", "msg_id"), ("message", "id")):
                await database.delete_rows(connection, table, column, row_ids)
    return found


def _start(messages: list[StoredMessage], offset: int, last_index: int) -> int:
    """Return the index that the indexes of new messages must exceed.

    This is -1 for a new memory (``offset`` is 0) from another SQL store: the memory keeps its
    positions, because positions also order the messages of users who share a session.  Other
    messages follow ``last_index``, the last message of the session, as in AgentScope's
    ``_get_next_index``.
    """
    kept = offset == 0 and messages and messages[0].position is not None
    return -1 if kept else last_index


def _indexes(positions: Sequence[int | None], last: int) -> Sequence[int]:
    """Return an index above ``last`` for each message, in rising order.

    The index is equal to the position of the message if possible.

    Raises:
        RejectedValue: an index would exceed 64 bits.
    """
    first = positions[0]
    if first is not None and first > last and None not in positions:
        kept = cast("Sequence[int]", positions)
        if all(map(lt, kept, islice(kept, 1, None))):
            return kept
    indexes = []
    for position in positions:
        last = max(last + 1, position or 0)
        indexes.append(last)
    if last > MAX_INDEX:
        raise RejectedValue("the session already uses the highest possible index", "refused")
    return indexes


def _refuse_misread(
    locked: LockedSessions, messages: Mapping[MemoryKey, list[StoredMessage]]
) -> None:
    """Refuse to write messages that a reader would assign to another user.

    ``messages`` has the messages to write, by memory.

    Raises:
        Refused: neither the row id nor the JSON of a message would identify the user.
    """
    failures = {}
    for key, some in messages.items():
        id = next(_misread(key, some, guest=key in locked.guests), None)
        if id is not None:
            text = f"the message {id!r} has another id in its JSON, or none, and would be read as"
            failures[key] = Failure("refused", f"{text} one of another user")
    if failures:
        raise Refused(failures)


def _misread(key: MemoryKey, messages: Iterable[StoredMessage], *, guest: bool) -> Iterator[str]:
    """Yield the ids of messages that would be read as those of another user than ``key.user``.

    ``guest`` is True if another user owns the session.
    """
    start, between = f"{key.user}-{key.session}-", f"-{key.session}-"
    ids = [one.id for one in messages]
    usual = not guest and start.find(between) == len(key.user)
    if usual and between not in "-" + "\n-".join(ids):
        return
    for one in messages:
        plain = not guest and is_plain_id(start + one.id, key.user, key.session)
        if not plain and not one.shape and jsonio.field(one.message, "id") != one.id:
            yield one.id


def _repeated_id(messages: list[StoredMessage]) -> Failure | None:
    ids = [message.id for message in messages]
    if len(set(ids)) == len(ids):
        return None
    [(id, _)] = Counter(ids).most_common(1)
    return Failure("repeated-id", f"the message id {id!r} occurs twice")
