"""Locking rows before they change, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.stores.sql.database import SqlDatabase

PAGE_ROWS = 1000


async def lock_rows(
    store: SqlDatabase,
    connection: AsyncConnection,
    row_ids: list[str],
    lock: str,
    table: str = "message",
    column: str = "id",
) -> None:
    """Locks rows by their keys, those of messages if not said otherwise.

    ``lock`` is the SQL that does it.
    """
    locked = f"SELECT 1 FROM {store.keyed(table, column)} {lock}"
    await store.for_rows(connection, f"SELECT COUNT(*) FROM ({locked}) AS locked", row_ids)


async def lock_session(
    store: SqlDatabase, connection: AsyncConnection, session: str, lock: str
) -> None:
    """Locks all messages of a session and their marks."""
    values = {"sessions": [session]}
    condition = "m.session_id IN :sessions"
    if store.locks_what_it_reads:
        async for row_ids in row_pages(store, connection, condition, values):
            await lock_rows(store, connection, row_ids, lock)
            await lock_rows(store, connection, row_ids, lock, "message_mark", "msg_id")
        return
    rows = f"SELECT m.id FROM message m WHERE {condition}"
    for sql in f"SELECT 1 FROM message_mark WHERE msg_id IN ({rows})", rows:
        counted = f"SELECT COUNT(*) FROM ({sql} {lock}) AS locked"
        await connection.execute(*store.bind(counted, values))


async def row_pages(
    store: SqlDatabase, connection: AsyncConnection, condition: str, values: Mapping[str, Any]
) -> AsyncIterator[list[str]]:
    """The ids of the rows ``m`` for which the condition holds, some at a time; none is locked."""
    more = ""
    known = dict(values)
    while True:
        sql = f"SELECT m.id FROM message m WHERE {condition} {more} ORDER BY m.id LIMIT {PAGE_ROWS}"
        row_ids = [row_id for (row_id,) in await connection.execute(*store.bind(sql, known))]
        if not row_ids:
            return
        yield row_ids
        more = "AND m.id > :last"
        known["last"] = row_ids[-1]
