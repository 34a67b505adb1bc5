"""Rows that move up in their session, to make room for others."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.stores.sql.database import SqlDatabase
from memctl.stores.sql.places import Move

_DISTANCE = (
    "SELECT v.distance FROM memctl_moves v WHERE v.session_id = m.session_id "
    "AND v.low <= {index} ORDER BY v.low DESC LIMIT 1"
)


async def move(
    store: SqlDatabase, connection: AsyncConnection, moves: Sequence[tuple[str, Move]], lock: str
) -> None:
    """Moves the rows of sessions, all of them in one pass over the table.

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
    sql = (
        f"UPDATE message AS m SET {name} = {store.index} + "
        f"COALESCE(({_DISTANCE.format(index=store.index)}), 0) "
        f"WHERE {moved}"
    )
    values = {
        "sessions": sorted({session for session, _ in moves}),
        "low": min(one.low for _, one in moves),
    }
    if lock:
        locked = f"SELECT 1 FROM message m WHERE {moved} {lock}"
        await connection.execute(*store.bind(f"SELECT COUNT(*) FROM ({locked}) AS locked", values))
    await connection.execute(*store.bind(sql, values))
    await connection.exec_driver_sql("DELETE FROM memctl_moves")
