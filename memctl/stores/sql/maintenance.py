"""Checks and repairs of AgentScope's tables.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import UsageError
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record
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


REPAIRS = frozenset({"orphan-mark", "duplicate-index", "user-row-missing", "no-session-index"})
INDEX = "ix_message_session_id"
"""The name that SQLAlchemy gives an index on that column."""

_ROWS = 1000
_GATHERED = {
    "sqlite": "temp.memctl_mend",
    "postgresql": "pg_temp.memctl_mend",
    "mysql": "memctl_mend",
}


class SqlMaintenance(Maintenance):
    """Findings and repairs of AgentScope's tables."""

    def __init__(self, store: SqlDatabase) -> None:
        super().__init__(store)
        self._store = store
        self._gathered = _GATHERED[store.kind]
        self._index = f"{store.quote}index{store.quote}"

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(faults(self._store, where)) as found:
            async for finding in found:
                yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        match code:
            case "orphan-mark":
                return 0 if where.named else await self._orphan_marks(note)
            case "duplicate-index":
                return await self._duplicate_indexes(where, note)
            case "user-row-missing":
                return await self._missing_users(where, note)
            case "no-session-index":
                return 0 if where.named else await self._missing_index(note)
        raise UsageError(f"{code} cannot be mended in a database", f"known: {sorted(REPAIRS)}")

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        undone = 0
        async with aclosing(records), self._store.connected() as connection:
            async for record in records:
                if record["code"] == "no-session-index":
                    undone += await self._drop_index()
                    continue
                async with self._store.transaction(connection):
                    undone += await self._revert(connection, record)
        return undone

    # Marks

    async def _orphan_marks(self, note: Note) -> int:
        async with self._transaction() as connection:
            rows = (
                "SELECT k.msg_id AS id, k.mark AS mark FROM message_mark k "
                "LEFT JOIN message m ON m.id = k.msg_id WHERE m.id IS NULL"
            )
            count = await self._gather(connection, rows, {})
            await self._note(connection, note, "orphan-mark", "id, mark")
            await self._run(
                connection,
                "DELETE FROM message_mark WHERE NOT EXISTS "
                "(SELECT 1 FROM message m WHERE m.id = message_mark.msg_id)",
            )
            return count

    # Positions

    async def _duplicate_indexes(self, where: Selection, note: Note) -> int:
        """Keeps the order, and moves up what must be for each index to be the only one."""
        store, index = self._store, self._index
        sessions = await duplicate_sessions(store, where)
        if not sessions:
            return 0
        async with self._transaction() as connection:
            moved = 0
            for start in range(0, len(sessions), _ROWS):
                values = {"sessions": sessions[start : start + _ROWS]}
                await self._lock(connection, values)
                place = f"{index}, {store.exact(store.sortable('id'))}"
                number = "SIGNED" if store.kind == "mysql" else "BIGINT"
                numbered = (
                    f"SELECT id, session_id, {index} AS old_index, CAST(ROW_NUMBER() OVER "
                    f"(PARTITION BY session_id ORDER BY {place}) AS {number}) AS place "
                    "FROM message WHERE session_id IN :sessions"
                )
                rows = (
                    "SELECT id, old_index, new_index FROM (SELECT id, old_index, place + "
                    "MAX(old_index - place) OVER (PARTITION BY session_id ORDER BY place "
                    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS new_index "
                    f"FROM ({numbered}) AS numbered) AS moved WHERE new_index <> old_index"
                )
                moved += await self._gather(connection, rows, values)
                await self._note(connection, note, "duplicate-index", "id, old_index, new_index")
                await self._move(connection, "old_index", "new_index")
            return moved

    async def _lock(self, connection: AsyncConnection, values: dict[str, list[str]]) -> None:
        """Has agents wait who want to add to these sessions."""
        sql = f"SELECT id FROM session WHERE id IN :sessions ORDER BY id {self._store.row_lock}"
        await connection.execute(*self._store.bind(sql, values))

    async def _move(self, connection: AsyncConnection, old: str, new: str) -> int:
        """Gives the gathered rows another index, those that have the one that is expected."""
        if self._store.kind == "mysql":
            sql = (
                f"UPDATE message m JOIN {self._gathered} t ON t.id = m.id "
                f"SET m.{self._index} = t.{new} WHERE m.{self._index} = t.{old}"
            )
        else:
            sql = (
                f"UPDATE message SET {self._index} = t.{new} FROM {self._gathered} t "
                f"WHERE message.id = t.id AND message.{self._index} = t.{old}"
            )
        return await self._run(connection, sql)

    # Users

    async def _missing_users(self, where: Selection, note: Note) -> int:
        async with self._transaction() as connection:
            condition, values = "", {}
            for name, column in (("users", "s.user_id"), ("sessions", "s.id")):
                chosen = sorted(getattr(where, name))
                if chosen:
                    condition += f" AND {column} IN :{name}"
                    values[name] = chosen
            rows = (
                "SELECT DISTINCT s.user_id AS id FROM session s "
                f"LEFT JOIN users u ON u.id = s.user_id WHERE u.id IS NULL{condition}"
            )
            count = await self._gather(connection, rows, values)
            await self._note(connection, note, "user-row-missing", "id")
            await self._run(connection, f"INSERT INTO users (id) SELECT id FROM {self._gathered}")
            return count

    # The index

    async def _missing_index(self, note: Note) -> int:
        """Creates it; in PostgreSQL outside of a transaction, which would keep agents waiting."""
        async with self._alone() as connection:
            if not await connection.run_sync(lacks_index):
                return 0
            await note({"code": "no-session-index", "index": INDEX})
            online = "CONCURRENTLY " if self._store.kind == "postgresql" else ""
            if online:  # an attempt that was cut short leaves one that is of no use
                await self._run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
            await self._run(connection, f"CREATE INDEX {online}{INDEX} ON message (session_id)")
            return 1

    async def _drop_index(self) -> int:
        async with self._alone() as connection:
            match self._store.kind:
                case "postgresql":
                    await self._run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
                case "sqlite":
                    await self._run(connection, f"DROP INDEX IF EXISTS {INDEX}")
                case _:
                    found = await connection.execute(
                        text("SHOW INDEX FROM message WHERE Key_name = :name"), {"name": INDEX}
                    )
                    if found.first() is not None:
                        await self._run(connection, f"DROP INDEX {INDEX} ON message")
        return 1

    # Taking back

    async def _revert(self, connection: AsyncConnection, record: Record) -> int:
        match record["code"]:
            case "orphan-mark":
                empty = "SELECT msg_id AS id, mark FROM message_mark WHERE 1 = 0"
                await self._fill(connection, empty, ("id", "mark"), record["rows"])
                return await self._run(
                    connection,
                    f"INSERT INTO message_mark (msg_id, mark) SELECT t.id, t.mark "
                    f"FROM {self._gathered} t LEFT JOIN message m ON m.id = t.id "
                    "LEFT JOIN message_mark k ON k.msg_id = t.id AND k.mark = t.mark "
                    "WHERE m.id IS NULL AND k.mark IS NULL",
                )
            case "duplicate-index":
                empty = (
                    f"SELECT id, {self._index} AS old_index, {self._index} AS new_index "
                    "FROM message WHERE 1 = 0"
                )
                columns = ("id", "old_index", "new_index")
                await self._fill(connection, empty, columns, record["rows"])
                return await self._move(connection, "new_index", "old_index")
            case "user-row-missing":
                empty = "SELECT id FROM users WHERE 1 = 0"
                await self._fill(connection, empty, ("id",), record["rows"])
                return await self._run(
                    connection,
                    f"DELETE FROM users WHERE id IN (SELECT t.id FROM {self._gathered} t)",
                )
        raise UsageError(f"{record['code']!r} is nothing that a database mends", "")

    # What they share

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        async with (
            self._store.connected() as connection,
            self._store.transaction(connection),
        ):
            yield connection

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[AsyncConnection]:
        with self._store.errors():
            connection = await self._store.connect_alone()
            try:
                yield connection
            finally:
                await connection.close()

    async def _run(self, connection: AsyncConnection, sql: str) -> int:
        return (await connection.execute(text(sql))).rowcount

    async def _gather(
        self, connection: AsyncConnection, rows: str, values: dict[str, list[str]]
    ) -> int:
        """Keeps the rows of a SELECT in the temporary table, and counts them."""
        temporary = "TEMPORARY " if self._store.kind == "mysql" else ""
        await self._run(connection, f"DROP {temporary}TABLE IF EXISTS {self._gathered}")
        sql = f"CREATE TEMPORARY TABLE memctl_mend AS {rows}"
        await connection.execute(*self._store.bind(sql, values))
        found = await connection.execute(text(f"SELECT COUNT(*) FROM {self._gathered}"))
        return int(found.scalar_one())

    async def _fill(
        self, connection: AsyncConnection, empty: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Puts noted rows into the temporary table, whose columns are those of a SELECT."""
        await self._gather(connection, empty, {})
        names = ", ".join(columns)
        places = ", ".join(f":{name}" for name in columns)
        sql = text(f"INSERT INTO {self._gathered} ({names}) VALUES ({places})")
        if rows:
            found = [dict(zip(columns, row, strict=True)) for row in rows]
            await connection.execute(sql, found)

    async def _note(self, connection: AsyncConnection, note: Note, code: str, columns: str) -> None:
        sql = f"SELECT {columns} FROM {self._gathered}"
        async with aclosing(self._store.rows(connection, sql, {}, _ROWS)) as partitions:
            async for rows in partitions:
                if rows:
                    await note({"code": code, "rows": [list(row) for row in rows]})
