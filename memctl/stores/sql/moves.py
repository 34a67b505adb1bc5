"""Rows that move up in their session, to make room for others."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.places import Move
from memctl.stores.sql.row_locks import lock_rows, row_pages


async def move(
    store: SqlDatabase, connection: AsyncConnection, moves: Sequence[tuple[str, Move]], lock: str
) -> None:
    """Moves the rows of sessions that are claimed, all of them in one pass over the table.

    ``lock`` is the SQL that locks them, empty where none are.
    """
    if not moves:
        return
    name = f"{store.quote}index{store.quote}"
    await connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS memctl_moves {store.moves_key} "
        f"AS SELECT session_id, {name} AS low, {name} AS distance FROM message WHERE 1 = 0"
    )
    if not store.moves_key:
        await connection.exec_driver_sql(
            "CREATE INDEX IF NOT EXISTS memctl_moves_low ON memctl_moves (session_id, low)"
        )
    rows = [(session, one.low, one.by) for session, one in moves]
    await store.insert(connection, "memctl_moves", ["session_id", "low", "distance"], rows)
    moved = f"m.session_id IN :sessions AND {store.index} >= :low"
    values = {
        "sessions": sorted({session for session, _ in moves}),
        "low": min(one.low for _, one in moves),
    }
    if store.locks_what_it_reads:
        change = f"UPDATE {store.keyed('message', 'id')} SET {_moved('t', name)}"
        async for row_ids in row_pages(store, connection, moved, values):
            await lock_rows(store, connection, row_ids, lock)
            await store.for_rows(connection, change, row_ids)
    else:
        if lock:
            locked = f"SELECT 1 FROM message m WHERE {moved} {lock}"
            counted = f"SELECT COUNT(*) FROM ({locked}) AS locked"
            await connection.execute(*store.bind(counted, values))
        change = f"UPDATE message AS m SET {_moved('m', name)} WHERE {moved}"
        await connection.execute(*store.bind(change, values))
    await connection.exec_driver_sql("DELETE FROM memctl_moves")


def _moved(row: str, name: str) -> str:
    distance = (
        f"SELECT v.distance FROM memctl_moves v WHERE v.session_id = {row}.session_id "
        f"AND v.low <= {row}.{name} ORDER BY v.low DESC LIMIT 1"
    )
    # PostgreSQL wants the column that is set without its table.
    return f"{name} = {row}.{name} + COALESCE(({distance}), 0)"
