"""Locking rows before they change, and no others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

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


class Row(NamedTuple):
    """Whose message a row holds, and where it stands."""

    session: str
    user: str
    index: int  # type: ignore[assignment]


async def locked_rows(
    store: SqlDatabase, connection: AsyncConnection, row_ids: list[str], lock: str
) -> dict[str, Row]:
    """The messages of these keys that are there, by their keys; ``lock`` as for ``lock_rows``.

    Whose they are is asked of few: of most the key tells, as ``SqlDialect.splits`` has it.
    """
    # What a subquery reads is not locked.
    owner = "(SELECT s.user_id FROM session s WHERE s.id = t.session_id)"
    columns = f"t.id, t.session_id, {owner}, t.{store.quote}index{store.quote}"
    sql = f"SELECT {columns} FROM {store.keyed('message', 'id')} {lock}"
    rows: dict[str, Row] = {}
    rest: list[str] = []
    for row_id, session, user, position in await store.for_rows(connection, sql, row_ids):
        if user is not None and _splits(row_id, user, session):
            rows[row_id] = Row(session, user, position)
        else:
            rest.append(row_id)
    if rest:
        sql = (
            f"SELECT m.id, m.session_id, {store.user}, {store.index} "
            f"FROM {store.source()} WHERE m.id IN :rows"
        )
        for row_id, *row in await store.for_rows(connection, sql, rest):
            rows[row_id] = Row(*row)
    return rows


def _splits(row_id: str, owner: str, session: str) -> bool:
    between = f"-{session}-"
    return (
        row_id.startswith(owner)
        and row_id.find(between) == len(owner)
        and row_id.find(between, len(owner) + 1) < 0
    )


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
) -> AsyncGenerator[list[str]]:
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
