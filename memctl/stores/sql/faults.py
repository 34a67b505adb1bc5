"""What is wrong with AgentScope's tables beside the messages: one statement a kind of fault.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.stores.sql.database import SqlDatabase

EXAMPLES = 3


async def faults(store: SqlDatabase, where: Selection) -> AsyncGenerator[Finding]:
    """The faults of the selected memories; those of no memory where nothing is named."""
    async with store.snapshot() as connection:
        questions = _Questions(store, connection, where)
        asked: list[Callable[[], AsyncGenerator[Finding]]] = [
            questions.shared_sessions,
            questions.duplicate_indexes,
            questions.strange_row_ids,
            questions.missing_sessions,
            questions.missing_users,
        ]
        if not where.named:
            asked += [questions.orphan_marks, questions.missing_index]
        for ask in asked:
            async with aclosing(ask()) as found:
                async for fault in found:
                    if fault.key is None or where.has_key(fault.key):
                        yield fault


def lacks_index(connection: Connection) -> bool:
    """Whether no index begins with ``session_id``.  InnoDB makes one for the foreign key."""
    indexes = inspect(connection).get_indexes("message")
    unfinished = _unfinished(connection)
    return not any(
        index["column_names"][:1] == ["session_id"] and index["name"] not in unfinished
        for index in indexes
    )


def _unfinished(connection: Connection) -> set[str]:
    """The indexes that PostgreSQL does not use, for it was stopped when it made them online."""
    if connection.dialect.name != "postgresql":
        return set()
    sql = "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    return set(connection.scalars(text(sql + "WHERE NOT i.indisvalid")))


async def duplicate_sessions(store: SqlDatabase, where: Selection) -> list[str]:
    """The selected sessions in which several messages share an index."""
    async with store.snapshot(opened=False) as connection:
        questions = _Questions(store, connection, where)
        async with aclosing(questions.duplicate_indexes()) as found:
            return [
                fault.key.session
                async for fault in found
                if fault.key is not None and where.has_key(fault.key)
            ]


class _Questions:
    """The statements, each in one pass over its tables."""

    def __init__(self, store: SqlDatabase, connection: AsyncConnection, where: Selection) -> None:
        self._store = store
        self._connection = connection
        # Of a session all users are looked at, whoever is selected.
        self._condition, self._values = store.conditions(Selection(sessions=where.sessions))

    async def _rows(
        self, sql: str, values: dict[str, list[str]] | None = None
    ) -> AsyncGenerator[Sequence[Any]]:
        async with aclosing(self._store.rows(self._connection, sql, values or {})) as partitions:
            async for rows in partitions:
                for row in rows:
                    yield row

    async def shared_sessions(self) -> AsyncGenerator[Finding]:
        """Sessions with messages of several users, or of another user than the owner."""
        store = self._store
        sql = (
            "SELECT session_id, user_id, MIN(owner), COUNT(*) FROM ("
            f"SELECT {store.sortable('m.session_id')} AS session_id, "
            f"{store.sortable(store.user)} AS user_id, s.user_id AS owner "
            f"FROM {store.source()} WHERE {self._condition} {store.apart}) AS found "
            f"GROUP BY {store.exact('session_id')}, {store.exact('user_id')} "
            f"ORDER BY {store.exact('session_id')}, {store.exact('user_id')}"
        )
        session: list[Sequence[Any]] = []
        async with aclosing(self._rows(sql, self._values)) as rows:
            async for row in rows:
                if session and session[0][0] != row[0]:
                    for fault in _shared(session):
                        yield fault
                    session = []
                session.append(row)
        for fault in _shared(session):
            yield fault

    async def duplicate_indexes(self) -> AsyncGenerator[Finding]:
        """Positions of a session that several messages have."""
        store = self._store
        session = store.sortable("m.session_id")
        sql = (
            "SELECT session_id, position, MIN(owner), COUNT(*) FROM ("
            f"SELECT {session} AS session_id, {store.index} AS position, s.user_id AS owner "
            f"FROM message m LEFT JOIN session s ON s.id = m.session_id "
            f"WHERE {self._condition}) AS found "
            f"GROUP BY {store.exact('session_id')}, position HAVING COUNT(*) > 1 "
            f"ORDER BY {store.exact('session_id')}, position"
        )
        async with aclosing(self._rows(sql, self._values)) as rows:
            count = 0
            first: list[str] = []
            last: MemoryKey | None = None
            async for name, position, owner, number in rows:
                key = MemoryKey(owner or "", name)
                if last is not None and key != last:
                    yield _duplicates(last, count, first)
                    count, first = 0, []
                last = key
                count += number - 1
                if len(first) < EXAMPLES:
                    first.append(str(position))
            if last is not None:
                yield _duplicates(last, count, first)

    async def strange_row_ids(self) -> AsyncGenerator[Finding]:
        """Rows whose id cannot be taken apart; that the message disagrees, its reader sees."""
        store = self._store
        sql = (
            f"SELECT {store.user} AS user_id, m.session_id, m.id FROM {store.source()} "
            f"WHERE {self._condition} AND CASE WHEN {store.splits()} THEN 0 "
            f"WHEN {store.suffix()} IS NULL THEN 1 ELSE 0 END = 1"
        )
        async for fault in self._grouped("row-id-mismatch", sql, self._values):
            yield fault

    async def missing_sessions(self) -> AsyncGenerator[Finding]:
        """Messages of a session without a row."""
        store = self._store
        sql = (
            f"SELECT {store.user} AS user_id, m.session_id, m.id FROM {store.source()} "
            f"WHERE {self._condition} AND s.id IS NULL"
        )
        async for fault in self._grouped("session-row-missing", sql, self._values):
            yield fault

    async def missing_users(self) -> AsyncGenerator[Finding]:
        """Sessions of a user without a row."""
        sql = (
            "SELECT s.user_id, s.id FROM session s LEFT JOIN users u ON u.id = s.user_id "
            "WHERE u.id IS NULL"
        )
        async with aclosing(self._rows(sql)) as rows:
            async for user, session in rows:
                yield Finding("user-row-missing", MemoryKey(user, session))

    async def orphan_marks(self) -> AsyncGenerator[Finding]:
        """Marks of no message: SQLite does not hold to its foreign keys unless told to."""
        sql = (
            "SELECT k.msg_id FROM message_mark k LEFT JOIN message m ON m.id = k.msg_id "
            "WHERE m.id IS NULL"
        )
        count = 0
        ids: list[str] = []
        async with aclosing(self._rows(sql)) as rows:
            async for (row_id,) in rows:
                count += 1
                if len(ids) < EXAMPLES:
                    ids.append(row_id)
        if count:
            yield Finding("orphan-mark", None, count, tuple(ids))

    async def missing_index(self) -> AsyncGenerator[Finding]:
        """AgentScope makes no index on the column that it always asks by."""
        if await self._connection.run_sync(lacks_index):
            yield Finding("no-session-index", None)

    async def _grouped(
        self, code: str, sql: str, values: dict[str, list[str]]
    ) -> AsyncGenerator[Finding]:
        """A fault a memory, of rows of user, session and row id in any order."""
        found: dict[MemoryKey, tuple[int, list[str]]] = {}
        async with aclosing(self._rows(sql, values)) as rows:
            async for user, session, row_id in rows:
                key = MemoryKey(user, session)
                count, ids = found.get(key, (0, []))
                if len(ids) < EXAMPLES:
                    ids.append(row_id)
                found[key] = (count + 1, ids)
        for key, (count, ids) in found.items():
            yield Finding(code, key, count, tuple(ids))


def _shared(session: list[Sequence[Any]]) -> Iterable[Finding]:
    """What each user of a session sees of the others.  Rows of session, user, owner, messages."""
    counts = {user: number for _, user, _, number in session}
    for _, _, owner, _ in session:
        if owner is not None:
            counts.setdefault(owner, 0)
    if len(counts) < 2:
        return
    total = sum(counts.values())
    for user, number in counts.items():
        others = [(other, count) for other, count in counts.items() if other != user and count]
        if others:
            others.sort(key=itemgetter(1), reverse=True)
            seen = ", ".join(f"{count:,} of {other!r}" for other, count in others[:EXAMPLES])
            more = f" and {len(others) - EXAMPLES:,} users more" if len(others) > EXAMPLES else ""
            key = MemoryKey(user, session[0][0])
            yield Finding("shared-session", key, total - number, (), f"sees {seen}{more}")


def _duplicates(key: MemoryKey, count: int, positions: list[str]) -> Finding:
    return Finding("duplicate-index", key, count, (), f"at index {', '.join(positions)}")
