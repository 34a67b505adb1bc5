"""Locks on sessions and rows until a transaction ends.

The parameter ``lock`` is SQL to lock rows, empty for a database without row locks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.executor import Refused
from memctl.errors import Failure
from memctl.model import Memory, MemoryKey
from memctl.stores.agentscope1.sql.tables import MemoryTables

PAGE_ROWS = 1000


_OWNER = "owner"
"""The note of a new row for the owner of a new session, if the owner is another user."""


UNOWNED = Failure(
    "damaged",
    "its session has no row, so its owner is unknown: open the session once as its owner, or "
    "insert the row",
)
"""The failure of a change of a memory whose session has messages and no row.

With a row, the owner would become the user of all messages that name no user.
"""


class LockedSessions(NamedTuple):
    """The locked sessions, and the rows that this run created.

    - ``known``: the sessions that may hold messages.
    - ``sessions``, ``users``: the sessions and users whose rows this run created.  The undo of the
      last memory with such a row deletes the row.
    - ``owners``: the owners of new sessions, by session, if the row of the owner is also new.
    - ``guests``: the memories in sessions of other users.
    - ``taken``: the memories without messages in sessions of other users.
    """

    known: set[str]
    sessions: set[str]
    users: set[str]
    owners: Mapping[str, str]
    guests: Collection[MemoryKey]
    taken: Collection[MemoryKey]

    def before(self, key: MemoryKey) -> str:
        """Return ``WriteResult.before`` for a memory: JSON that names created rows, or ""."""
        made = {
            "session": key.session in self.sessions,
            "user": key.user in self.users,
        }
        notes: dict[str, str | None] = {name: None for name in made if made[name]}
        owner = self.owners.get(key.session, key.user)
        if "session" in notes and owner != key.user:
            notes[_OWNER] = owner
        return json.dumps(notes) if notes else ""


def session_owners(memories: Iterable[Memory]) -> dict[str, str]:
    """Return the owners of the memories' sessions that belong to other users, by session."""
    return {one.key.session: one.owner for one in memories if one.owner is not None}


async def lock_sessions(
    database: MemoryTables,
    connection: AsyncConnection,
    keys: Sequence[MemoryKey],
    lock: str,
    *,
    owners_only: bool = False,
    guests: Collection[str] = (),
    filled: Collection[str] | None = None,
    empty: Collection[MemoryKey] = (),
    given: Mapping[str, str] | None = None,
) -> LockedSessions:
    """Lock the sessions of the memories ``keys``; create missing rows of sessions and users.

    ``empty`` are the memories without messages.  Such a memory is only a row of a session, so its
    user must own the session.  ``given`` has the owners of sessions of other users, by session.
    ``filled`` are the sessions with messages; None if unknown.  With ``owners_only``, a missing row
    of a user is created only for the owners of new sessions and for ``guests``.  A user with
    sessions and without a row gets none: doctor names that.

    Agents and other runs may write to an existing session until it is locked.

    Raises:
        Refused: a session has messages and no row, or its row has no owner.
    """
    owners = dict(given or {})
    for key in [*(key for key in keys if key in empty), *keys]:
        owners.setdefault(key.session, key.user)
    existing = f"SELECT t.id, t.user_id FROM {database.statements.keyed_rows('session', 'id')}"
    existing += f" ORDER BY t.id {lock}"
    found = dict(await database.for_rows(connection, existing, sorted(owners)))
    known = set(found)
    new = sorted((name, user) for name, user in owners.items() if name not in known)
    if new and filled is None:
        sql = "SELECT DISTINCT m.session_id FROM message m WHERE m.session_id IN :sessions"
        values = {"sessions": [name for name, _ in new]}
        filled = {name for (name,) in await database.fetch_all(connection, sql, values)}
    lost = {name for name, _ in new}.intersection(filled or ())
    lost |= {name for name, owner in found.items() if not isinstance(owner, str)}
    if lost:
        raise Refused({key: UNOWNED for key in keys if key.session in lost})
    users = {user for _, user in new}.union(guests)
    if not owners_only:
        users.update(key.user for key in keys)
    if users:
        sql = f"SELECT t.id FROM {database.statements.keyed_rows('users', 'id')}"
        users -= {row[0] for row in await database.for_rows(connection, sql, sorted(users))}
    if users:
        sql = "SELECT DISTINCT s.user_id FROM session s WHERE s.user_id IN :users"
        listed = await database.fetch_all(connection, sql, {"users": sorted(users)})
        users.difference_update(name for (name,) in listed)
    if users:
        rows = [(user,) for user in sorted(users)]
        await database.insert_missing(connection, "users", ["id"], rows)
        database.new_users |= users
    sessions = {name for name, _ in new}
    if new:
        created = await database.insert_missing(connection, "session", ["id", "user_id"], new)
        if created < len(new):
            known |= sessions
            sessions = set()
            found = dict(await database.for_rows(connection, existing, sorted(owners)))
    owners |= found
    users = database.new_users.intersection(key.user for key in keys)
    database.new_sessions |= sessions
    sessions = database.new_sessions.intersection(owners)
    new_owners = {name: owners[name] for name in sessions if owners[name] in database.new_users}
    guest = {key for key in keys if owners[key.session] != key.user}
    taken = guest.intersection(empty)
    return LockedSessions(known, sessions, users, new_owners, guest, taken)


async def remove_empty(
    database: MemoryTables,
    connection: AsyncConnection,
    made: Mapping[MemoryKey, Mapping[str, Any]],
    *,
    spare: bool = True,
) -> set[MemoryKey]:
    """Delete the rows of the sessions and the users noted in ``made`` by memory, if unused.

    With ``spare``, a row with a value in a column that an application added stays.  Returns the
    last memory of each user noted as ``user`` whose row was deleted.

    Raises:
        RejectedValue: with ``spare``, a trigger, a rule or a policy of the database kept rows.
    """
    sessions = {key.session for key, notes in made.items() if "session" in notes}
    users = {key.user: key for key, notes in made.items() if "user" in notes}
    owners = {notes[_OWNER] for notes in made.values() if _OWNER in notes}

    async def delete(table: str, names: Set[str], child: str, column: str) -> set[str]:
        condition = f" AND {database.statements.is_unused(child, column)}"
        # A value that the application gave to the row would not come back.
        for added in database.added_columns.get(table, ()) if spare else ():
            condition += f" AND t.{database.statements.quoted(added)} IS NULL"
        gone, kept = await _delete_rows(database, connection, table, names, condition)
        if spare:
            database.check_deleted(table, kept, 0)
        return gone

    await delete("session", sessions, "message", "session_id")
    gone = await delete("users", owners.union(users), "session", "user_id")
    return {users[name] for name in users.keys() & gone}


async def _delete_rows(
    database: MemoryTables, connection: AsyncConnection, table: str, names: Set[str], condition: str
) -> tuple[set[str], int]:
    """Delete the rows of a table with the ids ``names`` that meet a condition.

    ``condition`` is further SQL about the row ``t``.  Returns the ids of the deleted rows, and the
    number of rows that meet the condition and still exist.
    """
    sql = f"SELECT t.id FROM {database.statements.keyed_rows(table, 'id')}"
    rows = await database.for_rows(connection, sql, sorted(names)) if names else []
    found = sorted(names & {name for (name,) in rows})  # SQL may ignore case
    if not found:
        return set(), 0
    delete = database.statements.delete_keyed(table, "id") + condition
    await database.for_rows(connection, delete, found)
    kept = await database.for_rows(connection, sql + condition, found)
    rows = await database.for_rows(connection, sql, found)
    return set(found).difference(name for (name,) in rows), len(kept)


async def lock_rows(
    database: MemoryTables,
    connection: AsyncConnection,
    row_ids: list[str],
    lock: str,
    table: str = "message",
    column: str = "id",
) -> None:
    """Lock the rows of ``table`` whose column ``column`` has one of ``row_ids``.

    ``column`` is the first column of the primary key.  ``lock`` is SQL at the end of a SELECT.
    """
    await database.for_rows(
        connection,
        _counted(f"SELECT 1 FROM {database.statements.keyed_rows(table, column)} {lock}"),
        row_ids,
    )


class MessageRow(NamedTuple):
    """The memory and the position of a row of ``message``.

    ``owned`` is True if the table ``session`` has a row for the session.
    """

    session: str
    user: str
    position: int
    owned: bool = True


async def lock_messages(
    database: MemoryTables, connection: AsyncConnection, row_ids: list[str], lock: str
) -> dict[str, MessageRow]:
    """Lock the messages with these row ids; return the messages that exist, by row id.

    ``lock`` is SQL at the end of a SELECT.  Few messages are parsed, because most row ids identify
    the user (``Statements.is_plain_id``).
    """
    statements = database.statements
    # A subquery does not lock rows.
    owner = "(SELECT s.user_id FROM session s WHERE s.id = t.session_id)"
    columns = f"t.id, t.session_id, {owner}, t.{statements.index_column}"
    sql = f"SELECT {columns} FROM {statements.keyed_rows('message', 'id')} {lock}"
    rows: dict[str, MessageRow] = {}
    rest: list[str] = []
    for row_id, session, user, position in await database.for_rows(connection, sql, row_ids):
        if isinstance(user, str) and is_plain_id(row_id, user, session):
            rows[row_id] = MessageRow(session, user, position)
        else:
            rest.append(row_id)
    if rest:
        sql = (
            f"SELECT m.id, m.session_id, {statements.user}, {statements.index}, s.id IS NOT NULL "
            f"FROM {statements.source()} WHERE m.id {statements.in_row_ids}"
        )
        for row_id, *row in await database.select_rows(connection, sql, rest):
            rows[row_id] = MessageRow(*row)
    return rows


def is_plain_id(row_id: str, owner: str, session: str) -> bool:
    """Return whether a row id can be split into owner, session and message id in only one way."""
    between = f"-{session}-"
    return (
        row_id.startswith(owner)
        and row_id.find(between) == len(owner)
        and row_id.find(between, len(owner) + 1) < 0
    )


async def lock_session_content(
    database: MemoryTables, connection: AsyncConnection, sessions: list[str], lock: str
) -> None:
    """Lock all messages and marks of sessions; ``lock`` is SQL at the end of a SELECT."""
    condition, values = "m.session_id IN :sessions", {"sessions": sessions}
    if database.statements.locks_scanned_rows:
        async for row_ids in row_pages(database, connection, condition, values):
            await lock_rows(database, connection, row_ids, lock)
            await lock_rows(database, connection, row_ids, lock, "message_mark", "msg_id")
        return
    rows = f"SELECT m.id FROM message m WHERE {condition}"
    for sql in f"SELECT 1 FROM message_mark WHERE msg_id IN ({rows})", rows:
        await lock_selected(database, connection, sql, values, lock)


async def lock_selected(
    database: MemoryTables,
    connection: AsyncConnection,
    sql: str,
    values: Mapping[str, Any],
    lock: str,
) -> None:
    """Lock the rows that the SELECT ``sql`` selects, without fetching them.

    ``values`` are the parameters of the SELECT.  ``lock`` is SQL at its end.
    """
    counted = _counted(f"{sql} {lock}")
    await connection.execute(counted, database.statements.bound(counted, values))


def _counted(sql: str) -> str:
    return f"SELECT COUNT(*) FROM ({sql}) AS locked"


async def row_pages(
    database: MemoryTables, connection: AsyncConnection, condition: str, values: Mapping[str, Any]
) -> AsyncGenerator[list[str]]:
    """Yield pages of the ids of the rows ``m`` of ``message`` that meet a condition.

    Locks no row.  ``values`` are the parameters of the condition.
    """
    more = ""
    bound = dict(values)
    while True:
        sql = f"SELECT m.id FROM message m WHERE {condition} {more} ORDER BY m.id LIMIT {PAGE_ROWS}"
        found = await connection.execute(sql, database.statements.bound(sql, bound))
        row_ids = [row_id for (row_id,) in found]
        if not row_ids:
            return
        yield row_ids
        more = "AND m.id > :last"
        bound["last"] = row_ids[-1]
