"""PostgreSQL, directly and through PgBouncer."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import struct
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import SQLAlchemyError

from memctl.engines.sql.alchemy import AlchemyEngine
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import (
    FETCH_ROWS,
    GRANT,
    Contended,
    Database,
    RejectedValue,
    first_line,
    prefetch,
    time_limit,
)
from memctl.engines.sql.lock import ConnectionLock
from memctl.engines.sql.pooler import PooledConnection, is_pooled, pooler_error
from memctl.engines.sql.schema import TextForm
from memctl.engines.sql.syntax import Syntax
from memctl.errors import BadData, Lost, MemctlError, NotFound, Unavailable, UsageError
from memctl.location import Location, visible
from memctl.shard import Shard

WORK_KILOBYTES = 32 * 1024
"""The least memory, in kB, that the server may use for a sort or join while memctl reads."""

UNIQUE_VIOLATION = "23505"
UNKNOWN_SETTING = "42704"
_GONE = "check that the server is running, and host and port"
_LOGIN = (
    "check the user; give the password by PGPASSWORD, ~/.pgpass or password_env of an alias "
    "(memctl config init); if both are right, see pg_hba.conf"
)
_WRONG_PASSWORD = "28P01"
"""The state of an error after a login with a wrong password, or without one."""
_RAISED = "P0001"
"""The state of an error that a trigger raises."""
_CONTENDED = ("40", "55P03")
_TRANSIENT = {
    "08": _GONE,  # no connection
    "25P03": "raise idle_in_transaction_session_timeout for the login",
    "25P04": "raise transaction_timeout for the login",
    "53300": "the server has no free connection",
    "57014": "the server or an administrator cancelled the statement",
    "57P01": _GONE,  # shut down by an administrator
    "57P02": _GONE,  # crashed
    "57P03": _GONE,  # starting or recovering
    "57P05": "raise idle_session_timeout for the login",
}
"""Prefixes of the SQL states after which a retry may help, each with a hint."""

BROKEN = ("connection is closed", "cannot switch to state", "cannot process message")
"""Parts of the driver's messages about a broken connection; such errors have no SQL state."""
CLOSED = "the server closed an idle connection, or is gone"
"""The message in place of these messages: the driver does not keep what the server said."""
IDLE_LIMITS = (
    "check that the server is running, and its limits: idle_session_timeout, "
    "idle_in_transaction_session_timeout, transaction_timeout"
)


_LIMIT, _LIMIT_VARIABLE = "connect_timeout", "PGCONNECT_TIMEOUT"
"""libpq's option and variable for the time limit for connecting."""
_SETTINGS = {
    "jit": "off",  # costs more than it saves for these statements
    "DateStyle": "ISO",  # the rest as in pg_dump: other texts of values are not exact
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
}
"""The settings of connections."""
_ROW_SECURITY = "row_security"
"""A setting of PostgreSQL, and the option of memctl that leaves it on.  If the setting is
off, PostgreSQL refuses statements that would not see all rows."""
_EXACT = (
    *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "oid", "xid", "xid8", "cid"),
    *("text", "varchar", "bpchar", "char", "name", "bytea", "uuid", "inet", "cidr"),
)
"""Types whose values the driver and ``Column`` convert exactly, besides all enumerations."""
_EXACT_UNLESS_DOMAIN = ("json", "jsonb")
_FORMS = """
WITH RECURSIVE bases AS (
    SELECT a.attrelid, a.attnum, a.attname, a.atttypid, 0 AS depth,
        t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(quote_ident(:table)) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, b.attname, b.atttypid, b.depth + 1,
        t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace
    FROM bases b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
)
SELECT attname, typtype = 'e' OR typnamespace = 'pg_catalog'::regnamespace
    AND (typname = ANY(:exact) OR depth = 0 AND typname = ANY(:unless_domain)),
    format_type(atttypid, -1), has_column_privilege(attrelid, attnum, 'INSERT')
FROM bases WHERE typtype <> 'd'
"""
"""Selects of each column whether its values are exact, its type, and whether it is writable.

The type is without its modifier: a cast to a type with a modifier may truncate a value silently.
"""
_ANY_BYTES = "SQL_ASCII"
"""The encoding of databases whose texts are any bytes.

The server sends bytes that are not UTF-8 only to a connection in the same encoding.
"""
_LENIENT_UTF8 = "memctl_lenient_utf8"
"""The Python codec for texts of databases in ``SQL_ASCII``; decodes bytes as ``decoded`` does."""
_SPACE = 0x6D656D63
"""The upper half of memctl's advisory locks in PostgreSQL: ``memc`` in ASCII."""
_ALL_ROWS = (
    "use a login with BYPASSRLS or the owner of the tables; row_security=on in the URL works on "
    "the rows that this login sees"
)
_ON_DELETE = 8
"""The bit of ``pg_trigger.tgtype`` for a trigger of deletions."""
_BLOCKERS = """
SELECT DISTINCT b.pid, b.application_name, b.usename FROM unnest($1::int[]) AS own(pid),
LATERAL unnest(pg_blocking_pids(own.pid)) AS other(pid) JOIN pg_stat_activity b USING (pid)
WHERE b.pid <> ALL ($1) ORDER BY 1
"""
"""The sessions that hold locks for which the sessions ``$1`` wait; every login may ask."""
_LACKS = "has_any_column_privilege(to_regclass({}), '{}') IS FALSE"
LACKS_INSERT = _LACKS.format("{}", "INSERT")
"""SQL that is true if the login may not insert rows into a table with this quoted name.

A login may insert rows if it has the right on each column that it names.
"""
_PUBLISHED = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubupdate OR pubdelete)"
_UPDATABLE = """
SELECT c.oid::regclass::text, quote_ident(min(a.attname)) FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated = '' AND a.attidentity <> 'a'
WHERE c.relname = ANY($1) AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
GROUP BY c.oid
"""
"""Selects the tables of the search path with one of the names, and a column that takes values."""
_UNREPLICATED = {
    "55000": "ALTER TABLE {0} REPLICA IDENTITY FULL, or add a primary key: the table is published",
    "42P10": "the table {0} is published: see the columns and the WHERE of its publications, and "
    "its REPLICA IDENTITY",
}
"""The states of errors about statements on a published table, each with a hint."""
_NAME_BYTES = 63
"""The maximum number of bytes of ``application_name`` in PostgreSQL."""


class PostgresqlLock(ConnectionLock):
    """The lock of a run: a PostgreSQL advisory lock on the schema of the tables.

    A run with a shard shares this lock with other shards, and has an exclusive lock of the shard.

    A session holds the locks or, through a pooler, an open transaction.  The owner text is the
    ``application_name`` of the connection, which every login can see.
    """

    _database: PostgresqlDatabase

    async def acquire(self) -> bool:
        if self._is_local:
            await self._database.execute_alone(self._connected, "BEGIN")
        # Keep-alives end the session of a lost machine within a minute.
        settings = {
            "application_name": self._signature,
            "tcp_keepalives_idle": "30",
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
        }
        for name, value in settings.items():
            await self.ask(
                "SELECT set_config(:name, :value, :local)",
                name=name,
                value=value,
                local=self._is_local,
            )
        # Some servers have these settings, which end idle sessions and long transactions.
        await self.ask(
            "SELECT count(set_config(name, '0', :local)) FROM pg_settings WHERE name IN "
            "('idle_session_timeout', 'idle_in_transaction_session_timeout', "
            "'transaction_timeout')",
            local=self._is_local,
        )
        lock = "pg_try_advisory_xact_lock" if self._is_local else "pg_try_advisory_lock"
        whole = f"({_SPACE}::bigint << 32) | oid::bigint"
        locked = f"{lock}({whole})"
        if self.shard is not None:
            of_shard = f"{lock}(oid::int4, {_number(self.shard)})"
            locked = f"CASE WHEN {lock}_shared({whole}) THEN {of_shard} ELSE false END"
        [done] = await self.ask(
            f"SELECT {locked} FROM pg_namespace WHERE nspname = current_schema()"
        )
        return bool(done)

    async def ask(self, sql: str, **values: Any) -> Any:
        row = await super().ask(sql, **values)
        if self._is_local:
            # The server completes a statement when the next one arrives.  Until then it would keep
            # the snapshot of the statement, and make VACUUM and CREATE INDEX CONCURRENTLY wait.
            await self._database.execute_alone(self._connected, "SELECT 1")
        return row

    @property
    def _is_local(self) -> bool:
        """True through a pooler: the lock then belongs to an open transaction."""
        return self._database.is_pooled

    @property
    def _signature(self) -> str:
        return f"memctl {self.owner}"[:_NAME_BYTES]

    async def find_owner(self) -> str:
        held = f"l.classid = {_SPACE} AND l.objid = n.oid AND l.objsubid = 1"
        if self.shard is not None:
            held = (
                f"({held} AND l.mode = 'ExclusiveLock' OR l.classid = n.oid "
                f"AND l.objid = {_number(self.shard)} AND l.objsubid = 2)"
            )
        row = await self.ask(
            "SELECT a.application_name, a.pid "
            "FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
            "JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() "
            "JOIN pg_namespace n ON n.nspname = current_schema() "
            f"WHERE l.locktype = 'advisory' AND l.granted AND {held}"
        )
        if row and row[0] == self._signature:
            await self.ask("SELECT pg_terminate_backend(:pid)", pid=row[1])
            return ""
        return str(row[0]).removeprefix("memctl ") if row else ""

    async def wait(self) -> None:
        await asyncio.sleep(self.period)
        await self.ask("SELECT 1")

    async def free(self) -> None:
        if self._is_local:
            await self._database.execute_alone(self._connected, "ROLLBACK")
        else:
            await self.ask("SELECT pg_advisory_unlock_all()")


def _number(shard: Shard) -> int:
    """Return the number of a shard's advisory lock in a schema: ``m``, and both numbers."""
    return _SPACE & 0xFF000000 | (shard.of - 1) << 12 | shard.number


class PostgresqlSyntax(Syntax):
    """The SQL of PostgreSQL."""

    nulls_first = False
    row_lock = "FOR UPDATE"
    no_wait = "NOWAIT"
    # Without the hint PostgreSQL would sort all messages with their texts, and then drop most.
    materialize_hint = "OFFSET 0"
    temporary_end = "ON COMMIT DROP"
    names_utf8 = "current_setting('server_encoding') = 'UTF8'"

    def place(self, number: int) -> str:
        return f"${number}"

    def sortable(self, text: str) -> str:
        return f'({text}) COLLATE "C"'

    def shard_hash(self, name: str) -> str:
        # A cast to text would cut the blanks off a name of the type CHAR.
        return f'left(md5(concat({name})), 8) COLLATE "C"'

    def json_size(self, column: str) -> str:
        return f"octet_length(CAST({column} AS TEXT))"

    def readable_time(self, column: str) -> str:
        # Python has the years 1 to 9999, and no infinity.  Its first and last day leave no room for
        # time zones, or for a later message.
        return f"CASE WHEN {column} BETWEEN '0001-01-02' AND '9999-12-30' THEN {column} END"

    def temporary(self, table: str) -> str:
        return f"pg_temp.{table}"


class PostgresqlDatabase(Database):
    """A PostgreSQL database.

    The URL has the form of libpq.  libpq's services, password file and environment variables are
    used too.
    """

    syntax_class = PostgresqlSyntax
    lock_class = PostgresqlLock
    password_variable = "PGPASSWORD"
    driver_errors = (
        SQLAlchemyError,
        *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
        UnicodeError,
    )
    identity_sql = (
        "SELECT 'postgresql:', pg_postmaster_start_time()::text, oid, current_schema() "
        "FROM pg_database WHERE datname = current_database()"
    )
    zone_sql = "SELECT current_setting('TimeZone')"
    local_time_sql = "CAST(to_timestamp({}) AS timestamp)"
    # A new cluster has another system identifier, and most of its numbers are the same.
    generation_sql = (
        "SELECT (SELECT system_identifier FROM pg_control_system())::text, "
        "(SELECT oid FROM pg_database WHERE datname = current_database())::text, "
        "(SELECT min(oid) FROM pg_class WHERE relkind IN ('r', 'p') "
        "AND relnamespace = current_schema()::regnamespace)::text"
    )
    references_sql = (
        "SELECT r.relname::text, c.oid::text, n.nspname::text, t.relname::text, a.attname::text, "
        "b.attname::text, CASE c.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' "
        "ELSE 'SET DEFAULT' END, CASE WHEN current_setting('row_security') = 'on' "
        "AND row_security_active(t.oid) THEN 'hides' ELSE '' END FROM pg_constraint c "
        "JOIN pg_class r ON r.oid = c.confrelid JOIN pg_class t ON t.oid = c.conrelid "
        "JOIN pg_namespace n ON n.oid = t.relnamespace "
        "CROSS JOIN LATERAL unnest(c.conkey, c.confkey) AS k(own, referred) "
        "JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.own "
        "JOIN pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = k.referred "
        "WHERE c.contype = 'f' AND c.confdeltype IN ('c', 'n', 'd') "
        "AND pg_table_is_visible(r.oid)"
    )
    triggers_sql = (
        "SELECT c.relname::text, 'trigger', t.tgname::text FROM pg_trigger t "
        "JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' "
        f"AND (t.tgtype & {_ON_DELETE}) <> 0 AND pg_table_is_visible(c.oid) "
        "UNION ALL SELECT c.relname::text, 'rule', r.rulename::text FROM pg_rewrite r "
        "JOIN pg_class c ON c.oid = r.ev_class WHERE r.ev_type = '4' AND r.ev_enabled <> 'D' "
        "AND pg_table_is_visible(c.oid)"
    )

    def __init__(self, location: Location, label: str) -> None:
        super().__init__(location, label)
        self._turn = asyncio.Lock()
        """Held during each call of the driver: a prefetch must not overlap with another call."""
        self._pooled: bool | None = None
        """True if a pooler answers; None before the first connection."""
        self.sees_part = self.check_option(_ROW_SECURITY, "on")
        self._connections: WeakSet[asyncpg.Connection] = WeakSet()
        self._turns: dict[AsyncConnection, AsyncConnection] = {}
        """The second connections, by writing connection, that ``take_turn`` opened."""

    @property
    def is_pooled(self) -> bool:
        """True if a pooler answers; False also before the first connection."""
        return bool(self._pooled)

    def make_engine(self) -> AlchemyEngine:
        parts = urlsplit(self.location.url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        # The driver would send the limit to the server, as a setting of the session.
        query = urlencode([pair for pair in pairs if pair[0] != _LIMIT], quote_via=quote)
        dsn = parts._replace(scheme="postgresql", query=query).geturl()
        if (limit := dict(pairs).get(_LIMIT)) is not None:
            self.connect_timeout = time_limit(_LIMIT, limit)
        else:
            self.connect_timeout = time_limit(_LIMIT_VARIABLE, os.environ.get(_LIMIT_VARIABLE))

        async def connect() -> asyncpg.Connection:
            try:
                if self._pooled is None:
                    return await self._connect_first(dsn)
                return await self._connected(dsn, None if self._pooled else self._settings)
            except asyncpg.ClientConfigurationError as error:
                raise UsageError(
                    f"{self.label}: {first_line(error)}", "write the URL as for psql"
                ) from error
            except ValueError:
                # The text of the error may hold a part of the password.
                raise UsageError(
                    f"{self.label} is not a valid PostgreSQL URL", "write the URL as for psql"
                ) from None

        # A pooler does not keep statements that the adapter prepared.
        engine = AlchemyEngine("postgresql+asyncpg://", connect, prepared_statement_cache_size=0)
        event.listen(engine.sync_engine, "connect", _set_codecs)
        return engine

    async def prepare_inspection(self, connection: AsyncConnection) -> None:
        # The inspection reads collations and identities as JSON, and needs them parsed.
        driver = await connection.driver()
        await driver.set_type_codec(
            "json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
        )

    def text_forms(self, connection: Connection, table: str) -> dict[str, TextForm]:
        values = {"table": table, "exact": _EXACT, "unless_domain": _EXACT_UNLESS_DOMAIN}
        return {
            name: TextForm(writable=writable)
            if exact
            else TextForm("CAST({} AS TEXT)", type_, writable)
            for name, exact, type_, writable in connection.execute(text(_FORMS), values)
        }

    async def missing_right(self, tables: Sequence[str], locked: Sequence[str] = ()) -> str:
        needed = [("INSERT", table) for table in tables] + [("UPDATE", table) for table in locked]
        async with self.snapshot() as connection:
            for right, table in needed:
                name = self.syntax.identifier(table)
                sql = f"SELECT {_LACKS.format(':name', right)}"
                [[missing]] = await self.fetch_all(connection, sql, {"name": name})
                if missing:
                    return f"{right} on {visible(table)!r}"
        return ""

    async def require_replica_identity(self, tables: Sequence[str]) -> None:
        with self.errors():
            async with self._engine.connection() as connection:
                driver = await connection.driver()
                await require_replica_identity(driver, tables, self.label)

    async def _connect_first(self, dsn: str) -> asyncpg.Connection:
        """Make the first connection as if through a pooler; find out whether a pooler answers."""
        connection = await self._connected(dsn, None)
        try:
            self._pooled = await is_pooled(connection)
            if not self._pooled:
                for name, value in self._settings.items():
                    await connection.execute(f"SET {name} = {value}")
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _connected(self, dsn: str, settings: Mapping[str, str] | None) -> asyncpg.Connection:
        """Return a new connection; ``settings`` are its session settings.

        With None, the connection may lead through a pooler, which refuses settings unknown to it.
        """
        made = await asyncpg.connect(
            dsn,
            timeout=self.connect_timeout,
            server_settings={"application_name": "memctl", **(settings or {})},
            connection_class=PooledConnection if settings is None else asyncpg.Connection,
        )
        self._connections.add(made)
        return made

    async def waits_for(self) -> str:
        if self.is_pooled:
            return ""
        own = [one.get_server_pid() for one in self._connections if not one.is_closed()]
        with self.errors():
            async with self._engine.connection() as connection:
                driver = await connection.driver()
                row = await driver.fetchrow(_BLOCKERS, own)
        if row is None:
            return ""
        name = visible(row["application_name"] or "another program")
        return f"{name} ({visible(row['usename'])}, pid {row['pid']}), which locks {self.label}"

    def translate(self, error: BaseException) -> MemctlError | None:
        message = f"{self.label}: {first_line(error)}"
        state = getattr(error, "sqlstate", None) or ""
        if (found := pooler_error(message)) is not None:
            return found
        if state.startswith(_CONTENDED):
            return Contended(message)
        for beginning, hint in _TRANSIENT.items():
            if state.startswith(beginning):
                return Lost(message, hint)
        if any(words in message for words in BROKEN):
            return Lost(f"{self.label}: {CLOSED}", IDLE_LIMITS)
        match state[:2]:
            case "22" | "23" | "54":
                return None
            case "0A" if "RETURNING" in message:  # a rule does something else instead
                return None
            case "P0" if state == _RAISED:
                return None
            case "28" if state == _WRONG_PASSWORD:
                return self.wrong_password(message, _LOGIN)
            case "28":
                return Unavailable(message, _LOGIN)
            case "3D":
                return NotFound(message, "create the database first")
            case "25" if state == "25006":
                return Unavailable(message, "use a server and login that accept writes")
            case "42" if state == "42501" and "row-level security" in message:
                return Unavailable(message, _ALL_ROWS)
            case "42" if state == "42501":
                return Unavailable(message, GRANT)
            case "42" if state == UNKNOWN_SETTING:
                return UsageError(message, "check the option in the URL")
            case "42":
                return BadData(
                    message, "check that the database has the expected tables and columns"
                )
            case "53":
                return Unavailable(message, "free disk space, memory or connections on the server")
        if isinstance(error, asyncpg.DataError | UnicodeError):
            return None
        if (late := self.unanswered(error)) is not None:
            return Lost(late, _GONE)
        if isinstance(error, OSError) and "SSL" in message:
            return Unavailable(message, "use sslmode=prefer or disable for a server without TLS")
        if isinstance(error, OSError):
            return Lost(message, _GONE)
        return Unavailable(message)

    def is_duplicate_key(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) == UNIQUE_VIOLATION

    async def begin_read(self, connection: AsyncConnection) -> None:
        await connection.set_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # Reads sort and join millions of rows; the default of 4 MB is too little.
        await connection.exec_driver_sql(
            f"SELECT set_config('work_mem', '{WORK_KILOBYTES}', true) FROM pg_settings "
            f"WHERE name = 'work_mem' AND setting::bigint < {WORK_KILOBYTES}"
        )
        if self.is_pooled:
            await self.begin(connection)

    async def begin_write(self, connection: AsyncConnection) -> None:
        await self.begin(connection)

    async def begin(self, connection: AsyncConnection) -> None:
        if not self.is_pooled:
            await super().begin(connection)
        for name, value in self._settings.items() if self.is_pooled else ():
            await connection.exec_driver_sql(f"SET LOCAL {name} = {value}")

    @property
    def _settings(self) -> dict[str, str]:
        """The settings of a session or, through a pooler, of each transaction."""
        return _SETTINGS | ({} if self.sees_part else {_ROW_SECURITY: "off"})

    async def execute_alone(self, connection: AsyncConnection, sql: str) -> None:
        # In one step: between two steps a pooler could choose a different session.
        await (await connection.driver()).execute(sql)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[AsyncConnection]:
        async with super().connect() as connection:
            try:
                yield connection
            finally:
                if (turn := self._turns.pop(connection, None)) is not None:
                    with suppress(*self._caught):  # the connection ends with the process
                        await turn.close()

    async def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        statement, bound = self.compile(sql, values)
        async with self._turn:
            cursor = await (await connection.driver()).cursor(statement, *bound)

        async def fetch() -> Sequence[Any]:
            async with self._turn:
                found: Sequence[Any] = await cursor.fetch(size)
                return found

        async with aclosing(prefetch(fetch)) as partitions:
            async for rows in partitions:
                yield rows

    async def fetch_all(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        statement, bound = self.compile(sql, values)
        async with self._turn:
            driver = await connection.driver()
            found: Sequence[Any] = await driver.fetch(statement, *bound)
            # The server completes a statement when the next one arrives.  A statement that has not
            # read its whole table holds buffers until then, and a new cursor would read less ahead.
            await driver.execute("SELECT 1")
        return found

    async def execute(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        # Without ``_turn``: other connections must go on while this statement waits.
        statement, bound = self.compile(sql, values)
        found: Sequence[Any] = await (await connection.driver()).fetch(statement, *bound)
        return found

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        driver = await connection.driver()
        if self.sees_part:  # COPY does not write to a table with row-level security
            await self._insert_each(driver, table, columns, rows, {})
            return
        status = await driver.copy_records_to_table(table, columns=columns, records=rows)
        self.check_inserted(table, len(rows), int(status.rpartition(" ")[2]))

    async def change_many(
        self, connection: AsyncConnection, sql: str, rows: list[tuple[Any, ...]]
    ) -> int:
        # The driver returns rows of many statements, but not their number.
        return len(await (await connection.driver()).fetchmany(f"{sql} RETURNING 1", rows))

    async def insert_rows(
        self,
        connection: AsyncConnection,
        table: str,
        columns: Sequence[str],
        rows: list[Any],
        types: Mapping[str, str] | None = None,
    ) -> None:
        if types:  # COPY takes values in the binary format alone
            await self._insert_each(await connection.driver(), table, columns, rows, types)
            return
        try:
            await PostgresqlDatabase.insert(self, connection, table, columns, rows)
        except (TypeError, ValueError) as error:  # a value does not have the type of its column
            text = f"{self.label}: a value does not fit its column: {first_line(error)}"
            raise RejectedValue(text, "refused") from error

    async def _insert_each(
        self,
        driver: asyncpg.Connection,
        table: str,
        columns: Sequence[str],
        rows: list[Any],
        types: Mapping[str, str],
    ) -> None:
        quoted = self.syntax.identifier
        names = ", ".join(map(quoted, columns))
        places = ", ".join(
            f"CAST(CAST(${number} AS TEXT) AS {types[name]})" if name in types else f"${number}"
            for number, name in enumerate(columns, 1)
        )
        texts = [name in types for name in columns]
        inserted = await driver.fetchmany(
            # COPY sets columns that are GENERATED ALWAYS AS IDENTITY, too.
            # To return a column, the server requires that the login will see the row.
            f"INSERT INTO {quoted(table)} ({names}) OVERRIDING SYSTEM VALUE VALUES ({places}) "
            f"RETURNING {quoted(columns[0])}",
            [
                [
                    str(value) if is_text and value is not None else value
                    for value, is_text in zip(row, texts, strict=True)
                ]
                for row in rows
            ],
        )
        self.check_inserted(table, len(rows), len(inserted))

    async def take_turn(self, connection: AsyncConnection, table: str) -> None:
        number = int.from_bytes(sha256(table.encode()).digest()[:4], signed=True)
        values = {"space": _SPACE, "number": number}
        if not self.is_pooled:
            async with self.transaction(connection):
                await self.fetch_all(connection, "SELECT pg_advisory_lock(:space, :number)", values)
            return
        # An open transaction of a second connection holds the turn, until ``connection`` is closed.
        with self.errors():
            turn = self._turns[connection] = await self._engine.connect()
            sql = "SELECT pg_advisory_xact_lock(:space, :number)"
            await turn.execute(sql, values)

    async def advance_serial(self, connection: AsyncConnection, table: str, column: str) -> None:
        sequence = "pg_get_serial_sequence(:table, :column)"
        sql = (
            f'SELECT setval({sequence}, GREATEST((SELECT MAX("{column}") FROM {table}), '
            f"nextval({sequence}))) WHERE {sequence} IS NOT NULL"
        )
        await self.fetch_all(connection, sql, {"table": table, "column": column})


async def require_replica_identity(
    driver: asyncpg.Connection, tables: Sequence[str], label: str
) -> None:
    """Check that no publication makes PostgreSQL refuse to change rows of ``tables``.

    PostgreSQL refuses statements that update or delete rows of a published table if subscribers
    could not find the rows.  EXPLAIN of such a statement fails, too, and changes nothing.
    ``driver`` is a connection without a transaction; ``label`` names the database in errors.

    Raises:
        Unavailable: PostgreSQL would refuse to update or delete rows.
    """
    if not await driver.fetchval(_PUBLISHED):
        return
    for table, column in await driver.fetch(_UPDATABLE, list(tables)):
        for sql in f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}":
            try:
                await driver.execute(f"EXPLAIN {sql}")
            except asyncpg.PostgresError as error:
                if error.sqlstate not in _UNREPLICATED:
                    continue  # a missing right, for instance, is no matter of publications
                detail = f": {error.detail}" if error.detail else ""
                raise Unavailable(
                    f"{label}: {first_line(error)}{detail}",
                    _UNREPLICATED[error.sqlstate].format(table),
                ) from error


def _set_codecs(connection: Any, _record: Any) -> None:
    """Configure a new connection to take and return JSON values as unparsed UTF-8 bytes.

    In a database whose texts are any bytes, texts are taken as UTF-8 and returned as by
    ``decoded``.
    """

    async def set_codecs(driver: asyncpg.Connection) -> None:
        if getattr(driver.get_settings(), "server_encoding", "") == _ANY_BYTES:
            await driver.execute(f"SET client_encoding = {_ANY_BYTES}")
            _use_codec(driver, _LENIENT_UTF8)
        await driver.set_type_codec(
            "json", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
        )

    connection.run_async(set_codecs)


def _use_codec(driver: asyncpg.Connection, name: str) -> None:
    """Have the driver encode and decode the texts of a connection with a Python codec.

    The driver takes the codec from the server's message about the client encoding alone, and would
    take ASCII for SQL_ASCII.
    """
    body = b"client_encoding\0" + name.encode() + b"\0"
    driver._protocol.data_received(b"S" + struct.pack("!i", 4 + len(body)) + body)


_last_encoded = deque[bytes](maxlen=1)
"""The last text given to the driver, which drops its only reference before it copies the bytes."""


def _encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
    found = codecs.utf_8_encode(text, errors)
    _last_encoded.append(found[0])
    return found


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != _LENIENT_UTF8:
        return None
    return codecs.CodecInfo(
        _encode,
        lambda value, _errors="strict": codecs.utf_8_decode(value, "surrogateescape", True),
        name=name,
    )


codecs.register(_find_codec)
