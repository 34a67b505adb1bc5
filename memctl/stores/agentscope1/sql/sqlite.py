"""AgentScope's tables in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import orjson

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import FETCH_ROWS, damage, prefetch
from memctl.engines.sql.sqlite import (
    HAS_OCTETS,
    SqliteDatabase,
    SqliteSyntax,
    driver_of,
    insert_statement,
)
from memctl.engines.sql.syntax import (
    ALWAYS,
    CHUNK_BYTES,
    HUGE_BYTES,
    NEVER,
    Condition,
)
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.location import Location
from memctl.model import PAGE_BYTES, PAGE_ENTRIES, MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.storekit.catalog import span
from memctl.storekit.single_file import stamp_of
from memctl.stores.agentscope1.sql.statements import BLOB, COLUMNS, UNPROVEN, Statements
from memctl.stores.agentscope1.sql.tables import MemoryTables, name_of

_MAY_BE_UNSOUND = "(typeof({0}) <> 'text' OR {0} GLOB '*[^ -~]*')"
"""SQL to find marks that are not texts of printable ASCII characters."""


SEARCH_ROWS = 50_000
"""The number of messages to search between two chances for other programs to write."""
LISTED_ROWS = 500_000
"""The same number if only row ids are looked at: each statement reads all sessions, too."""


SAMPLED = 500
"""The number of messages in a sample of a table."""
MOST_KEPT = 20_000
"""The largest number of messages of a memory whose row ids are kept for further windows."""
WALK = 3
"""The time to read a row by an index, as a multiple of the time in the order of rows."""


FIRST_ROW, LAST_ROW = -(2**63), 2**63 - 1


_STAGED_KEYS = "memctl.staged_keys"
_PAYLOAD = 4
"""The place of the payload in a row of ``read_ordered``."""


def _damaged(message: bytes | None, *names: bytes) -> bool:
    """Return whether a message is not a JSON object, or one of ``names`` is not UTF-8.

    If ``message`` is None, checks only the names.
    """
    try:
        for text in (message or b"", *names):
            text.decode()
        return message is not None and not isinstance(jsonio.outline(message), dict)
    except ValueError:
        return True


def _unpacked(packed: bytes, texts: bytes) -> Sequence[Any]:
    """Return the rows in ``packed``, with payloads cut from ``texts`` in place of their sizes.

    Empty if a name is not UTF-8, or if the texts are not those of SQLite's payloads.
    """
    try:
        rows = orjson.loads(packed)
    except orjson.JSONDecodeError:
        return []
    start = 0
    for row in rows:
        size = row[_PAYLOAD]
        if size is not None:
            row[_PAYLOAD] = texts[start : start + size]
            start += size
    return rows if start == len(texts) else []


def _field(message: bytes | None, name: str) -> str | None:
    try:
        return jsonio.field(message or b"", name)
    except ValueError:
        return None


def _user(
    driver: sqlite3.Connection, row: int, id: bytes | None, in_session: bytes | None
) -> str | None:
    """Return the user in a row id ``{user}-{session}-{message id}``.

    Returns None if the row id ``id`` does not end with the session and the message id, or if one of
    them is NULL.  The message is read from the row number ``row`` of the table ``message``, because
    SQLite would copy a huge argument.
    """
    if id is None or in_session is None:
        return None
    try:
        with driver.blobopen("message", "msg", row, readonly=True) as blob:
            name = _field(blob.read(), "id")
        row_id, session = id.decode(), in_session.decode()
    except (sqlite3.OperationalError, UnicodeDecodeError):  # a number or NULL has no id
        return None
    end = f"-{session}-{name}"
    return row_id.removesuffix(end) if name is not None and row_id.endswith(end) else None


class SqliteStatements(Statements, SqliteSyntax):
    """The statements for a SQLite file, with SQL functions from ``SqliteTables.add_functions``."""

    in_row_ids = "IN (SELECT id FROM temp.memctl_keys)"
    mark_array = "json_group_array(CASE typeof(k.mark) WHEN 'text' THEN k.mark END)"
    payload = "CAST(m.msg AS BLOB)"
    row_columns = "rowid, id"
    is_sound = (
        "typeof(id) = 'text' AND typeof(session_id) = 'text' AND typeof(\"index\") = 'integer' "
        "AND msg IS NOT NULL"
    )

    # Compute values of a session once for all rows.  The values are bytes, because for some
    # functions of SQLite a text ends at a NUL.
    _user, _between = "CAST(user_id AS BLOB)", "CAST('-' || id || '-' AS BLOB)"

    _start = "CAST(user_id || '-' || id || '-' AS BLOB)"
    session_table = (
        f"(SELECT id, user_id, {_start} AS start, length({_start}) AS size, "
        f"{_between} AS between_, length({_user}) + 2 AS behind, "
        f"instr({_start}, {_between}) = length({_user}) + 1 AS plain "
        "FROM session WHERE typeof(id) = 'text' AND typeof(user_id) = 'text' LIMIT -1)"
    )

    def field(self, name: str) -> str:
        # SQLite's JSON functions refuse NaN.  memctl's function accepts the same JSON as Python.
        return (
            f"CASE WHEN NOT json_valid(m.msg) THEN memctl_field(CAST(m.msg AS BLOB), '{name}') "
            f"WHEN json_type(m.msg, '$.{name}') = 'text' THEN json_extract(m.msg, '$.{name}') END"
        )

    def is_plain_id(self) -> str:
        row_id = "CAST(m.id AS BLOB)"
        return (
            f"s.plain AND substr({row_id}, 1, s.size) = s.start "
            f"AND instr(substr({row_id}, s.behind), s.between_) = 0"
        )

    def message_id(self) -> str:
        return "CAST(substr(CAST(m.id AS BLOB), s.size + 1) AS TEXT)"

    def parsed_user(self) -> str:
        return "memctl_user(m.rowid, CAST(m.id AS BLOB), CAST(m.session_id AS BLOB))"

    def is_unused(self, child: str, column: str) -> str:
        # A correlated condition would scan the table once for each row.
        used = f"SELECT c.{column} FROM {child} c WHERE c.{column} {self.in_row_ids}"
        return f"t.id NOT IN ({used})"

    def message_in_shard(self, shard: Shard | None) -> str:
        if shard is None or not self.selects_shards:
            return ALWAYS
        # Hash the name of a session once, not for each message.
        outside = f"SELECT id FROM session WHERE {self.outside_shard(shard, 'id')}"
        return f"CASE WHEN m.session_id IN ({outside}) THEN {NEVER} ELSE {ALWAYS} END"

    is_sound_mark = "typeof(k.msg_id) = 'text' AND typeof(k.mark) = 'text'"

    def proven_payload(self) -> str:
        # SQLite does this without Python's lock, while Python works on the previous rows.
        type_ = "typeof(m.msg)"
        first = f"CASE {type_} WHEN 'blob' THEN x'{BLOB.hex()}' ELSE x'{UNPROVEN.hex()}' END"
        proven = f"CASE WHEN {type_} = 'text' AND json_valid(m.msg) THEN {self.payload} "
        return f"{proven} ELSE CAST({first} || {self.payload} AS BLOB) END"

    def message_size(self) -> str:
        return self.json_size("m.msg")

    def damaged_rows(self, table: str, *, proved: bool = False) -> str:
        joined = f"LEFT JOIN {self.session_table} s ON s.id = m.session_id"
        match table:
            case "message" if proved:
                return ""
            case "message":
                fault = self._damaged_message()
                user, session = self._owner, "m.session_id"
                source = f"(SELECT rowid, * FROM message WHERE {fault}) m {joined}"
            case "message_mark":  # including the marks of deleted messages
                fault = (
                    "typeof(msg_id) <> 'text' OR typeof(mark) <> 'text' OR "
                    "memctl_damaged(NULL, CAST(msg_id AS BLOB), CAST(mark AS BLOB))"
                )
                user, session = f"CASE WHEN m.id IS NOT NULL THEN {self._owner} END", "m.session_id"
                source = (
                    f"(SELECT rowid, * FROM message_mark WHERE {fault}) t "
                    f"LEFT JOIN message m ON m.id = t.msg_id {joined}"
                )
            case _:
                names = COLUMNS[table]
                types = " OR ".join(f"typeof({name}) <> 'text'" for name in names)
                texts = ", ".join(f"CAST({name} AS BLOB)" for name in names)
                user, session = ("t.user_id", "t.id") if table == "session" else ("t.id", "NULL")
                source = f"(SELECT rowid, * FROM {table} WHERE {types} " + (
                    f"OR memctl_damaged(NULL, {texts})) t"
                )
        row = "m" if table == "message" else "t"
        key = ", ".join(
            f"CASE typeof({of}) WHEN 'text' THEN CAST({of} AS BLOB) "
            f"WHEN 'null' THEN NULL ELSE CAST(quote({of}) AS BLOB) END"
            for of in (user, session)
        )
        return f"SELECT {row}.rowid, {key}, NULL FROM {source}"

    def _damaged_message(self) -> str:
        small = (
            f"octet_length(msg) <= {HUGE_BYTES}" if HAS_OCTETS else f"length(msg) <= {HUGE_BYTES}"
        )
        return (
            f"(NOT ({self.is_sound}) OR memctl_damaged(CASE WHEN {small} THEN CAST(msg AS BLOB) "
            "END, CAST(id AS BLOB), CAST(session_id AS BLOB)))"
        )

    @property
    def _owner(self) -> str:
        readable = "typeof(m.id) = 'text' AND typeof(m.session_id) = 'text'"
        return f"CASE WHEN {readable} THEN {self.user} ELSE s.user_id END"

    def unsoundly_marked(self) -> str:
        """Return a statement that finds memories with marks that are not UTF-8 texts.

        The columns are the user and the session, both as bytes.
        """
        return (
            f"SELECT CAST({self.user} AS BLOB), CAST(m.session_id AS BLOB) FROM {self.source()} "
            f"JOIN message_mark k ON k.msg_id = m.id WHERE {_MAY_BE_UNSOUND.format('k.mark')} "
            "AND (typeof(k.mark) <> 'text' OR memctl_damaged(NULL, CAST(k.mark AS BLOB)))"
        )

    def unsound_messages(self) -> str:
        """Return a statement that finds memories with NULL or a wrong type in a row of ``message``.

        The columns are the user and the session, both as bytes, and the fault.
        """
        fault = (
            "CASE WHEN typeof(m.id) <> 'text' THEN 'its id is ' || typeof(m.id) "
            "WHEN typeof(m.session_id) <> 'text' THEN 'its session is ' || typeof(m.session_id) "
            "WHEN m.msg IS NULL THEN 'its message is null' "
            "ELSE 'its index is ' || typeof(m.\"index\") END"
        )
        return (
            f"SELECT CAST({self._owner} AS BLOB), CAST(CASE typeof(m.session_id) WHEN 'text' "
            f"THEN m.session_id ELSE quote(m.session_id) END AS BLOB), "
            f"'row ' || m.rowid || ' of the table message: ' || {fault} "
            f"FROM (SELECT rowid, * FROM message WHERE NOT ({self.is_sound})) m "
            f"LEFT JOIN {self.session_table} s ON s.id = m.session_id"
        )


class SqliteTables(MemoryTables, SqliteDatabase):
    """AgentScope's tables in a SQLite file."""

    syntax_class = SqliteStatements
    syntax: SqliteStatements
    _has_staged_rows = False

    def __init__(self, location: Location, label: str) -> None:
        super().__init__(location, label)
        self._known: dict[tuple[MemoryKey, str], tuple[Sequence[Any] | None, int | None]] = {}
        """For one memory, the row ids and indexes of its messages, or only their number.

        The entry is valid while the stamp of the file is the same.
        """

    def add_functions(self, driver: sqlite3.Connection) -> None:
        driver.create_function("memctl_field", 2, _field, deterministic=True)
        driver.create_function("memctl_user", 3, partial(_user, driver))
        driver.create_function("memctl_damaged", -1, _damaged, deterministic=True)

    async def begin_write(self, connection: AsyncConnection) -> None:
        self._has_staged_rows = False
        connection.info.pop(_STAGED_KEYS, None)  # a rollback empties the table
        await super().begin_write(connection)

    async def fetch_message(self, connection: AsyncConnection, row_id: str) -> bytes:
        driver = await driver_of(connection)
        try:
            sql = "SELECT rowid FROM message WHERE id = ?"
            return await driver.fetch_bytes("message", "msg", sql, (row_id,)) or b""
        except sqlite3.OperationalError:  # such as a number, or an id that cannot be passed
            return await super().fetch_message(connection, row_id)

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        if table == "message":
            huge = [row for row in rows if len(row[1]) > HUGE_BYTES]
            if huge:
                rows = [row for row in rows if len(row[1]) <= HUGE_BYTES]
                await self._stage_large_rows(connection, huge)
        if rows:
            await super().insert(connection, table, columns, rows)

    async def describe_unsound(self, connection: AsyncConnection) -> dict[MemoryKey, Failure]:
        driver = await driver_of(connection)
        damaged: dict[MemoryKey, Failure] = {}
        sql = f"SELECT 1 FROM message WHERE NOT ({self.statements.is_sound}) LIMIT 1"
        if await driver.execute_fetchall(sql):
            sql = self.syntax.unsound_messages()
            for user, session, fault in await driver.execute_fetchall(sql):
                damaged[MemoryKey(name_of(user), name_of(session))] = damage(fault)
            self.statements.has_unsound = True
        sql = f"SELECT 1 FROM message_mark WHERE {_MAY_BE_UNSOUND.format('mark')} LIMIT 1"
        if await driver.execute_fetchall(sql):
            for user, session in await driver.execute_fetchall(self.syntax.unsoundly_marked()):
                key = MemoryKey(name_of(user), name_of(session))
                damaged[key] = damage("a mark of a message is not a string")
        sql = (
            "SELECT CAST(CASE typeof(user_id) WHEN 'text' THEN user_id ELSE quote(user_id) END "
            "AS BLOB), CAST(CASE typeof(id) WHEN 'text' THEN id ELSE quote(id) END AS BLOB) "
            "FROM session WHERE typeof(id) <> 'text' OR typeof(user_id) <> 'text'"
        )
        for user, session in await driver.execute_fetchall(sql):
            key = MemoryKey(name_of(user), name_of(session))
            damaged[key] = damage("a value of its row in session is not a string")
        return damaged

    async def read_ordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # Sort only keys, then fetch messages by key: SQLite's sorter would write whole messages to
        # the disk.
        await self._sort_keys(connection, where)
        # SQLite reads the marks of each message faster than it joins all marks.
        marks = f"SELECT {self.statements.mark_array} FROM message_mark k WHERE k.msg_id = o.id"
        sql = (
            "SELECT o.session_id, o.owner, o.id, o.position, "
            f"{self.statements.small_payload()} AS payload, ({marks}) AS marks, o.session_owner "
            "FROM temp.sorted o CROSS JOIN message m ON m.rowid = o.row_ "
            "WHERE o.rowid > :low ORDER BY o.rowid"
        )
        low = 0
        async with aclosing(prefetch(self._packed(connection, sql), calls=2)) as partitions:
            async for rows in partitions:
                low += len(rows)
                yield rows
        async with aclosing(self.rows(connection, sql, {"low": low})) as partitions:
            async for rows in partitions:
                yield rows

    def _packed(
        self, connection: AsyncConnection, sql: str
    ) -> Callable[[], Coroutine[Any, Any, Sequence[Any]]]:
        """Return a function that fetches the next rows of ``sql``, packed into one by SQLite.

        The driver takes Python's lock again after each row, and waits while other threads work.
        The function returns no rows at the end, and before rows that cannot be packed.
        """
        columns = "session_id, owner, id, position, LENGTH(payload), marks || '', session_owner"
        packing = (
            f"SELECT CAST(json_group_array(json_array({columns})) AS BLOB), "
            f"CAST(group_concat(payload, '') AS BLOB) FROM ({sql} LIMIT :most)"
        )
        low, most = 0, FETCH_ROWS

        async def fetch() -> Sequence[Any]:
            nonlocal low, most
            statement, bound = self.compile(packing, {"low": low, "most": most})
            low += most
            [[packed, texts]] = await self.all_rows(connection, statement, bound)
            rows = _unpacked(packed, texts or b"")
            if rows:
                average = len(texts or b"") // len(rows)
                most = max(1, min(FETCH_ROWS, PAGE_BYTES // max(average, 1)))
            return rows

        return fetch

    async def read_matching(
        self, connection: AsyncConnection, memories: Condition, messages: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # A single snapshot gives the list of messages and the marks.  Texts never change.  memctl
        # fetches the texts afterwards in small reads, so that agents can write meanwhile.
        statements = self.statements
        driver = await driver_of(connection)
        values = dict(messages.values)
        ids = {"ids": values.pop("ids")} if "ids" in values else {}
        named = statements.has_id if ids else ALWAYS
        condition = Condition(memories.sql, {**memories.values, **ids})
        await self._sort_keys(connection, condition, named)
        await driver.execute("DROP TABLE IF EXISTS temp.marked")
        await driver.execute(
            "CREATE TABLE temp.marked (msg_id TEXT, mark TEXT, PRIMARY KEY (msg_id, mark)) "
            "WITHOUT ROWID"
        )
        await driver.execute(
            "INSERT OR IGNORE INTO temp.marked "
            "SELECT msg_id, CASE typeof(mark) WHEN 'text' THEN mark ELSE x'' END "
            "FROM message_mark WHERE msg_id IS NOT NULL ORDER BY msg_id, mark"
        )
        await driver.commit()
        marks = "FROM temp.marked k WHERE k.msg_id = o.id"
        marked = f"EXISTS (SELECT 1 {marks} AND k.mark IN :marks)" if values else ALWAYS
        text = f"SELECT {statements.small_payload()} FROM message m WHERE m.id = o.id"
        before = (
            "SELECT p.id FROM temp.sorted p WHERE p.rowid = o.place - 1 "
            "AND p.session_id = o.session_id AND p.owner = o.owner"
        )
        statement, bound = self.compile(
            "WITH o AS (SELECT rowid AS place, * FROM temp.sorted WHERE rowid > :low AND named) "
            f"SELECT o.session_id, o.owner, o.id, o.position, ({text}), "
            f"(SELECT {statements.mark_array} {marks}), o.session_owner, ({before}), o.place "
            f"FROM o WHERE {marked} "
            f"ORDER BY o.place LIMIT {FETCH_ROWS}",
            {"low": 0, **values},
        )
        _, *others = bound  # the first value is ``low``
        low = 0

        async def fetch() -> Sequence[Any]:
            nonlocal low
            rows = await self.all_rows(connection, statement, (low, *others))
            low = rows[-1][-1] if rows else low
            return rows

        async with aclosing(prefetch(fetch)) as partitions:
            async for rows in partitions:
                yield rows

    async def _sort_keys(
        self, connection: AsyncConnection, where: Condition, named: str = ALWAYS
    ) -> None:
        """Write the keys of messages to the table ``temp.sorted``, in the order of the memories.

        ``where`` selects the messages.  ``named`` is SQL for the column ``named`` of the table.
        """
        statements = self.statements
        driver = await driver_of(connection)
        statement, bound = self.compile(
            f"INSERT INTO temp.sorted SELECT m.rowid, m.session_id, {statements.user}, m.id, "
            f"{statements.index}, s.user_id, {named} FROM {statements.source()} WHERE {where.sql} "
            f"ORDER BY m.session_id, 3, {statements.index}, m.id",
            where.values,
        )
        await driver.execute("DROP TABLE IF EXISTS temp.sorted")
        await driver.execute(
            "CREATE TABLE temp.sorted (row_ INTEGER, session_id TEXT, owner TEXT, id TEXT, "
            "position INTEGER, session_owner TEXT, named INTEGER)"
        )
        await driver.execute(statement, bound)

    async def shared_sessions(
        self, where: Selection, connection: AsyncConnection
    ) -> AsyncGenerator[MemoryKey]:
        # Use small reads, as in ``read_matching``.
        await (await driver_of(connection)).commit()
        condition, values = self.statements.session_condition(where)
        sql = self.statements.select_owned_by_others(
            f"{condition} AND m.rowid BETWEEN :first AND :last"
        )
        next_row = "SELECT MIN(rowid) FROM message WHERE rowid >= :first"
        first = FIRST_ROW
        while first <= LAST_ROW:
            [[row]] = await self.fetch_all(connection, next_row, {"first": first})
            if row is None:
                return
            last = min(row + LISTED_ROWS - 1, LAST_ROW)
            rows = await self.fetch_all(connection, sql, {**values, "first": row, "last": last})
            for user, session in rows:
                if isinstance(user, str) and isinstance(session, str):
                    yield MemoryKey(user, session)
            first = last + 1

    async def places(
        self, connection: AsyncConnection, key: MemoryKey, start: int, count: int
    ) -> tuple[Sequence[Any], int, bool]:
        condition, values = self.statements.memory(key)
        source = f"FROM {self.statements.source()} WHERE {condition}"
        walk = partial(self.statements.select_window, condition)
        sort = partial(walk, position=f"+{self.statements.index}")

        async def counted() -> int:
            [[total]] = await self.fetch_all(connection, f"SELECT COUNT(*) {source}", values)
            return int(total)

        stamped = stamp_of(self.location)
        found, total = self._known.get((key, stamped), (None, None)) if stamped else (None, None)
        walks = False
        if found is None:
            walks = await self._is_walk_shorter(connection, values, start, count, total)
            if not walks and total is None:
                most = {"count": MOST_KEPT + 1, "skipped": 0}
                found = await self.fetch_all(connection, sort(False), {**values, **most})
            if len(found or ()) > MOST_KEPT:
                found, total = None, await counted()
            elif walks and total is None and start < 0:
                total = await counted()
            self._known = {(key, stamped): (found, total)} if stamped else {}
        if found is not None:
            places = span(len(found), start, count)
            return found[places.start : places.stop], places.start, places.stop == len(found)
        select = walk if walks else sort
        return await self.fetch_window(connection, select, source, values, start, count, total)

    async def _is_walk_shorter(
        self,
        connection: AsyncConnection,
        values: dict[str, list[str]],
        start: int,
        count: int,
        total: int | None,
    ) -> bool:
        """Return whether to walk the index of positions, instead of sorting a memory's positions.

        SQLite has no statistics, and would always walk, past the messages of all other memories.
        ``values`` names the session; a sample of the messages tells its share.  ``total`` is the
        number of messages of the memory, if it is known.
        """
        [[last]] = await self.fetch_all(connection, "SELECT MAX(rowid) FROM message", {})
        rows = max(last or 1, 1)
        sample = list(range(rows, 0, -max(rows // SAMPLED, 1)))
        sql = "SELECT AVG(session_id IN :sessions) FROM message WHERE rowid IN :sample"
        of_session = {"sessions": values["sessions"], "sample": sample}
        [[share]] = await self.fetch_all(connection, sql, of_session)
        share = share or 0.0
        far = start + count if start >= 0 else -start
        if total is not None and start >= 0:
            far = min(far, max(total - start, 0))
        passed = far + (1 - share) * rows  # positions of all memories begin at 0
        counting = rows if total is None and start < 0 else 0
        return bool(WALK * passed + counting <= rows * (1 + 2 * share))

    async def read_unordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        # Use small reads, as in ``read_matching``.
        await (await driver_of(connection)).commit()
        statement = self.statements.select_unordered(f"{where.sql} AND m.rowid > :low", "m.rowid")
        statement += f" ORDER BY m.rowid LIMIT {SEARCH_ROWS}"
        low: int | None = FIRST_ROW
        while low is not None:
            values: dict[str, Any] = {**where.values, "low": low}
            low = None
            source = self.rows(connection, statement, values, PAGE_ENTRIES)
            async with aclosing(source) as partitions:
                async for rows in partitions:
                    low = rows[-1][-1]
                    yield rows

    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        driver = await driver_of(connection)
        staged = tuple(row_ids)
        if connection.info.get(_STAGED_KEYS) != staged:
            connection.info.pop(_STAGED_KEYS, None)
            await driver.execute("CREATE TABLE IF NOT EXISTS temp.memctl_keys (id TEXT)")
            await driver.execute("DELETE FROM temp.memctl_keys")
            await driver.executemany(
                "INSERT INTO temp.memctl_keys VALUES (?)", zip(staged, strict=True)
            )
            connection.info[_STAGED_KEYS] = staged
        statement, bound = self.compile(sql, {})
        return await self.all_rows(connection, statement, bound)

    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        sql = f"{insert_statement(table, columns)} ON CONFLICT (id) DO NOTHING"
        return (await connection.exec_driver_sql(sql, rows)).rowcount

    async def _stage_large_rows(self, connection: AsyncConnection, rows: list[Any]) -> None:
        """Write rows with huge messages to the table ``temp.huge``, in pieces.

        SQLite copies the values of an inserted row twice.  So ``insert_staged`` inserts these rows
        into ``message`` later, when the caller has freed the messages.
        """
        await connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS temp.huge "
            "(id TEXT, session_id TEXT, position INTEGER, msg BLOB)"
        )
        self._has_staged_rows = True
        for row_id, message, session, position in rows:
            result = await connection.exec_driver_sql(
                "INSERT INTO temp.huge VALUES (?, ?, ?, zeroblob(?))",
                (row_id, session, position, len(message)),
            )
            await asyncio.to_thread(self._fill, result.lastrowid, message)

    def _fill(self, row: int, message: bytes) -> None:
        view = memoryview(message)
        with self._driver.blobopen("huge", "msg", row, name="temp") as blob:
            for start in range(0, len(view), CHUNK_BYTES):
                blob.write(view[start : start + CHUNK_BYTES])

    async def insert_staged(self, connection: AsyncConnection) -> None:
        if not self._has_staged_rows:
            return
        await connection.exec_driver_sql(
            'INSERT INTO message (id, msg, session_id, "index") '
            "SELECT id, CAST(msg AS TEXT), session_id, position FROM temp.huge"
        )
        await connection.exec_driver_sql("DELETE FROM temp.huge")
        self._has_staged_rows = False
