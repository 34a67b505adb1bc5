"""The database of a SQL store: connections, transactions, errors and statements.

Each engine (``sqlite``, ``postgresql``, ``mysql``) has a ``Database`` for its driver and a
``Syntax`` for its SQL.  Neither knows a layout.
"""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import UTC, datetime, tzinfo
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

from memctl.engines.sql.connection import AsyncConnection, AsyncEngine
from memctl.engines.sql.schema import TextForm, other_columns
from memctl.engines.sql.side_effects import (
    ALLOW,
    SIDE_EFFECTS,
    Trigger,
    find_side_effects,
    has_option,
)
from memctl.engines.sql.syntax import ALWAYS, Condition, Syntax, pieces
from memctl.errors import (
    BadData,
    Failure,
    Lost,
    MemctlError,
    PasswordMissing,
    Unavailable,
    UsageError,
)
from memctl.location import Location, visible
from memctl.machine.concurrency import cut_short
from memctl.machine.time_zones import zone_by, zone_named
from memctl.model import Page, WriteResult
from memctl.selection import Selection
from memctl.shard import Shard, shard_hash
from memctl.store import OpenMode
from memctl.storekit.catalog import span
from memctl.text.numbers import count

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from memctl.engines.sql.lock import ConnectionLock

T = TypeVar("T")

CONNECT_TIMEOUT = 15
"""The default time limit for connecting, in seconds."""

CREATE_ATTEMPTS = 5
CREATE_PAUSE = 0.2
"""The seconds between attempts to create tables, in case another run creates them too."""

NAMED_TABLES = 10
"""The maximum number of table names in an error about tables of other programs."""

GRANT = "grant the login SELECT to read the tables, and INSERT, UPDATE, DELETE to change them"
FETCH_ROWS = 256
"""The number of rows to fetch from a driver at once: at most 16 MiB of small messages."""
HASHED = "session-1", "会话", "🙂"
"""The names whose hashes show whether a database hashes names as memctl does."""
PAUSES = (0.01, 0.03, 0.1, *[0.5] * 100)
"""The seconds between attempts to change rows locked by others: about 50 in total, as in InnoDB."""


class RejectedValue(BadData):
    """The database refused a value of a statement, such as a text that is too long."""

    def __init__(self, message: str, failure_code: str) -> None:
        super().__init__(message)
        self.failure = Failure(failure_code, message)


class Contended(Lost):
    """Other transactions lock the same rows, or caused the rollback of this transaction."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "other writers changed the same rows")
        self.failure = Failure("locked", message)


class Database(ABC):
    """The access to a SQL database with any tables: connections, transactions, statements."""

    syntax_class: ClassVar[type[Syntax]]
    sees_part: bool = False
    """True if row-level security may hide rows, and the URL accepts that."""
    parallel: ClassVar[bool] = True
    """True if several connections can write at once."""
    driver_errors: tuple[type[Exception], ...] = ()
    """Exceptions of the driver, and of the library that makes its connections."""
    password_variable: ClassVar[str] = ""
    """The environment variable whose value is the password if the URL has none."""
    lock_class: ClassVar[type[ConnectionLock]]
    """The class of the lock that a run takes on the database server."""
    connect_timeout: int | None = CONNECT_TIMEOUT
    """The time limit for connecting, in seconds; None for no limit."""
    batch_changes: ClassVar[int] = 10_000
    """The maximum number of changes in a transaction that changes several memories."""

    identity_sql: ClassVar[str]
    """A statement whose row is joined to the identity: the kind with a colon, then values."""
    generation_sql: ClassVar[str] = ""
    """A statement that returns the values of ``generation``."""
    references_sql: ClassVar[str] = ""
    """A statement that lists columns of foreign keys, with the fields of ``ReferringColumn``."""
    triggers_sql: ClassVar[str]
    """A statement that lists triggers and rules, with the fields of ``Trigger``."""

    zone_sql: ClassVar[str] = ""
    """A statement that returns the name of the session's time zone; empty for UTC."""
    local_time_sql: ClassVar[str] = ""
    """SQL that converts seconds since 1970 to a time without a zone, in the session's time zone."""
    zoned_type: ClassVar[str] = ""
    """The type whose values a session sees in its time zone, without the zone."""

    _engine: AsyncEngine

    def __init__(self, location: Location, label: str) -> None:
        """Store the location, and the label that names the database in messages.

        No connection is made.
        """
        self.location = location
        self.label = label
        self.mode = OpenMode.READ
        self.details: list[str] = []
        """See ``Store.details``."""
        self.about_to_commit: Callable[[Iterable[WriteResult]], None] = lambda _: None
        """See ``Store.about_to_commit``; called at the end of a transaction."""
        self.syntax = self.syntax_class()
        self._inspecting: AsyncConnection | None = None
        """The connection that ``run`` uses during ``start``: a new one may take 0.1 s."""
        self._lock: ConnectionLock | None = None
        self._hashed = False
        """True if the database was asked for hashes of names."""
        self._added: dict[str, list[str]] = {}
        """The columns without a default that an application added, by table."""

    async def waits_for(self) -> str:
        """See ``Store.waits_for``."""
        return ""

    @property
    def _caught(self) -> tuple[type[Exception], ...]:
        return (OSError, *self.driver_errors)

    # Specific to a database

    @abstractmethod
    def make_engine(self) -> AsyncEngine:
        """Return the engine for the location, not yet connected.

        Raises:
            NotFound, UsageError: the location names no database, or is not valid.
        """

    async def identity(self) -> str:
        """Return a text that is equal for all locations of the same database."""
        with self.errors():
            async with self._engine.connection() as connection:
                kind, *parts = map(str, (await connection.exec_driver_sql(self.identity_sql)).one())
                return kind + "/".join(parts)

    async def generation(self) -> str:
        """Return a text that changes when the database is recreated, or its oldest table.

        The text is empty if the database has no such property.
        """
        if not self.generation_sql:
            return ""
        async with self.snapshot() as connection:
            [row] = await self.fetch_all(connection, self.generation_sql, {})
            return "/".join(map(str, row))

    async def time_zone(self, connection: AsyncConnection) -> tzinfo:
        """Return the time zone of a new session of this login, which memctl's sessions keep.

        If no zone has the name that the server gives, the server's conversions show the zone.
        """
        if not self.zone_sql:
            return UTC
        [[name]] = await self.fetch_all(connection, self.zone_sql, {})

        async def local_times(seconds: Sequence[int]) -> list[datetime]:
            found: list[datetime] = []
            for some in pieces(seconds):
                sql = f"SELECT {', '.join(map(self.local_time_sql.format, some))}"
                found += (await self.fetch_all(connection, sql, {}))[0]
            return found

        return zone_named(name) or await zone_by(local_times)

    @abstractmethod
    def translate(self, error: BaseException) -> MemctlError | None:
        """Return the memctl error for an error of the driver.

        None if the database refused a value of the statement.
        """

    def unanswered(self, error: BaseException) -> str | None:
        """Return the message if the time limit for connecting caused the error, else None."""
        if isinstance(error, TimeoutError) and error.errno is None and self.connect_timeout:
            return f"{self.label}: no answer in {count(self.connect_timeout, 'second')}"
        return None

    @abstractmethod
    def is_duplicate_key(self, error: BaseException) -> bool:
        """Return whether an error of the driver says that a row with the same key exists."""

    def wrong_password(self, message: str, hint: str) -> Unavailable:
        """Return the error for a server that refuses the password, or that none was given."""
        parts = urlsplit(self.location.url)
        given = parts.password or "password" in parse_qs(parts.query)
        kind = Unavailable if given or os.environ.get(self.password_variable) else PasswordMissing
        return kind(message, hint)

    async def begin(self, connection: AsyncConnection) -> None:
        """Begin a transaction that needs no consistent snapshot."""
        await connection.exec_driver_sql("SELECT 1")

    @abstractmethod
    async def begin_read(self, connection: AsyncConnection) -> None:
        """Begin a read-only transaction with a consistent snapshot."""

    @abstractmethod
    async def begin_write(self, connection: AsyncConnection) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        """Run a query and yield its rows as they arrive, in lists of at most ``size`` rows.

        ``values`` are the parameters of the query.
        """

    @abstractmethod
    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Insert rows of messages in bulk.

        A value of the column ``msg`` or ``payload`` is the JSON of a message as UTF-8 bytes.
        """

    async def insert_rows(
        self,
        connection: AsyncConnection,
        table: str,
        columns: Sequence[str],
        rows: list[Any],
        types: Mapping[str, str] | None = None,  # noqa: ARG002 - for PostgreSQL
    ) -> None:
        """Insert rows into a table in the given order; each row has the values of ``columns``.

        ``types`` has the ``TextForm.type`` of columns whose values are given as texts.
        """
        syntax = self.syntax
        names = ", ".join(map(syntax.identifier, columns))
        places = ", ".join(map(syntax.place, range(1, len(columns) + 1)))
        sql = f"INSERT INTO {syntax.identifier(table)} ({names}) VALUES ({places})"
        result = await connection.exec_driver_sql(sql, rows)
        self.check_inserted(table, len(rows), result.rowcount)

    def check_inserted(self, table: str, rows: int, inserted: int) -> None:
        """Check that the database inserted each row: a trigger may leave rows out.

        ``rows`` is the expected number of rows, ``inserted`` the actual number.

        Raises:
            RejectedValue: the database inserted fewer rows.
        """
        if inserted < rows:
            text = f"a trigger of {visible(table)!r} left out {rows - inserted:,} of {rows:,} rows"
            raise RejectedValue(f"{self.label}: {text}", "refused")

    def check_deleted(self, table: str, rows: int, deleted: int) -> None:
        """Check that the database deleted each row: a trigger or a policy may leave rows out.

        ``rows`` is the expected number of rows, ``deleted`` the actual number.

        Raises:
            RejectedValue: the two numbers differ.
        """
        self._check_count(table, "deleted", rows, deleted)

    def check_updated(self, table: str, rows: int, updated: int) -> None:
        """Check that the database updated each row; raises as ``check_deleted``."""
        self._check_count(table, "updated", rows, updated)

    def _check_count(self, table: str, done: str, rows: int, found: int) -> None:
        if found != rows:
            text = (
                f"the database {done} {found:,} rows of {visible(table)!r}, not {rows:,}: look for "
                "a trigger, a rule or row-level security on the table"
            )
            raise RejectedValue(f"{self.label}: {text}", "changed")

    async def execute_alone(self, connection: AsyncConnection, sql: str) -> None:
        """Run a statement outside of SQLAlchemy's transactions.

        The connection is from ``connect_autocommit``.
        """
        await connection.execute(sql)

    async def take_turn(  # noqa: B027 - SQLite has one writer at a time
        self, connection: AsyncConnection, table: str
    ) -> None:
        """Wait until no other memctl run writes to a table, then make other runs wait.

        Other runs wait until ``connection`` is closed.
        """

    async def advance_serial(  # noqa: B027 - most databases do this themselves
        self, connection: AsyncConnection, table: str, column: str
    ) -> None:
        """Advance the sequence that numbers a column beyond the column's largest value."""

    # Opening and closing

    async def start(self, mode: OpenMode, prepare: Callable[[], Awaitable[None]]) -> None:
        """Make the engine and run ``prepare``, which checks or creates the tables.

        After an error, all connections are closed.

        Raises:
            MemctlError: as ``Store.open``.
        """
        self.mode = mode
        self.check_option(SIDE_EFFECTS, ALLOW)
        self._engine = self.make_engine()
        with self.errors():
            try:
                async with self._inspection() as self._inspecting:
                    await prepare()
            except BaseException:
                await self.close()
                raise
            finally:
                self._inspecting = None

    def check_option(self, name: str, value: str) -> bool:
        """Return whether the URL has an option, whose only value is ``value``.

        Raises:
            UsageError: the option has another value.
        """
        return has_option(self.location, self.label, name, value)

    async def look(self, work: Callable[[Any], T]) -> T:
        """Call ``work`` with what ``inspector.inspect`` takes; return its result."""
        with self.errors():
            if self._inspecting is not None:
                found = await self._inspecting.run(work)
                await self._inspecting.rollback()  # the next call sees what others committed
                return found
            async with self._inspection() as connection:
                return await connection.run(work)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Call ``work`` with a connection of SQLAlchemy; return its result."""
        return await self.look(work)

    def schema_engine(self) -> AsyncEngine:
        """Return the engine whose connections create tables, by SQLAlchemy."""
        return self._engine

    @asynccontextmanager
    async def _inspection(self) -> AsyncGenerator[AsyncConnection]:
        async with self._engine.connection() as connection:
            await self.prepare_inspection(connection)
            yield connection

    def text_forms(
        self,
        connection: Connection,  # noqa: ARG002 - SQLite holds any value in any column
        table: str,  # noqa: ARG002
    ) -> dict[str, TextForm]:
        """Map each column that the driver does not convert exactly to the form of its values."""
        return {}

    def missed_defaults(
        self,
        connection: Connection,  # noqa: ARG002 - most databases have none
        table: str,  # noqa: ARG002
    ) -> Mapping[str, str]:
        """Return the SQL of defaults that SQLAlchemy's inspection may miss, by column."""
        return {}

    async def prepare_inspection(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Set up a connection so that SQLAlchemy can inspect tables with it."""

    async def create(self, work: Callable[[Connection], None]) -> None:
        """Call ``work`` to create missing tables in a transaction.

        After an error, ``work`` is called again, because another run may create the same tables.
        MySQL commits after each table; elsewhere, all tables are created or none.
        """
        for left in reversed(range(CREATE_ATTEMPTS)):
            try:
                async with self.schema_engine().connection() as connection:
                    await self.prepare_inspection(connection)
                    await self.begin_write(connection)
                    await connection.run(work)
                    await connection.commit()
                return
            except self._caught:
                if not left or cut_short():
                    raise
            await asyncio.sleep(CREATE_PAUSE)

    async def close(self) -> None:
        """Release the lock of the run, and close all connections."""
        if self._lock is not None:
            await self._lock.release()

    async def lock(self, owner: str, warnings: list[str], shard: Shard | None) -> None:
        """Keep other memctl runs from writing to the database until ``close``.

        ``owner`` describes this run to the other runs.  The lock appends its warnings to
        ``warnings``.  ``shard`` limits the lock; a database that is a file is locked whole.
        """
        self._lock = self.lock_class(self, warnings, shard)
        await self._lock.take(owner)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn exceptions that the driver raises in the ``with`` block into errors of memctl.

        Raises:
            RejectedValue: the database refused a value; later statements can succeed.
            Contended: other transactions hold the rows.
            MemctlError: the store failed.
            CancelledError: the task is being cancelled, and the driver raised an error instead.
        """
        try:
            yield
        except self._caught as error:
            if cut_short():
                raise asyncio.CancelledError from error
            cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps errors of the driver
            found = self.translate(cause)
            if found is None:
                code = "repeated-id" if self.is_duplicate_key(cause) else "refused"
                raise RejectedValue(f"{self.label}: {first_line(cause)}", code) from error
            raise found from error

    # Connections and transactions

    async def prepare_shard(self, shard: Shard | None) -> None:
        """Make ``Syntax.in_shard`` select a shard from now on, if the database can.

        The first call with a shard asks the database for the hashes of a few names.  If it cannot
        compute them, memctl must select from all sessions, and ``details`` says so.

        Raises:
            Lost: the connection broke.
        """
        if shard is None or self._hashed:
            return
        reason = f"{self.label}: the database hashes names otherwise"
        try:
            found = await self._hashes()
        except Lost:
            raise
        except MemctlError as error:
            found, reason = [], error.message
        self._hashed = True
        self.syntax.selects_shards = found == [*map(shard_hash, HASHED), "1"]
        if not self.syntax.selects_shards:
            self.details.append(f"{reason}; memctl selects the memories of the shard itself")

    async def _hashes(self) -> list[str]:
        """Return the hashes of ``HASHED`` that the database computes, and 1 if it uses UTF-8."""
        syntax = self.syntax
        values = {f"name{at}": name for at, name in enumerate(HASHED)}
        hashes = (syntax.shard_hash(f"CAST(:{name} AS {syntax.text_type})") for name in values)
        sql = f"SELECT {', '.join(hashes)}, CASE WHEN {syntax.names_utf8} THEN 1 ELSE 0 END"
        with self.errors():
            async with self._engine.connection() as connection:
                await self.begin(connection)
                [row] = await self.fetch_all(connection, sql, values)
        return list(map(shown_name, row))

    @asynccontextmanager
    async def snapshot(
        self, shard: Shard | None = None, *, long: bool = False
    ) -> AsyncGenerator[AsyncConnection]:
        """Yield a new connection in a read-only transaction with a consistent snapshot.

        ``shard`` is the shard that statements are to select; see ``prepare_shard``.  ``long`` is
        True if the statements may take seconds, as those that read whole tables.
        """
        await self.prepare_shard(shard)
        with self.errors():
            async with self.reading(long=long) as connection:
                await self.begin_read(connection)
                try:
                    yield connection
                finally:
                    await connection.rollback()

    def reading(
        self,
        *,
        long: bool,  # noqa: ARG002 - for SQLite
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a connection for a snapshot; ``long`` is as in ``snapshot``.

        SQLite opens a copy of the file, if reading the file would block writers for too long.
        """
        return self._engine.connection()

    async def find_other_values(self, table: str, known: Collection[str], where: Condition) -> str:
        """Look for a column outside ``known`` with a value that a new row may not get.

        A new row gets the default of the column, or NULL.  A default that is not a literal may give
        each row a different value.  ``where`` selects the rows to examine, and calls the table
        ``m``.
        The result is a text for messages, such as ``the column 'tag' of the table 'messages'``, or
        empty if there is no such column.
        """
        columns = await self.look(partial(other_columns, table, known))
        if not columns:
            return ""
        async with self.snapshot() as connection:
            for one in columns:
                column = f"m.{self.syntax.quoted(one.name)}"
                rows = f"{self.syntax.quoted(table)} m WHERE {where.sql}"
                if one.default is None:
                    test = f"{column} IS NOT NULL"
                elif one.is_literal:
                    shown, default = map(self.syntax.exact_text, (column, one.default))
                    test = f"({shown} = {default}) IS NOT TRUE"
                else:
                    test = ALWAYS
                sql = f"SELECT 1 FROM {rows} AND {test} LIMIT 1"
                if await self.fetch_all(connection, sql, where.values):
                    return f"the column {visible(one.name)!r} of the table {visible(table)!r}"
        return ""

    async def has_added_value(
        self, connection: AsyncConnection, table: str, known: Collection[str], where: Condition
    ) -> bool:
        """Return whether an application gave a value to a column that it added to a table.

        The columns in ``known`` and columns with a default do not count.  ``where`` selects the
        rows to examine, and calls the table ``m``.
        """
        if table not in self._added:
            columns = await self.look(partial(other_columns, table, known))
            self._added[table] = [one.name for one in columns if one.default is None]
        if not self._added[table]:
            return False
        values = [f"m.{self.syntax.quoted(name)} IS NOT NULL" for name in self._added[table]]
        sql = (
            f"SELECT 1 FROM {self.syntax.quoted(table)} m "
            f"WHERE {where.sql} AND ({' OR '.join(values)}) LIMIT 1"
        )
        return bool(await self.execute(connection, sql, where.values))

    async def side_effects(
        self, tables: Mapping[str, Condition], own: Collection[str] = ()
    ) -> list[str]:
        """Describe what else the database changes when rows are deleted.

        ``tables`` maps the name of each table to a condition on its rows to delete, which calls the
        table ``m``.  ``own`` holds the names of other tables of the layout, whose changes do not
        count.
        """
        if self.check_option(SIDE_EFFECTS, ALLOW):
            return []
        async with self.snapshot() as connection:
            triggers = await self.delete_triggers(connection)
            rows: Sequence[Any] = []
            if self.references_sql:
                rows = await self.fetch_all(connection, self.references_sql, {})
            names = (map(shown_name, row) for row in rows)
            fetch = partial(self.fetch_all, connection)
            return await find_side_effects(fetch, triggers, names, tables, own, self.syntax)

    async def missing_right(
        self,
        tables: Sequence[str],  # noqa: ARG002 - SQLite has no rights
        locked: Sequence[str] = (),  # noqa: ARG002
    ) -> str:
        """Return a right that the login lacks to insert rows, such as ``INSERT on 'message'``.

        Rows are inserted into ``tables``, and locked in the tables ``locked``.  The text is empty
        if no right is missing, or if the database does not tell.
        """
        return ""

    async def require_replica_identity(  # noqa: B027 - only PostgreSQL asks for it
        self, tables: Sequence[str]
    ) -> None:
        """Check that no publication makes the database refuse to change rows of ``tables``.

        Raises:
            Unavailable: the database would refuse to update or delete rows.
        """

    async def delete_triggers(self, connection: AsyncConnection) -> list[Trigger]:
        """Return the triggers and rules that run when rows of any table are deleted."""
        rows = await self.fetch_all(connection, self.triggers_sql, {})
        return [Trigger(*map(shown_name, row)) for row in rows]

    @asynccontextmanager
    async def second_connection(
        self, connection: AsyncConnection
    ) -> AsyncGenerator[AsyncConnection]:
        """Yield a connection to run queries on while a result of ``connection`` is being read.

        The default is ``connection`` itself.
        """
        yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[AsyncConnection]:
        """Yield a new connection, for several transactions."""
        with self.errors():
            connection = await self._engine.connect()
        try:
            yield connection
        finally:
            with suppress(*self._caught):  # the connection ends with the process
                await connection.close()

    async def connect_autocommit(self) -> AsyncConnection:
        """Return a new connection in autocommit mode; the caller closes the connection."""
        return await self._engine.connect(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run the ``with`` block in a write transaction, which an error in it rolls back."""
        with self.errors():
            try:
                await self.begin_write(connection)
                yield
                await self.insert_staged(connection)
                await connection.commit()
            except BaseException:
                with suppress(*self._caught):  # the first error is raised
                    await connection.rollback()
                raise

    async def insert_staged(  # noqa: B027 - most databases stage none
        self, connection: AsyncConnection
    ) -> None:
        """Insert the large rows that ``insert`` kept for the end of the transaction."""

    @asynccontextmanager
    async def read_transaction(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run a ``with`` block that only reads in a transaction without a consistent snapshot."""
        with self.errors():
            await self.begin(connection)
            yield
            await connection.rollback()

    async def check_structure(  # noqa: B027 - only SQLite can
        self, warnings: list[str]
    ) -> None:
        """Compare the indexes of the database with its tables.

        A text is added to ``warnings`` if the database cannot.

        Raises:
            DamagedFile: a row is missing from an index, or the file is damaged.
        """

    async def prepare_erasing(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Have the database overwrite data that the connection deletes, if the engine can."""

    async def finish_erasing(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Remove deleted data from the database's logs, if no other program uses the logs."""

    async def clear_free_space(  # noqa: B027 - SQLite alone can
        self, warnings: list[str]
    ) -> None:
        """Remove what rows held earlier from the file; add a text to ``warnings`` if that fails."""

    @asynccontextmanager
    async def erasing(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run the ``with`` block in a write transaction; the database overwrites deleted data."""
        await self.prepare_erasing(connection)
        async with self.transaction(connection):
            yield
        await self.finish_erasing(connection)

    def read_pages(
        self, where: Selection, read: Callable[[Selection], AsyncGenerator[Page]]
    ) -> AsyncGenerator[Page]:
        """Yield the pages of the memories that ``where`` selects, which ``read`` reads.

        If reading takes long, SQLite copies the file, and ``read`` reads the rest from the copy.
        """
        return read(where)

    # Statements

    def compile(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Return a statement with the driver's placeholders, and the values in their order.

        ``sql`` has named parameters such as ``:session``.
        """
        return self._engine.compile(sql, self.syntax.bound(sql, values))

    async def change_each(
        self, connection: AsyncConnection, sql: str, values: Sequence[Mapping[str, Any]]
    ) -> int:
        """Run a statement that changes or inserts rows once for each set of named parameters.

        The parameter ``json``, for which ``Syntax.json_place`` stands, is a JSON text in UTF-8.
        Returns the number of changed rows.
        """
        stored = [
            {**one, "json": self.syntax.stored_json(one["json"])} if "json" in one else one
            for one in values
        ]
        if len(stored) == 1:
            return await self.change(connection, sql, stored[0])
        statement, names = self._engine.compile_names(sql)
        bound = [tuple(one[name] for name in names) for one in stored]
        return await self.change_many(connection, statement, bound)

    async def change(self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]) -> int:
        """Run a statement that updates or deletes rows; return the number of changed rows."""
        statement, bound = self.compile(sql, values)
        return (await connection.exec_driver_sql(statement, tuple(bound))).rowcount

    async def change_many(
        self, connection: AsyncConnection, sql: str, rows: list[tuple[Any, ...]]
    ) -> int:
        """Run a statement that updates or deletes rows once for each tuple of parameters.

        ``sql`` has the driver's placeholders.  Returns the number of changed rows.
        """
        return (await connection.exec_driver_sql(sql, rows)).rowcount

    async def execute(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Run a statement that may wait for row locks of other transactions; return its rows.

        No other result may be open on the connection.
        """
        return await self.fetch_all(connection, sql, values)

    async def fetch_all(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Run a query and return all of its rows."""
        async with aclosing(self.rows(connection, sql, values)) as partitions:
            return [row async for rows in partitions for row in rows]

    async def fetch_window(
        self,
        connection: AsyncConnection,
        select: Callable[[bool], str],
        source: str,
        values: Mapping[str, Any],
        start: int,
        count: int,
        total: int | None = None,
    ) -> tuple[Sequence[Any], int, bool]:
        """Return rows of a memory for ``Store.window``, the place of the first, and if none follow.

        ``source`` is the SQL from FROM on that selects all rows of the memory.  ``select`` returns
        the query for ``:count`` of these rows after ``:skipped``, from the end if called with True.
        ``total`` is the number of all rows of the memory, None if it is not known.
        """

        async def rows(count: int, skipped: int, *, backward: bool = False) -> Sequence[Any]:
            sql = select(backward)
            bounds = {"count": count, "skipped": skipped}
            return await self.fetch_all(connection, sql, {**values, **bounds})

        # Counting takes longer than reading up to most places.
        if total is None and start >= 0 and (found := await rows(count + 1, start)):
            return found[:count], start, len(found) <= count
        if total is None:
            [[total]] = await self.fetch_all(connection, f"SELECT COUNT(*) {source}", values)
        places = span(total, start, count)
        found = []
        if places and places.start < total - places.stop:
            found = await rows(len(places), places.start)
        elif places:
            found = (await rows(len(places), total - places.stop, backward=True))[::-1]
        return found, places.start, places.stop == total


def make_database(location: Location, label: str) -> Database:
    """Return the database at a location, not yet connected.

    ``label`` names the database in messages.
    """
    engine = location.kind.partition("-")[0]
    module = import_module(f"memctl.engines.sql.{engine}")
    database: type[Database] = getattr(module, f"{engine.capitalize()}Database")
    return database(location, label)


async def retry_while_locked(attempt: Callable[[], Awaitable[T]]) -> T:
    """Call ``attempt`` until it succeeds, with pauses, while other transactions lock its rows.

    Raises:
        Contended: the rows were still locked at the last attempt, after about 50 seconds.
    """
    for pause in PAUSES:
        try:
            return await attempt()
        except Contended:
            await asyncio.sleep(pause)
    return await attempt()


async def prefetch(
    fetch: Callable[[], Coroutine[Any, Any, Sequence[Any]]], calls: int = 1
) -> AsyncGenerator[Sequence[Any]]:
    """Call ``fetch`` repeatedly and yield its lists of rows, until a list is empty.

    The next ``calls`` calls start before the consumer asks for their rows.  Closing the stream
    cancels them.
    """
    coming = deque(asyncio.create_task(fetch()) for _ in range(calls))
    try:
        while rows := await coming[0]:
            coming.popleft()
            coming.append(asyncio.create_task(fetch()))
            # Send the statement now, not when the consumer asks for the next rows.
            await asyncio.sleep(0)
            yield rows
            del rows
    finally:
        for call in coming:
            call.cancel()
        await asyncio.wait(coming)
        for call in coming:
            if not call.cancelled():
                call.exception()  # retrieves the exception, so that asyncio does not log it


def time_limit(name: str, value: str | None) -> int | None:
    """Return the time limit for connecting, in seconds; None for no limit.

    ``value`` is that of libpq's ``connect_timeout``, None if it is not given; 0 and negative
    numbers set no limit.  ``name`` is the name of the option or variable with the value.

    Raises:
        UsageError: the value is not a whole number.
    """
    if value is None:
        return CONNECT_TIMEOUT
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        raise UsageError(
            f"{name}={visible(value)} is not a whole number of seconds",
            f"write {name}=10; 0 waits without a limit",
        )
    seconds = int(value)
    return seconds if seconds > 0 else None


def damage(reason: str) -> Failure:
    """Return the failure to report for a damaged memory."""
    return Failure("damaged", reason)


def decoded(value: Any) -> str:
    """Return a column's value as text; bytes that are not UTF-8 become lone surrogates."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def shown_name(value: Any) -> str:
    """Return a name from the database for display; bytes that are not UTF-8 are escaped.

    A column of names in SQLite may also hold numbers and bytes.
    """
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def is_text(name: str) -> bool:
    """Return whether a name read from the database is valid UTF-8, without lone surrogates."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class name if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
