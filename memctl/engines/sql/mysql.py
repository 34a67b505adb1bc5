"""MySQL and MariaDB."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import aiomysql
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from memctl.engines.sql.alchemy import AlchemyEngine
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import (
    FETCH_ROWS,
    GRANT,
    Contended,
    Database,
    RejectedValue,
    first_line,
    time_limit,
)
from memctl.engines.sql.lock import ANSWER_SECONDS, ConnectionLock
from memctl.engines.sql.schema import TextForm
from memctl.engines.sql.syntax import CHUNK_BYTES, Syntax
from memctl.errors import BadData, Lost, MemctlError, NotFound, Unavailable, UsageError
from memctl.location import visible
from memctl.shard import Shard

_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")

# Refused values: too long, invalid JSON, wrong encoding, a repeated key, a packet beyond
# max_allowed_packet, of another type, none where one is needed.  Refused by a foreign key, a CHECK
# of MySQL or of MariaDB, or a trigger.
_REJECTED = frozenset(
    {1048, 1062, 1153, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1644}
    | {3140, 3141, 3144, 3819, 4025, 22032}
)
_DUPLICATE_KEY = 1062
_WRONG_PASSWORD = 1045
"""The code of an error after a login with a wrong password, or without one."""
_NO_PASSWORD_LOGIN = 1698
_LOGIN = (
    "check the user; give the password by MYSQL_PWD or password_env of an alias "
    "(memctl config init)"
)
_NO_RIGHT = 1044
_NO_TABLE_RIGHT = 1142
_READ_ONLY = frozenset({1227, 1290, 1792, 1836})
_FULL = frozenset({1021, 1114})
_UNKNOWN_DATABASE = 1049
_FOREIGN_TABLE = frozenset({1054, 1146})
_BUSY = {
    1040: "the server has no free connection",
    1203: "this login has too many connections",
    1969: "raise max_statement_time of the server",
    3024: "raise max_execution_time of the server",
}
"""Codes of errors after which a retry may help, each with a hint."""
_CLOSED = frozenset({1927, 2006, 2013, 2055, 4031})
"""The codes of errors on a connection that the server closed; mostly, the driver says no reason."""
_NOT_CONNECTED = "Not connected"
"""The later message of the driver on such a connection."""
_CONTENDED = frozenset({1205, 1213, 3572})
_TRANSIENT = (aiomysql.OperationalError, aiomysql.InterfaceError, OSError, RuntimeError)
"""Errors after which a retry may help, such as a shutdown, unless a code above says otherwise."""


_WAIT_SECONDS = 60
"""The seconds after which MySQL closes a silent connection."""
_PAUSES = (0.01, 0.05, 0.2)
_PLACES = 64
"""The number of locks of a database by which runs without a shard see those with one."""
_HOLDER = re.compile(r"/\* memctl: (.*?) \*/")


_FORMS = {
    "time": TextForm("CAST({} AS CHAR)"),  # the driver returns a duration, without its format
    "float": TextForm("({} + 0e0)"),  # else the server rounds to six digits
}
"""The forms of types that the driver does not convert exactly."""


class MysqlLock(ConnectionLock):
    """The lock of a run: a named lock of MySQL, one for each database and each of its shards.

    MySQL has no shared locks.  So a run with a shard also holds one of ``_PLACES`` locks with
    numbers.  A run without a shard looks at all of these, and a run with a shard looks at the lock
    of the database.  Each run looks after it has taken its own lock: no run overlooks another.

    The connection that holds the lock runs ``SELECT SLEEP`` statements with a comment that names
    the owner.  Other connections of the same login can read the comment.  Other logins see only the
    number of the connection.  ``wait_timeout`` closes the connection if the machine of the run is
    lost.
    """

    period = 2.0
    """The seconds of a ``SLEEP``, and at most until the server notices that the run has ended."""
    _number: int | None = None

    async def acquire(self) -> bool:
        self._number = None
        await self._run(f"SET SESSION wait_timeout = {_WAIT_SECONDS}")
        number, done = await self.ask(
            "SELECT CONNECTION_ID(), GET_LOCK(:name, 0)", name=await self._lock_name()
        )
        if not done:
            return False
        if self.shard is not None:
            await self._take_place(self.shard)
        if await self._holder() is not None:
            return False
        self._number = number
        return True

    async def _take_place(self, shard: Shard) -> None:
        """Take a free place, which runs without a shard see; if all are taken, they see others."""
        name = await self._whole_name()
        for number in range(_PLACES):
            place = f"{name} {(shard.number + number) % _PLACES}"
            [done] = await self.ask("SELECT GET_LOCK(:place, 0)", place=place)
            if done:
                return

    async def _holder(self) -> int | None:
        """Return the number of the connection whose lock excludes this run; None without one."""
        name = await self._whole_name()
        names = [await self._lock_name(), name]
        if self.shard is None:
            names += [f"{name} {number}" for number in range(_PLACES)]
        used = [f"NULLIF(IS_USED_LOCK('{name}'), CONNECTION_ID())" for name in names]
        [number] = await self.ask(f"SELECT COALESCE({', '.join(used)})")
        return None if number is None else int(number)

    async def find_owner(self) -> str:
        number = None
        for pause in _PAUSES:
            number = await self._holder()
            if number is None:
                return ""
            row = await self.ask(
                "SELECT INFO FROM information_schema.PROCESSLIST WHERE ID = :id", id=number
            )
            found = _HOLDER.search(str(row[0])) if row else None
            if found and found[1] == self.owner:
                await self._run(f"KILL CONNECTION {number}")
                return ""
            if found:
                return found[1]
            await asyncio.sleep(pause)  # the owner may be between two statements
        return f"connection {number} of the server"

    async def wait(self) -> None:
        await self._run(f"SELECT SLEEP({self.period}) /* memctl: {self.owner} */")

    async def free(self) -> None:
        """End the lock's connection, even during a ``SLEEP``, and wait until the lock is free."""
        number, self._number = self._number, None
        await self._drop()
        self._connection = await self._database.connect_autocommit()
        name = await self._lock_name()
        [owner] = await self.ask("SELECT IS_USED_LOCK(:name)", name=name)
        if number is not None and owner == number:
            await self._run(f"KILL CONNECTION {number}")
            await self.ask("SELECT GET_LOCK(:name, :seconds)", name=name, seconds=ANSWER_SECONDS)
            await self.ask("SELECT RELEASE_LOCK(:name)", name=name)

    async def _run(self, sql: str) -> None:
        assert self._connection is not None
        async with asyncio.timeout(self.period + ANSWER_SECONDS):
            await self._connection.exec_driver_sql(sql)

    async def _lock_name(self) -> str:
        """Return the name of the lock of the whole, or of the shard."""
        name = await self._whole_name()
        return name if self.shard is None else f"{name} {self.shard}"

    async def _whole_name(self) -> str:
        """Return a name with a hash of the database name: MySQL limits its length."""
        [database] = await self.ask("SELECT DATABASE()")
        return f"memctl {sha256(str(database).encode()).hexdigest()[:32]}"


class MysqlSyntax(Syntax):
    """The SQL of MySQL and MariaDB."""

    quote = "`"
    text_type = "CHAR"

    def place(self, number: int) -> str:  # noqa: ARG002
        return "%s"

    time_step = timedelta(seconds=1)
    row_lock = "FOR UPDATE"
    no_wait = "NOWAIT"
    locks_scanned_rows = True
    big_integer = "SIGNED"

    def exact(self, text: str) -> str:
        # Collations may ignore case, accents or trailing spaces.
        return f"CAST({text} AS BINARY)"

    def joined(self, one: str, other: str) -> str:
        return f"CONCAT({one}, {other})"

    def exact_text(self, value: str) -> str:
        return self.exact(f"CONVERT({value} USING utf8mb4)")

    def shard_hash(self, name: str) -> str:
        text = self.exact(f"CONVERT({name} USING utf8mb4)")
        return f"CASE WHEN {text} = {self.exact(name)} THEN LEFT(MD5({text}), 8) END"

    def among(self, column: str, names: str) -> str:
        # The first condition uses an index, the second compares exactly.
        return f"{column} IN :{names} AND {self.exact(column)} IN :{names}"

    def insert_free(self, insert: str, column: str) -> str:
        return f"{insert} ON DUPLICATE KEY UPDATE {column} = {column}"

    def json_size(self, column: str) -> str:
        return f"LENGTH({column})"

    def stored_json(self, value: bytes) -> Any:
        return value.decode()

    def drop_temporary(self, table: str) -> str:
        return f"DROP TEMPORARY TABLE IF EXISTS {table}"


class MysqlDatabase(Database):
    """A MySQL or MariaDB database."""

    syntax_class = MysqlSyntax
    lock_class = MysqlLock
    password_variable = "MYSQL_PWD"
    driver_errors = (SQLAlchemyError, aiomysql.Error, UnicodeEncodeError, RuntimeError)
    # The pages of messages are used several times, and InnoDB's buffers are small by default.
    batch_changes = 2_000
    identity_sql = "SELECT 'mysql:', @@hostname, @@port, @@datadir, DATABASE()"
    # The server names the zone of its machine only by an abbreviation, such as CST.
    zone_sql = (
        "SELECT CASE WHEN @@session.time_zone <> 'SYSTEM' THEN @@session.time_zone "
        "WHEN @@system_time_zone = 'UTC' THEN 'UTC' ELSE '' END"
    )
    local_time_sql = "FROM_UNIXTIME({})"
    zoned_type = "TIMESTAMP"
    # Identifiers of the server change with a failover, those of a table when it is optimized.
    generation_sql = (
        "SELECT UNIX_TIMESTAMP(MIN(CREATE_TIME)) FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'"
    )
    references_sql = (
        "SELECT k.REFERENCED_TABLE_NAME, CONCAT(k.TABLE_SCHEMA, '.', k.CONSTRAINT_NAME), "
        "k.TABLE_SCHEMA, k.TABLE_NAME, k.COLUMN_NAME, k.REFERENCED_COLUMN_NAME, "
        # A login with rights on single tables may see the columns alone.
        "COALESCE(r.DELETE_RULE, '') FROM information_schema.KEY_COLUMN_USAGE k "
        "LEFT JOIN information_schema.REFERENTIAL_CONSTRAINTS r "
        "ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME "
        "AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME "
        "WHERE k.REFERENCED_TABLE_SCHEMA = DATABASE() "
        "AND COALESCE(r.DELETE_RULE, '') IN ('CASCADE', 'SET NULL', 'SET DEFAULT', '')"
    )
    triggers_sql = (
        "SELECT EVENT_OBJECT_TABLE, 'trigger', TRIGGER_NAME FROM information_schema.TRIGGERS "
        "WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_MANIPULATION = 'DELETE'"
    )
    _packet = 0

    def make_engine(self) -> AlchemyEngine:
        settings = connect_settings(self.location.url)
        self.connect_timeout = settings.pop("connect_timeout")

        async def connect() -> aiomysql.Connection:
            # The driver's own timeout ends once the connection is accepted.
            async with asyncio.timeout(self.connect_timeout):
                connection = await aiomysql.connect(
                    charset="utf8mb4",
                    # Compare names exactly, and store values unchanged or refuse them.
                    init_command="SET SESSION sql_mode = "
                    "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES', "
                    "collation_connection = 'utf8mb4_bin'",
                    **settings,
                )
            connection.escape = partial(_literal, connection.escape)
            return connection

        return AlchemyEngine("mysql+aiomysql://", connect)

    def text_forms(self, connection: Connection, table: str) -> dict[str, TextForm]:
        sql = text(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = :table"
        )
        rows = connection.execute(sql, {"table": table})
        return {name: _FORMS[kind.lower()] for name, kind in rows if kind.lower() in _FORMS}

    def missed_defaults(self, connection: Connection, table: str) -> Mapping[str, str]:
        # SQLAlchemy does not see a default like b'101'.  MariaDB notes the default NULL as a text.
        sql = text(
            "SELECT column_name, column_default FROM information_schema.columns "
            "WHERE table_schema = DATABASE() "
            "AND table_name = :table AND column_default <> 'NULL'"
        )
        return {row[0]: row[1] for row in connection.execute(sql, {"table": table})}

    async def missing_right(
        self,
        tables: Sequence[str],
        locked: Sequence[str] = (),  # noqa: ARG002 - who may delete rows may lock them
    ) -> str:
        # Rights may come from roles and patterns; the server checks them for EXPLAIN, too.
        async with self.connect() as connection, self.read_transaction(connection):
            for table in tables:
                sql = f"EXPLAIN INSERT INTO {self.syntax.identifier(table)} () VALUES ()"
                try:
                    await connection.exec_driver_sql(sql)
                except DBAPIError as error:
                    if error.orig is not None and error.orig.args[:1] == (_NO_TABLE_RIGHT,):
                        return f"INSERT on {visible(table)!r}"
        return ""

    def translate(self, error: BaseException) -> MemctlError | None:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        reason = str(error.args[1]) if len(error.args) > 1 else first_line(error)
        message = f"{self.label}: {reason}"
        if code in _REJECTED or isinstance(error, UnicodeEncodeError):
            return None
        if code == _WRONG_PASSWORD:
            return self.wrong_password(message, _LOGIN)
        if code == _NO_PASSWORD_LOGIN:
            return Unavailable(message, "use another login: the server takes no password for it")
        if code == _NO_RIGHT:
            return Unavailable(
                message, "grant it rights on the database; changes need CREATE TEMPORARY TABLES too"
            )
        if code == _NO_TABLE_RIGHT:
            return Unavailable(message, GRANT)
        if code in _READ_ONLY:
            return Unavailable(message, "use a server and login that accept writes")
        if code in _FULL:
            return Unavailable(message, "free disk space on the server")
        if code == _UNKNOWN_DATABASE:
            return NotFound(message, "create the database first")
        if code in _FOREIGN_TABLE:
            return BadData(message, "check that the database has the expected tables and columns")
        if code in _CONTENDED:
            return Contended(message)
        if code in _BUSY:
            return Lost(message, _BUSY[code])
        message = self.unanswered(error) or message
        if code in _CLOSED or _NOT_CONNECTED in message:
            return Lost(
                f"{self.label}: the server closed an idle connection, or is gone",
                "check that the server is running, and its limits: wait_timeout, and "
                "idle_transaction_timeout of MariaDB",
            )
        if isinstance(error, _TRANSIENT):
            return Lost(message, "check that the server is running, and host and port")
        return Unavailable(message)

    def is_duplicate_key(self, error: BaseException) -> bool:
        return bool(error.args) and error.args[0] == _DUPLICATE_KEY

    @asynccontextmanager
    async def second_connection(
        self,
        connection: AsyncConnection,  # noqa: ARG002 - its result is being read
    ) -> AsyncGenerator[AsyncConnection]:
        async with self._engine.connection() as other:
            await self.begin_read(other)
            yield other

    async def begin_read(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    async def begin_write(self, connection: AsyncConnection) -> None:
        # Without gap locks: two runs that create sessions concurrently would deadlock.
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await connection.exec_driver_sql("START TRANSACTION")

    async def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        statement, bound = self.compile(sql, values)
        driver = await connection.driver()
        assert isinstance(driver, aiomysql.Connection)
        cursor = await driver.cursor(aiomysql.SSCursor)
        try:
            await cursor.execute(statement, tuple(bound))
            while rows := await cursor.fetchmany(size):
                yield rows
        finally:
            if not driver.closed:  # a cancelled read closes the connection
                await cursor.close()

    async def take_turn(self, connection: AsyncConnection, table: str) -> None:
        name = "memctl-" + sha256(table.encode()).hexdigest()[:40]
        async with self.transaction(connection):
            await self.fetch_all(connection, "SELECT GET_LOCK(:name, -1)", {"name": name})

    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        at = next((at for at, name in enumerate(columns) if name in ("msg", "payload")), None)
        if at is not None:
            limit = await self._piece_limit(connection)
            for row in [row for row in rows if len(row[at]) > limit]:
                async with self._put_together(connection, row[at]) as text:
                    sql = insert_statement("INSERT", table, columns, {at: text})
                    await connection.exec_driver_sql(sql, (*row[:at], *row[at + 1 :]))
            rows = [
                (*row[:at], row[at].decode(), *row[at + 1 :])
                for row in rows
                if len(row[at]) <= limit
            ]
        if rows:
            await connection.exec_driver_sql(insert_statement("INSERT", table, columns), rows)

    def check_updated(self, table: str, rows: int, updated: int) -> None:
        """Check nothing: the server counts only rows that change, and a trigger leaves none out."""

    async def change_each(
        self, connection: AsyncConnection, sql: str, values: Sequence[Mapping[str, Any]]
    ) -> int:
        limit, changed = await self._piece_limit(connection), 0
        large = [one for one in values if len(one.get("json", "")) > limit]
        for one in large:
            async with self._put_together(connection, one["json"]) as text:
                changed += await self.change(connection, sql.replace(":json", text), one)
        small = [one for one in values if len(one.get("json", "")) <= limit] if large else values
        return changed + await super().change_each(connection, sql, small) if small else changed

    async def _piece_limit(self, connection: AsyncConnection) -> int:
        """Return a size in bytes: a text of this size fits into a statement, however escaped."""
        if not self._packet:
            result = await connection.exec_driver_sql("SELECT @@max_allowed_packet")
            self._packet = int(result.scalar())
        return min(CHUNK_BYTES, self._packet // 4)

    @asynccontextmanager
    async def _put_together(self, connection: AsyncConnection, text: bytes) -> AsyncGenerator[str]:
        """Send a text in pieces to a variable of the server session; yield the variable's name.

        Raises:
            RejectedValue: the text exceeds the server's ``max_allowed_packet``.
        """
        if len(text) > self._packet:
            raise RejectedValue(
                f"{self.label}: a text of {len(text)} bytes exceeds the server's "
                f"max_allowed_packet of {self._packet}",
                "refused",
            )
        run = connection.exec_driver_sql
        await run("SET @memctl_text = ''")
        decoder = codecs.getincrementaldecoder("utf-8")()
        size = await self._piece_limit(connection)
        for start in range(0, len(text), size):
            piece = decoder.decode(text[start : start + size])
            await run("SET @memctl_text = CONCAT(@memctl_text, %s)", (piece,))
        yield "@memctl_text"
        await run("SET @memctl_text = NULL")


def _literal(escape: Callable[[Any], str], value: Any) -> str:
    """Return a value as SQL, even bytes."""
    return f"_binary X'{value.hex()}'" if isinstance(value, bytes) else escape(value)


def connect_settings(url: str) -> dict[str, Any]:
    """Return the arguments for ``aiomysql.connect`` from a URL in the form of libpq.

    ``?host=/path`` names a Unix socket; ``?sslmode=`` and ``?connect_timeout=`` have the meanings
    of libpq.  If the URL has no password, the environment variable ``MYSQL_PWD`` is used.

    Raises:
        UsageError: the URL names no database, or has an unknown option.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = options.pop("host", "") or parts.hostname or "127.0.0.1"
    socket = options.pop("unix_socket", "") or (host if host.startswith("/") else "")
    database = options.pop("dbname", "") or unquote(parts.path.removeprefix("/"))
    if not database:
        raise UsageError("the URL names no database", "write mysql://user@host/database")
    password = unquote(parts.password or "") or options.pop("password", "")
    settings: dict[str, Any] = {
        "user": unquote(parts.username or "") or options.pop("user", "") or os.environ.get("USER"),
        "password": password or os.environ.get("MYSQL_PWD", ""),
        "db": database,
    }
    if socket:
        settings["unix_socket"] = socket
    else:
        settings |= {"host": host, "port": parts.port or int(options.pop("port", "3306"))}
    context = _tls(options.pop("sslmode", "prefer"), options.pop("sslrootcert", None))
    if context and not socket:
        settings["ssl"] = context
    settings["connect_timeout"] = time_limit(
        "connect_timeout", options.pop("connect_timeout", None)
    )
    options.pop("charset", None)
    if options:
        raise UsageError(
            f"MySQL takes no option {next(iter(options))!r}",
            "known: host, port, user, password, dbname, unix_socket, sslmode, sslrootcert, "
            "connect_timeout",
        )
    return settings


def _tls(mode: str, root: str | None) -> ssl.SSLContext | None:
    if mode not in _SSL_MODES:
        raise UsageError(f"sslmode={mode} is unknown", f"known: {', '.join(_SSL_MODES)}")
    if mode in ("disable", "prefer"):
        return None
    context = ssl.create_default_context(cafile=root)
    context.check_hostname = mode == "verify-full"
    if mode == "require":
        context.verify_mode = ssl.CERT_NONE
    return context


def insert_statement(
    verb: str, table: str, columns: Sequence[str], values: Mapping[int, str] | None = None
) -> str:
    names = ", ".join(f"`{column}`" for column in columns)
    places = ", ".join((values or {}).get(at, "%s") for at in range(len(columns)))
    return f"{verb} INTO {table} ({names}) VALUES ({places})"
