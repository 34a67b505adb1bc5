"""AgentScope's tables in PostgreSQL."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from memctl.dialects.agentscope import ROLE
from memctl.dialects.agentscope1 import TIMESTAMP
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.postgresql import PostgresqlDatabase, PostgresqlSyntax
from memctl.engines.sql.syntax import CHUNK_BYTES, HUGE_BYTES, SMALL_BYTES, Condition
from memctl.stores.agentscope1.sql.statements import Statements
from memctl.stores.agentscope1.sql.tables import MemoryTables

# The JSON escapes that PostgreSQL's json operators refuse anywhere in a text: NUL and lone
# surrogates.
_UNREADABLE = r"\\u(0000|[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F]..)"
_BEYOND_ASCII = r"\\u(0000|(?!00[0-7])[0-9a-fA-F]{4})"
"""The escapes that the operators may refuse in a database that is not in UTF-8."""
_NOT_UTF8 = "current_setting('server_encoding') <> 'UTF8'"


async def _copy_format(rows: list[Any]) -> AsyncGenerator[bytes]:
    yield b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
    for row_id, message, session, index in rows:
        name, owner = row_id.encode(), session.encode()
        yield struct.pack("!hi", 4, len(name)) + name + struct.pack("!i", len(message))
        for start in range(0, len(message), CHUNK_BYTES):
            yield message[start : start + CHUNK_BYTES]
        yield struct.pack("!i", len(owner)) + owner + struct.pack("!iq", 8, index)
    yield struct.pack("!h", -1)


class PostgresqlStatements(Statements, PostgresqlSyntax):
    """The statements for PostgreSQL."""

    in_row_ids = "= ANY(CAST(:rows AS varchar[]))"
    mark_array = "CAST(json_agg(k.mark) AS TEXT)"
    stub_cast = "CAST(CAST({} AS TEXT) AS json)"
    # PostgreSQL does not use an index after an interrupted creation.
    unusable_indexes = (
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE NOT i.indisvalid"
    )

    def __init__(self) -> None:
        super().__init__()
        self._lenient = False

    def field(self, name: str) -> str:
        return f"CASE WHEN json_typeof(j.msg -> '{name}') = 'string' THEN j.msg ->> '{name}' END"

    def source(self, rows: str = "") -> str:
        # Clean only texts that may have a refused escape.
        return (
            super().source(rows) + " CROSS JOIN LATERAL (SELECT CASE "
            "WHEN strpos(t.msg, '\\u0000') = 0 AND strpos(t.msg, '\\ud') = 0 "
            "AND strpos(t.msg, '\\uD') = 0 "
            f"AND (NOT {_NOT_UTF8} OR strpos(t.msg, '\\u') = 0) THEN m.msg "
            f"ELSE CAST(regexp_replace(t.msg, CASE WHEN {_NOT_UTF8} THEN '{_BEYOND_ASCII}' "
            f"ELSE '{_UNREADABLE}' END, '\\u0001', 'g') AS json) END AS msg "
            "FROM (SELECT CAST(m.msg AS TEXT) AS msg) t) j"
        )

    def fields_join(self) -> str:
        # Read all fields in a single access, because each access parses the message.
        sound = "CASE WHEN json_typeof(j.msg) = 'object' THEN j.msg ELSE '{}' END"
        message = sound if self._lenient else "m.msg"
        record = f'{ROLE} json, "{TIMESTAMP}" json'
        return f"CROSS JOIN LATERAL json_to_record({message}) AS f({record})"

    def short_field(self, name: str) -> str:
        return f"CASE WHEN json_typeof(f.{name}) = 'string' THEN f.{name} #>> '{{}}' END"

    def enable_lenient_json(self) -> bool:
        was, self._lenient = self._lenient, True
        return not was

    def is_huge(self) -> str:
        # The stored size excludes small texts without decompression.
        return f"pg_column_size(m.msg) > {SMALL_BYTES} AND {super().is_huge()}"

    def match_sql(self, messages: Condition) -> tuple[str, str]:
        # PostgreSQL computes a join before the sort of the rows.  It would compute a subquery after
        # the sort, and so sort all messages with the texts.
        if "marks" not in messages.values:
            return super().match_sql(messages)
        tests = [self.has_id] if "ids" in messages.values else []
        tests.append("COALESCE(k.named, FALSE)")
        return " AND ".join(tests), "bool_or(k.mark IN :marks) AS named"

    def is_plain_id(self) -> str:
        between = "'-' || m.session_id || '-'"
        return (
            f"strpos(m.id, {between}) = length(s.user_id) + 1 "
            "AND left(m.id, length(s.user_id)) = s.user_id "
            f"AND strpos(substr(m.id, length(s.user_id) + 2), {between}) = 0"
        )

    def message_id(self) -> str:
        return "substr(m.id, length(s.user_id) + length(m.session_id) + 3)"

    def parsed_user(self) -> str:
        end = f"'-' || m.session_id || '-' || ({self.field('id')})"
        return (
            f"CASE WHEN right(m.id, length({end})) = {end} "
            f"THEN left(m.id, length(m.id) - length({end})) END"
        )

    def no_object(self) -> str:
        return "json_typeof(msg) <> 'object'"

    def as_bytes(self, text: str) -> str:
        # The client encoding is UTF-8, or that of a database whose texts are any bytes.
        return f"convert_to(CAST({text} AS TEXT), pg_client_encoding())"

    def message_size(self) -> str:
        return self.json_size("m.msg")

    def create_session_index(self, name: str) -> Sequence[str]:
        # Create the index outside of a transaction and without a lock, so that agents need not
        # wait.  An interrupted creation leaves an unusable index.
        create = f"CREATE INDEX CONCURRENTLY {name} ON message (session_id)"
        return [self.drop_session_index(name), create]

    def drop_session_index(self, name: str) -> str:
        return f"DROP INDEX CONCURRENTLY IF EXISTS {name}"


class PostgresqlTables(MemoryTables, PostgresqlDatabase):
    """AgentScope's tables in PostgreSQL."""

    syntax_class = PostgresqlStatements
    syntax: PostgresqlStatements

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        small = table != "message" or all(len(row[1]) <= HUGE_BYTES for row in rows)
        if small or self.sees_part:
            await super().insert(connection, table, columns, rows)
            return
        driver = await connection.driver()
        await driver.copy_to_table(
            table, columns=columns, source=_copy_format(rows), format="binary"
        )

    async def fetch_message(self, connection: AsyncConnection, row_id: str) -> bytes:
        # Fetch in pieces: the driver would collect a large value twice.
        sql = (
            f"WITH whole AS MATERIALIZED (SELECT {self.syntax.as_bytes('msg')} AS text "
            "FROM message WHERE id = $1) "
            f"SELECT substring(text FROM at FOR {CHUNK_BYTES}) FROM whole, "
            f"generate_series(1, octet_length(text), {CHUNK_BYTES}) AS at ORDER BY at"
        )
        async with self._turn:
            cursor = (await connection.driver()).cursor(sql, row_id, prefetch=1)
            return b"".join([piece async for (piece,) in cursor])

    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        statement, bound = self.compile(sql, {"rows": tuple(row_ids)})
        found: Sequence[Any] = await (await connection.driver()).fetch(statement, *bound)
        return found

    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        driver = await connection.driver()
        names = ", ".join(columns)
        values = ", ".join(f"${number}::varchar[]" for number in range(1, len(columns) + 1))
        status = await driver.execute(
            f"INSERT INTO {table} ({names}) SELECT * FROM unnest({values}) ON CONFLICT DO NOTHING",
            *(list(column) for column in zip(*rows, strict=True)),
        )
        return int(status.rpartition(" ")[2])
