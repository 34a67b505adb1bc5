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
from memctl.stores.agentscope1.sql.locks import lock_rows
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
            case "damaged-row":
                return await self._set_aside(where, note)
            case "orphan-mark":
                return 0 if where.named else await self._delete_orphan_marks(note)
            case "duplicate-index":
                return await self._renumber(where, note)
            case "user-row-missing":
                return await self._insert_users(where, note)
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

    async def _set_aside(self, where: Selection, note: Note) -> int:
        count = 0
        async with self._transaction() as connection:
            checks = _Checks(self._database, connection, where)
            if self._statements.row_lock:
                # Until the transaction ends, agents cannot add a mark that the repair would miss.
                async with aclosing(checks.damaged("message", where)) as pages:
                    row_ids = [str(place) async for page in pages for _, place, _ in page]
                if row_ids:
                    await lock_rows(self._database, connection, row_ids, self._statements.row_lock)
            for table in COLUMNS:
                places: list[Any] = []
                async with aclosing(checks.damaged(table, where)) as pages:
                    async for page in pages:
                        rows = [[place, *cells] for _, place, cells in page]
                        await note({"code": "damaged-row", "table": table, "rows": rows})
                        places += [place for _, place, _ in page]
                deleted = [await self._take_out(connection, table, place) for place in places]
                count += len(deleted) if table == "message_mark" else sum(deleted)
        return count

    async def _take_out(self, connection: AsyncConnection, table: str, place: int | str) -> int:
        """Delete a damaged row, or all marks of a message; return the number of deleted rows.

        ``place`` is the first column of ``Statements.damaged_rows``.
        """
        if not self._statements.typed:
            return await self._run(connection, f"DELETE FROM {table} WHERE rowid = {int(place)}")
        column = COLUMNS[table][0]
        sql = f"DELETE FROM {table} WHERE {self._same(column)}"
        if table == "session":  # messages need a session with an owner
            inner = self._same("c.session_id")
            sql += f" AND NOT EXISTS (SELECT 1 FROM message c WHERE {inner})"
        return (await connection.execute(sql, {"place": place})).rowcount

    def _same(self, column: str) -> str:
        exact = f"{self._statements.exact(column)} = {self._statements.exact(':place')}"
        return f"{column} = :place AND {exact}"

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

    async def _insert_users(self, where: Selection, note: Note) -> int:
        async with self._transaction() as connection:
            condition, values = "", {}
            for name, column in (("users", "s.user_id"), ("sessions", "s.id")):
                chosen = sorted(getattr(where, name))
                if chosen:
                    condition += f" AND {column} IN :{name}"
                    values[name] = chosen
            rows = (
                f"SELECT DISTINCT s.user_id AS id FROM {self._statements.session_table} s "
                f"LEFT JOIN users u ON u.id = s.user_id WHERE u.id IS NULL{condition}"
            )
            count = await self._collect(connection, rows, values)
            await self._note(connection, note, "user-row-missing", "id")
            await self._run(connection, f"INSERT INTO users (id) SELECT id FROM {self._table}")
            return count

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
        index = self._statements.index_column
        match record["code"]:
            case "duplicate-index":
                empty = f"SELECT id, {index} AS old_index, {index} AS new_index FROM message"
                columns = ("id", "old_index", "new_index")
                await self._fill(connection, f"{empty} WHERE 1 = 0", columns, record["rows"])
                update = self._statements.update_index(self._table, "new_index", "old_index")
                return await self._run(connection, update)
            case "user-row-missing":
                empty = "SELECT id FROM users WHERE 1 = 0"
                await self._fill(connection, empty, ("id",), record["rows"])
                return await self._run(
                    connection,
                    f"DELETE FROM users WHERE id IN (SELECT t.id FROM {self._table} t)",
                )
        raise UsageError(f"{record['code']!r} is not a repair of a database", "")

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

    async def _fill(
        self, connection: AsyncConnection, empty: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Fill the temporary table with recorded rows.

        ``empty`` is a SELECT without rows, whose columns become those of the table.
        """
        await self._collect(connection, empty, {})
        names = ", ".join(columns)
        values = ", ".join(f":{name}" for name in columns)
        sql = f"INSERT INTO {self._table} ({names}) VALUES ({values})"
        if rows:
            found = [dict(zip(columns, row, strict=True)) for row in rows]
            await connection.execute(sql, found)

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

    async def damaged(
        self, table: str, where: Selection, *, proved: bool = False
    ) -> AsyncGenerator[list[tuple[MemoryKey | None, int | str, list[Any]]]]:
        """Yield pages of the damaged rows of a table, for the selected memories.

        A row is the memory (None if unknown), the row id and the cells.  A cell is a
        pair of a type and a value; the value of a blob is hexadecimal.  Rows of an unknown memory
        are left out if the selection names memories.  ``proved`` is True if the rows of the table
        ``message`` are known to be undamaged.
        """
        sql = self._database.statements.damaged_rows(table, proved=proved)
        if not sql:
            return
        async with aclosing(self._database.rows(self._connection, sql, {})) as partitions:
            async for rows in partitions:
                page = []
                for place, user, session, message, *values in rows:
                    if message is not None and jsonio.is_object(message):
                        continue
                    names = [name_of(user), name_of(session)]
                    key = MemoryKey(*names) if any(names) else None
                    if where.has_key(key) if key else where.leads and not where.named:
                        pairs = zip(values[::2], values[1::2], strict=True)
                        page.append((key, place, [_cell(*pair) for pair in pairs]))
                if page:
                    yield page

    async def damaged_rows(self) -> AsyncGenerator[Finding]:
        """Find rows that memctl and AgentScope cannot read."""
        found: dict[MemoryKey | None, tuple[int, list[str]]] = {}
        proved = self._database.proved == self._where
        for table in COLUMNS:
            async with aclosing(self.damaged(table, self._where, proved=proved)) as pages:
                async for page in pages:
                    for key, place, _ in page:
                        count, names = found.get(key, (0, []))
                        if len(names) < EXAMPLES:
                            names.append(f"{table}:{place}")
                        found[key] = count + 1, names
        for key, (count, names) in found.items():
            yield Finding("damaged-row", key, count, tuple(names))

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


def _cell(kind: str, value: bytes | float | None) -> list[Any]:
    if isinstance(value, bytes):
        return [kind, value.hex() if kind == "blob" else name_of(value)]
    return [kind, value]


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
