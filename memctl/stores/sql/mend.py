"""Mending what ``faults`` finds in AgentScope's tables, and taking it back.

What is to be changed is gathered in a temporary table and noted from there, so that one statement
changes it, and nothing else, whatever its size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import UsageError
from memctl.model import Finding
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record
from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.faults import duplicate_sessions, faults, lacks_index

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
