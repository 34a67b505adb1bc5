"""Other names for sessions and users in AgentScope 1.x's tables.

The id of a row of ``message`` is ``{user}-{session}-{message id}``, so it gets another name, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import RejectedValue
from memctl.engines.sql.renaming import Renamed, Renaming
from memctl.location import visible
from memctl.model import MemoryKey, WriteResult
from memctl.stores.agentscope1.sql.locks import lock_rows, lock_session_content
from memctl.stores.agentscope1.sql.statements import COLUMNS
from memctl.stores.agentscope1.sql.tables import MemoryTables


async def rename(
    database: MemoryTables, moves: Mapping[MemoryKey, MemoryKey]
) -> AsyncGenerator[WriteResult]:
    """Rename memories in one transaction (``Store.rename``)."""
    renaming = Renaming(database, COLUMNS)
    await renaming.find()
    statements = database.statements
    lock = f"{statements.row_lock} {statements.no_wait}".strip()
    sessions = sorted({key.session for key in moves})
    async with database.connect() as connection:
        await database.prepare_erasing(connection)
        async with database.transaction(connection):
            if lock:
                await lock_rows(database, connection, sessions, lock, "session")
                await lock_session_content(database, connection, sessions, lock)
            users = {old.user: new.user for old, new in moves.items() if old.user != new.user}
            for old, new in users.items():
                await _add_user(database, renaming, connection, old, new)
            for session in sessions:
                some = {old: new for old, new in moves.items() if old.session == session}
                await _rename_session(database, renaming, connection, session, some)
            for old in users:
                gone = f"{statements.among('id', 'users')} AND NOT EXISTS "
                gone += "(SELECT 1 FROM session s WHERE s.user_id = users.id)"
                sql = f"DELETE FROM users WHERE {gone}"
                await database.change(connection, sql, {"users": [old]})
        await database.finish_erasing(connection)
    for key in moves:
        yield WriteResult(key)


async def _add_user(
    database: MemoryTables, renaming: Renaming, connection: AsyncConnection, old: str, new: str
) -> None:
    """Add the row of a user, as a copy of the row of another."""
    quoted, among = database.statements.quoted, database.statements.among
    sql = f"SELECT 1 FROM users WHERE {among('id', 'users')}"
    if await database.execute(connection, sql, {"users": [new]}):
        return
    columns = renaming.columns("users")
    selected = (database.statements.text("new") if one == "id" else quoted(one) for one in columns)
    sql = (
        f"INSERT INTO users ({', '.join(map(quoted, columns))}) "
        f"SELECT {', '.join(selected)} FROM users WHERE {among('id', 'users')}"
    )
    await database.change(connection, sql, {"new": new, "users": [old]})


async def _rename_session(
    database: MemoryTables,
    renaming: Renaming,
    connection: AsyncConnection,
    session: str,
    moves: Mapping[MemoryKey, MemoryKey],
) -> None:
    """Rename the memories of a session, each of another user.

    Raises:
        RejectedValue: the ids of rows do not tell the users apart.
    """
    statements = database.statements
    exact, text = statements.exact, statements.text
    target = next(iter(moves.values())).session
    values: dict[str, Any] = {"session": session, "target": target}
    here = f"session_id = :session AND {exact('session_id')} = {exact(':session')}"
    head = f"id = :session AND {exact('id')} = {exact(':session')}"
    steps = [Renamed("session", head, {"id": text("target")} if target != session else {})]
    rows: list[Renamed] = []
    starts: list[str] = []
    for at, (old, new) in enumerate(moves.items()):
        start = f"{old.user}-{session}-"
        values |= {f"start{at}": start, f"length{at}": len(start)}
        values |= {f"put{at}": f"{new.user}-{target}-", f"rest{at}": len(start) + 1}

        def begins(column: str, at: int = at) -> str:
            return f"{exact(f'SUBSTR({column}, 1, :length{at})')} = {exact(f':start{at}')}"

        def begun(column: str, at: int = at) -> str:
            return statements.joined(text(f"put{at}"), f"SUBSTR({column}, :rest{at})")

        await _refuse_unclear(database, connection, old, begins("m.id"), values)
        starts.append(begins("id"))
        new_row = {"id": begun("id")} | (
            {"session_id": text("target")} if target != session else {}
        )
        rows.append(Renamed("message", f"{here} AND {begins('id')}", new_row))
        marked = f"SELECT id FROM message WHERE {here}"
        where = f"{begins('msg_id')} AND msg_id IN ({marked})"
        rows.append(Renamed("message_mark", where, {"msg_id": begun("msg_id")}))
    if target != session:  # rows whose id names no user
        others = f"{here} AND NOT ({' OR '.join(starts)})"
        steps.append(Renamed("message", others, {"session_id": text("target")}))
    for at, (old, new) in enumerate(moves.items()):
        if old.user != new.user:
            values |= {f"user{at}": old.user, f"owner{at}": new.user}
            owned = f"{head} AND {exact('user_id')} = {exact(f':user{at}')}"
            steps.append(Renamed("session", owned, {"user_id": text(f"owner{at}")}))
    await renaming.rename(connection, [*steps, *rows], values)


async def _refuse_unclear(
    database: MemoryTables,
    connection: AsyncConnection,
    key: MemoryKey,
    begins: str,
    values: Mapping[str, Any],
) -> None:
    """Refuse a memory if rows of another user begin as its rows do."""
    statements = database.statements
    condition, more = statements.memory(key)
    here = f"message m WHERE {statements.among('m.session_id', 'sessions')} AND {begins}"
    own = f"{statements.source()} WHERE {condition} AND {begins}"
    found = set[Any]()
    for source, lists in ((here, {"sessions": more["sessions"]}), (own, more)):
        sql = f"SELECT COUNT(*) FROM {source}"
        found.update(await database.execute(connection, sql, {**values, **lists}))
    if len(found) > 1:
        text = f"ids of rows in the session {visible(key.session)!r} can be those of several users"
        raise RejectedValue(f"{database.label}: {text}", "refused")
