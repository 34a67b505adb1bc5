"""Checks and repairs of AgentScope's tables, with a statement for each kind of finding.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from operator import itemgetter
from typing import Any

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import shown_name
from memctl.engines.sql.inspector import inspect
from memctl.errors import UsageError
from memctl.json import jsonio
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record, Store
from memctl.stores.agentscope1.sql.schema import REPAIRS
from memctl.stores.agentscope1.sql.statements import COLUMNS
from memctl.stores.agentscope1.sql.tables import MemoryTables, name_of
from memctl.stores.agentscope1.sql.write import MAX_INDEX

INDEX = "ix_message_session_id"
"""The name that SQLAlchemy gives an index on ``message.session_id``."""

EXAMPLES = 3
_PAGE_ROWS = 1000
_NOTED = "memctl_repair"
"""The temporary table of the rows to repair."""


class SqlMaintenance(Maintenance):
    """Checks and repairs of AgentScope's tables.

    A repair collects rows in a temporary table, records them for undo, and changes the same rows in
    a single statement.
    """

    def __init__(self, store: Store, database: MemoryTables) -> None:
        super().__init__(store)
        self._database = database
        self._statements = database.statements
        self._table = database.statements.temporary(_NOTED)

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async with self._database.snapshot(find_huge=True) as connection:
            checks = _Checks(self._database, connection, where)
            selected: list[Callable[[], AsyncGenerator[Finding]]] = [
                checks.shared_sessions,
                checks.duplicate_indexes,
                checks.strange_row_ids,
                checks.missing_sessions,
                checks.missing_users,
                checks.damaged_rows,
            ]
            if where.leads and not where.named:  # rows that belong to no memory
                selected += [checks.orphan_marks, checks.missing_index]
            for check in selected:
                async with aclosing(check()) as found:
                    async for finding in found:
                        if finding.key is None or where.has_key(finding.key):
                            yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        match code:
            case "orphan-mark":
                return 0 if where.named else await self._delete_orphan_marks(note)
            case "duplicate-index":
                return await self._renumber(where, note)
            case "no-session-index":
                return 0 if where.named else await self._create_index(note)
        raise UsageError(f"{code} cannot be repaired in a database", f"known: {sorted(REPAIRS)}")

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        undone = 0
        async with aclosing(records), self._database.connect() as connection:
            async for record in records:
                if record["code"] == "no-session-index":
                    undone += await self._drop_index()
                    continue
                async with self._database.transaction(connection):
                    undone += await self._revert(connection, record)
        return undone

    # Repairs

    async def _delete_orphan_marks(self, note: Note) -> int:
        async with self._transaction() as connection:
            rows = (
                "SELECT k.msg_id AS id, k.mark AS mark FROM message_mark k "
                "LEFT JOIN message m ON m.id = k.msg_id "
                f"WHERE m.id IS NULL AND {self._statements.is_sound_mark}"
            )
            count = await self._collect(connection, rows, {})
            await self._note(connection, note, "orphan-mark", "id, mark")
            await self._run(
                connection,
                "DELETE FROM message_mark WHERE NOT EXISTS "
                "(SELECT 1 FROM message m WHERE m.id = message_mark.msg_id) "
                f"AND {self._statements.is_sound_mark.replace('k.', '')}",
            )
            return count

    async def _renumber(self, where: Selection, note: Note) -> int:
        """Increase indexes until no session repeats one; the messages keep their order.

        Return the number of changed indexes.
        """
        statements, index = self._statements, self._statements.index_column
        sessions = await self._sessions_with_duplicates(where)
        if not sessions:
            return 0
        async with self._transaction() as connection:
            moved = 0
            for start in range(0, len(sessions), _PAGE_ROWS):
                values = {"sessions": sessions[start : start + _PAGE_ROWS]}
                await self._lock(connection, values)
                values = {"sessions": await self._with_room(connection, values)}
                if not values["sessions"]:
                    continue
                place = f"{index}, {statements.exact(statements.sortable('id'))}"
                numbered = (
                    f"SELECT id, session_id, {index} AS old_index, CAST(ROW_NUMBER() OVER "
                    f"(PARTITION BY session_id ORDER BY {place}) AS {statements.big_integer}) "
                    "AS place FROM message WHERE session_id IN :sessions "
                    f"AND {statements.sound}"
                )
                rows = (
                    "SELECT id, old_index, new_index FROM (SELECT id, old_index, place + "
                    "MAX(old_index - place) OVER (PARTITION BY session_id ORDER BY place "
                    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS new_index "
                    f"FROM ({numbered}) AS numbered) AS moved WHERE new_index <> old_index"
                )
                moved += await self._collect(connection, rows, values)
                await self._note(connection, note, "duplicate-index", "id, old_index, new_index")
                update = statements.update_index(self._table, "old_index", "new_index")
                await self._run(connection, update)
            return moved

    async def _with_room(
        self, connection: AsyncConnection, values: dict[str, list[str]]
    ) -> list[str]:
        index = self._statements.index_column
        sql = (
            "SELECT session_id FROM message WHERE session_id IN :sessions "
            f"AND {self._statements.sound} GROUP BY session_id "
            f"HAVING MAX({index}) <= {MAX_INDEX} - COUNT(*)"
        )
        return [name for (name,) in await self._database.fetch_all(connection, sql, values)]

    async def _sessions_with_duplicates(self, where: Selection) -> list[str]:
        async with self._database.snapshot() as connection:
            checks = _Checks(self._database, connection, where)
            async with aclosing(checks.duplicate_indexes()) as found:
                return [
                    finding.key.session
                    async for finding in found
                    if finding.key is not None and where.has_key(finding.key)
                ]

    async def _lock(self, connection: AsyncConnection, values: dict[str, list[str]]) -> None:
        lock = self._statements.row_lock
        sql = f"SELECT id FROM session WHERE id IN :sessions ORDER BY id {lock}"
        await connection.execute(sql, self._statements.bound(sql, values))

    async def _create_index(self, note: Note) -> int:
        async with self._database.snapshot() as connection:
            if not await lacks_index(self._database, connection):
                return 0
        await note({"code": "no-session-index", "index": INDEX})
        async with self._autocommit() as connection:
            for sql in self._statements.create_session_index(INDEX):
                await self._database.execute_alone(connection, sql)
        return 1

    async def _drop_index(self) -> int:
        if INDEX in [index["name"] for index in await self._database.look(_indexes)]:
            async with self._autocommit() as connection:
                sql = self._statements.drop_session_index(INDEX)
                await self._database.execute_alone(connection, sql)
        return 1

    # Undo

    async def _revert(self, connection: AsyncConnection, record: Record) -> int:
        if record["code"] != "duplicate-index":
            raise UsageError(f"{record['code']!r} is not a repair of a database", "")
        index = self._statements.index_column
        empty = f"SELECT id, {index} AS old_index, {index} AS new_index FROM message"
        await self._collect(connection, f"{empty} WHERE 1 = 0", {})
        columns = ("id", "old_index", "new_index")
        found = [dict(zip(columns, row, strict=True)) for row in record["rows"]]
        sql = f"INSERT INTO {self._table} VALUES (:id, :old_index, :new_index)"
        await connection.execute(sql, found)
        update = self._statements.update_index(self._table, "new_index", "old_index")
        return await self._run(connection, update)

    # Steps

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        async with (
            self._database.connect() as connection,
            self._database.transaction(connection),
        ):
            yield connection

    @asynccontextmanager
    async def _autocommit(self) -> AsyncGenerator[AsyncConnection]:
        with self._database.errors():
            connection = await self._database.connect_autocommit()
            try:
                yield connection
            finally:
                await connection.close()

    async def _run(self, connection: AsyncConnection, sql: str) -> int:
        return (await connection.execute(sql)).rowcount

    async def _collect(
        self, connection: AsyncConnection, rows: str, values: dict[str, list[str]]
    ) -> int:
        await self._run(connection, self._statements.drop_temporary(_NOTED))
        sql = f"CREATE TEMPORARY TABLE {_NOTED} {self._statements.temporary_end} AS {rows}"
        await connection.execute(sql, self._statements.bound(sql, values))
        found = await connection.execute(f"SELECT COUNT(*) FROM {self._table}")
        return int(found.scalar())

    async def _note(self, connection: AsyncConnection, note: Note, code: str, columns: str) -> None:
        sql = f"SELECT {columns} FROM {self._table}"
        async with aclosing(self._database.rows(connection, sql, {}, _PAGE_ROWS)) as partitions:
            async for rows in partitions:
                if rows:
                    await note({"code": code, "rows": [list(row) for row in rows]})


async def lacks_index(database: MemoryTables, connection: AsyncConnection) -> bool:
    """Return whether the table ``message`` has no usable index that begins with ``session_id``.

    InnoDB always has such an index for the foreign key.
    """
    ignored: set[str] = set()
    if unusable := database.statements.unusable_indexes:
        ignored = {name for (name,) in await database.fetch_all(connection, unusable, {})}
    return not any(
        index["column_names"][:1] == ["session_id"] and index["name"] not in ignored
        for index in await connection.run(_indexes)
    )


def _indexes(connection: Any) -> list[Any]:
    found: list[Any] = inspect(connection).get_indexes("message")
    return found


class _Checks:
    """The checks of AgentScope's tables.  Each check yields findings, and reads each table once."""

    def __init__(
        self, database: MemoryTables, connection: AsyncConnection, where: Selection
    ) -> None:
        self._database = database
        self._connection = connection
        self._where = where
        # Check all users of a session, even if the selection names a user.
        sessions = Selection(sessions=where.sessions)
        self._condition, self._values = database.statements.condition(sessions)

    async def _rows(
        self, sql: str, values: dict[str, list[str]] | None = None
    ) -> AsyncGenerator[Sequence[Any]]:
        async with aclosing(self._database.rows(self._connection, sql, values or {})) as partitions:
            async for rows in partitions:
                for row in rows:
                    yield row

    async def shared_sessions(self) -> AsyncGenerator[Finding]:
        """Find sessions with messages of several users, or of another user than the owner."""
        statements = self._database.statements
        sql = (
            "SELECT session_id, user_id, MIN(owner), COUNT(*) FROM ("
            f"SELECT {statements.sortable('m.session_id')} AS session_id, "
            f"{statements.sortable(statements.user)} AS user_id, s.user_id AS owner "
            f"FROM {statements.source()} WHERE {self._condition} "
            f"{statements.subquery_barrier}) AS found "
            f"GROUP BY {statements.exact('session_id')}, {statements.exact('user_id')} "
            f"ORDER BY {statements.exact('session_id')}, {statements.exact('user_id')}"
        )
        session: list[Sequence[Any]] = []
        async with aclosing(self._rows(sql, self._values)) as rows:
            async for row in rows:
                if session and session[0][0] != row[0]:
                    for finding in _shared(session):
                        yield finding
                    session = []
                session.append(row)
        for finding in _shared(session):
            yield finding

    async def duplicate_indexes(self) -> AsyncGenerator[Finding]:
        """Find indexes that several messages of one session have."""
        statements = self._database.statements
        session = statements.sortable("m.session_id")
        sql = (
            "SELECT session_id, position, MIN(owner), COUNT(*) FROM ("
            f"SELECT {session} AS session_id, {statements.index} AS position, s.user_id AS owner "
            f"FROM (SELECT * FROM message WHERE {statements.sound}) m "
            f"LEFT JOIN session s ON s.id = m.session_id WHERE {self._condition}) AS found "
            f"GROUP BY {statements.exact('session_id')}, position HAVING COUNT(*) > 1 "
            f"ORDER BY {statements.exact('session_id')}, position"
        )
        async with aclosing(self._rows(sql, self._values)) as rows:
            count = 0
            first: list[str] = []
            last: MemoryKey | None = None
            async for name, position, owner, number in rows:
                key = MemoryKey("" if owner is None else shown_name(owner), shown_name(name))
                if last is not None and key != last:
                    yield _duplicates(last, count, first)
                    count, first = 0, []
                last = key
                count += number - 1
                if len(first) < EXAMPLES:
                    first.append(str(position))
            if last is not None:
                yield _duplicates(last, count, first)

    def strange_row_ids(self) -> AsyncGenerator[Finding]:
        """Find messages with a row id other than ``{user}-{session}-{message id}``."""
        condition = f"{self._database.statements.is_foreign_id()} = 1"
        return self._messages("row-id-mismatch", condition)

    def missing_sessions(self) -> AsyncGenerator[Finding]:
        """Find messages of sessions without a row in the table ``session``."""
        return self._messages("session-row-missing", "s.id IS NULL")

    async def missing_users(self) -> AsyncGenerator[Finding]:
        """Find sessions of users without a row in the table ``users``."""
        sql = (
            f"SELECT s.user_id, s.id FROM {self._database.statements.session_table} s "
            "LEFT JOIN users u ON u.id = s.user_id WHERE u.id IS NULL"
        )
        async with aclosing(self._rows(sql)) as rows:
            async for user, session in rows:
                yield Finding("user-row-missing", MemoryKey(user, session))

    async def damaged_rows(self) -> AsyncGenerator[Finding]:
        """Find rows that memctl and AgentScope cannot read.

        Rows of an unknown memory are left out if the selection names memories.
        """
        found: dict[MemoryKey | None, tuple[int, list[str]]] = {}
        proved = self._database.proved == self._where
        for table in COLUMNS:
            sql = self._database.statements.damaged_rows(table, proved=proved)
            if not sql:
                continue
            async with aclosing(self._rows(sql)) as rows:
                async for place, user, session, message in rows:
                    if message is not None and jsonio.is_object(message):
                        continue
                    names = [name_of(user), name_of(session)]
                    key = MemoryKey(*names) if any(names) else None
                    if key is None and not (self._where.leads and not self._where.named):
                        continue
                    count, examples = found.get(key, (0, []))
                    if len(examples) < EXAMPLES:
                        examples.append(f"{table}:{place}")
                    found[key] = count + 1, examples
        for key, (count, examples) in found.items():
            yield Finding("damaged-row", key, count, tuple(examples))

    async def orphan_marks(self) -> AsyncGenerator[Finding]:
        """Find marks of messages that do not exist.

        SQLite does not enforce foreign keys by default.
        """
        sql = (
            "SELECT k.msg_id FROM message_mark k LEFT JOIN message m ON m.id = k.msg_id "
            f"WHERE m.id IS NULL AND {self._database.statements.is_sound_mark}"
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
        """Find a missing index on ``session_id``, the search column of AgentScope."""
        if await lacks_index(self._database, self._connection):
            yield Finding("no-session-index", None)

    async def _messages(self, code: str, condition: str) -> AsyncGenerator[Finding]:
        """Yield a finding for each memory with messages that meet the condition."""
        statements = self._database.statements
        sql = (
            f"SELECT {statements.user} AS user_id, m.session_id, m.id FROM {statements.source()} "
            f"WHERE {self._condition} AND {condition}"
        )
        found: dict[MemoryKey, tuple[int, list[str]]] = {}
        async with aclosing(self._rows(sql, self._values)) as rows:
            async for user, session, row_id in rows:
                key = MemoryKey(user, session)
                count, ids = found.get(key, (0, []))
                if len(ids) < EXAMPLES:
                    ids.append(row_id)
                found[key] = (count + 1, ids)
        for key, (count, ids) in found.items():
            yield Finding(code, key, count, tuple(ids))


def _shared(session: list[Sequence[Any]]) -> Iterable[Finding]:
    """Yield a finding for each user of a session who sees messages of other users.

    Each row of ``session`` has the session, a user, the owner and the number of messages.
    """
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
