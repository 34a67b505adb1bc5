"""The database of a SQL store: connections, transactions, errors and statements.

Each engine (``sqlite``, ``postgresql``, ``mysql``) has a ``Database`` for its driver and a
``Syntax`` for its SQL.  Neither knows a layout.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from memctl.concurrency import cut_short
from memctl.engines.sql.schema import other_columns
from memctl.engines.sql.side_effects import ALLOW, SIDE_EFFECTS, Trigger, references
from memctl.engines.sql.syntax import Condition, Syntax
from memctl.errors import BadData, Failure, Lost, MemctlError, UsageError
from memctl.location import Location, visible
from memctl.model import Page
from memctl.selection import Selection
from memctl.store import OpenMode

if TYPE_CHECKING:
    from memctl.engines.sql.lock import ConnectionLock

T = TypeVar("T")

CREATE_ATTEMPTS = 5
CREATE_PAUSE = 0.2
"""The seconds before another attempt, if two runs create tables at the same time."""

NAMED_TABLES = 10
"""The maximum number of tables of other programs to name in an error."""

GRANT = "grant the login SELECT to read the tables, and INSERT, UPDATE, DELETE to change them"
FETCH_ROWS = 256
"""The rows to fetch from a driver at once; their messages have at most 16 MiB together."""
PAUSES = (0.01, 0.03, 0.1, *[0.5] * 100)
"""The seconds between attempts to change rows locked by others: about 50 in total, as in InnoDB."""


class RejectedValue(BadData):
    """The database refused a value of a valid statement."""

    def __init__(self, message: str, failure_code: str) -> None:
        super().__init__(message)
        self.failure = Failure(failure_code, message)


class Contended(Lost):
    """Other transactions hold the rows, or the database rolled this transaction back for them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "other writers changed the same rows")
        self.failure = Failure("held", message)


class Database(ABC):
    """A database, independent of its tables."""

    syntax_class: ClassVar[type[Syntax]]
    sees_part: bool = False
    """True if row-level security may hide rows, and the URL accepts that."""
    parallel: ClassVar[bool] = True
    """True if several connections can write at once."""
    driver_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of the driver that SQLAlchemy does not wrap."""
    lock_class: ClassVar[type[ConnectionLock]]
    """The class of the server's lock for a run."""
    batch_changes: ClassVar[int] = 10_000
    """The maximum number of changes of small memories in one transaction."""

    identity_sql: ClassVar[str]
    """A statement that returns the kind with a colon, and values to identify the database."""
    references_sql: ClassVar[str] = ""
    """A statement that lists the foreign keys of ``side_effects``, a row as ``ReferringColumn``."""
    triggers_sql: ClassVar[str]
    """A statement that lists triggers and rules, a row as ``Trigger``."""

    _engine: AsyncEngine

    def __init__(self, location: Location, label: str) -> None:
        """Keep the location, and the label for messages; connect to nothing yet."""
        self.location = location
        self.label = label
        self.mode = OpenMode.READ
        self.details: list[str] = []
        """See ``Store.details``."""
        self.syntax = self.syntax_class()
        self._lock: ConnectionLock | None = None

    @property
    def _caught(self) -> tuple[type[Exception], ...]:
        return (SQLAlchemyError, OSError, *self.driver_errors)

    # Specific to a database

    @abstractmethod
    def make_engine(self) -> AsyncEngine:
        """Return an engine for the location, not yet connected.

        Raises:
            NotFound, UsageError: as ``Store.__aenter__``.
        """

    async def identity(self) -> str:
        """Return a text that identifies the database; see ``Store.identity``."""
        with self.errors():
            async with self._engine.connect() as connection:
                kind, *parts = map(str, (await connection.exec_driver_sql(self.identity_sql)).one())
                return kind + "/".join(parts)

    @abstractmethod
    def translate(self, error: BaseException) -> MemctlError | None:
        """Return an error of the driver as an error of memctl; None if a value was refused."""

    @abstractmethod
    def is_duplicate_key(self, error: BaseException) -> bool:
        """Return whether a row was refused because its key exists."""

    async def begin(self, connection: AsyncConnection) -> None:
        """Begin a transaction that needs no consistent snapshot."""
        await connection.exec_driver_sql("SELECT 1")

    @abstractmethod
    async def begin_read(self, connection: AsyncConnection) -> None:
        """Begin a read-only transaction with a consistent snapshot."""

    @abstractmethod
    async def begin_write(self, connection: AsyncConnection) -> None:
        """Begin a transaction."""

    @abstractmethod
    def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield the rows of a statement in lists of ``size``, directly from the driver."""

    @abstractmethod
    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Insert rows in bulk, with the message as UTF-8 bytes."""

    async def insert_rows(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Insert rows into any table, in order."""
        syntax = self.syntax
        names = ", ".join(map(syntax.identifier, columns))
        places = ", ".join(map(syntax.place, range(1, len(columns) + 1)))
        sql = f"INSERT INTO {syntax.identifier(table)} ({names}) VALUES ({places})"
        await connection.exec_driver_sql(sql, rows)

    async def execute_alone(self, connection: AsyncConnection, sql: str) -> None:
        """Run a statement outside of transactions, on a connection of ``connect_autocommit``."""
        await connection.execute(text(sql))

    async def take_turn(  # noqa: B027 - SQLite has one writer at a time
        self, connection: AsyncConnection, table: str
    ) -> None:
        """Wait until no other memctl run writes to a table, and keep the turn until ``close``."""

    async def advance_serial(  # noqa: B027 - most databases do this themselves
        self, connection: AsyncConnection, table: str, column: str
    ) -> None:
        """Advance the sequence of a column beyond the inserted keys."""

    # Opening and closing

    async def start(self, mode: OpenMode, prepare: Callable[[], Awaitable[None]]) -> None:
        """Connect, and prepare the tables; close everything if that fails.

        Raises:
            MemctlError: as ``Store.open``.
        """
        self.mode = mode
        self.check_option(SIDE_EFFECTS, ALLOW)
        self._engine = self.make_engine()
        with self.errors():
            try:
                await prepare()
            except BaseException:
                await self.close()
                raise

    def check_option(self, name: str, value: str) -> bool:
        """Return whether the URL has an option, whose only value is ``value``.

        Raises:
            UsageError: the option has another value.
        """
        found = self.location.options.get(name)
        if found not in (None, value):
            raise UsageError(
                f"{self.label}: {name}={visible(found)} is unknown",
                f"write {name}={value}, or leave it out",
            )
        return found is not None

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on a connection and return its result."""
        with self.errors():
            async with self._engine.connect() as connection:
                await self.prepare_inspection(connection)
                return await connection.run_sync(work)

    async def prepare_inspection(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Prepare a connection for SQLAlchemy's inspection of tables."""

    async def create(self, work: Callable[[Connection], None]) -> None:
        """Create missing tables, although another run may create the same tables.

        The creation is atomic, except in MySQL, which commits after each table.
        """
        for left in reversed(range(CREATE_ATTEMPTS)):
            try:
                async with self._engine.connect() as connection:
                    await self.prepare_inspection(connection)
                    await self.begin_write(connection)
                    await connection.run_sync(work)
                    await connection.commit()
                return
            except self._caught:
                if not left or cut_short():
                    raise
            await asyncio.sleep(CREATE_PAUSE)

    async def close(self) -> None:
        """Release the lock and all connections."""
        try:
            if self._lock is not None:
                await self._lock.release()
        finally:
            await self._engine.dispose()

    async def lock(self, owner: str, warnings: list[str]) -> None:
        """Keep other runs from writing until ``close``; see ``Store.lock``.

        The lock adds its warnings to ``warnings``, the list of the store.
        """
        self._lock = self.lock_class(self, warnings)
        await self._lock.take(owner)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn exceptions of the driver into errors of memctl.

        Raises:
            RejectedValue: the database refused a value; other statements can go on.
            Contended: other transactions hold the rows.
            MemctlError: the store failed.
            CancelledError: the task is being cancelled, and the driver raised an error instead.
        """
        try:
            yield
        except self._caught as error:
            if cut_short():
                raise asyncio.CancelledError from error
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            found = self.translate(cause)
            if found is None:
                code = "repeated-id" if self.is_duplicate_key(cause) else "refused"
                raise RejectedValue(f"{self.label}: {first_line(cause)}", code) from error
            raise found from error

    # Connections and transactions

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[AsyncConnection]:
        """Open a connection in a read-only transaction with a consistent snapshot."""
        with self.errors():
            async with self._engine.connect() as connection:
                await self.begin_read(connection)
                try:
                    yield connection
                finally:
                    await connection.rollback()

    async def find_other_values(self, table: str, known: Collection[str], where: Condition) -> str:
        """Return an unknown column of a table that has a value, as text; empty if none has.

        ``where`` is a condition on the rows of the table, as ``m``.
        """
        columns = await self.run(partial(other_columns, table, known))
        if not columns:
            return ""
        async with self.snapshot() as connection:
            for name in columns:
                column = f"m.{self.syntax.quoted(name)}"
                sql = f"SELECT 1 FROM {table} m WHERE {where.sql} AND {column} IS NOT NULL LIMIT 1"
                if await self.fetch_all(connection, sql, where.values):
                    return f"the column {visible(name)!r} of the table {table!r}"
        return ""

    async def side_effects(
        self, tables: Mapping[str, Condition], own: Collection[str] = ()
    ) -> list[str]:
        """Return what else the database changes when rows are deleted; empty if nothing.

        ``tables`` has the tables with a condition on the rows ``m`` to delete.  ``own`` are the
        other tables of the layout.
        """
        if self.check_option(SIDE_EFFECTS, ALLOW):
            return []
        async with self.snapshot() as connection:
            triggers = await self.delete_triggers(connection)
            found = [one.text for one in triggers if one.table in tables]
            rows: Sequence[Any] = []
            if self.references_sql:
                rows = await self.fetch_all(connection, self.references_sql, {})
            names = (map(shown_name, row) for row in rows)
            for one in references(names, tables, {*tables, *own}):
                where = tables[one.referred]
                sql = one.query(where, self.syntax)
                if await self.fetch_all(connection, sql, where.values):
                    found.append(one.text)
        return found

    async def delete_triggers(self, connection: AsyncConnection) -> list[Trigger]:
        """Return the triggers and rules that run when rows of any table are deleted."""
        rows = await self.fetch_all(connection, self.triggers_sql, {})
        return [Trigger(*map(shown_name, row)) for row in rows]

    @asynccontextmanager
    async def second_connection(
        self, connection: AsyncConnection
    ) -> AsyncGenerator[AsyncConnection]:
        """Yield a connection for statements while a result of ``connection`` is being read."""
        yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[AsyncConnection]:
        """Open a connection for several transactions, because connecting takes time."""
        with self.errors():
            connection = await self._engine.connect()
        try:
            yield connection
        finally:
            with suppress(*self._caught):  # the connection ends with the process
                await connection.close()

    async def connect_autocommit(self) -> AsyncConnection:
        """Return a connection outside of transactions, to be closed by the caller."""
        return await self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()

    @asynccontextmanager
    async def transaction(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run a write transaction: committed at the end of the body, rolled back after an error."""
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
        """Insert the large rows staged by ``insert``, at the end of a transaction."""

    @asynccontextmanager
    async def read_transaction(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run statements in a transaction that needs no consistent snapshot."""
        with self.errors():
            await self.begin(connection)
            yield
            await connection.rollback()

    async def prepare_erasing(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Have the database overwrite data deleted on the connection, if it can."""

    async def finish_erasing(  # noqa: B027 - most databases need nothing
        self, connection: AsyncConnection
    ) -> None:
        """Remove deleted data from the logs of the database, if that needs no wait."""

    @asynccontextmanager
    async def erasing(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """Run a write transaction whose deleted data is to be overwritten."""
        await self.prepare_erasing(connection)
        async with self.transaction(connection):
            yield
        await self.finish_erasing(connection)

    def read_pages(
        self,
        where: Selection,
        read: Callable[[Selection], AsyncGenerator[Page]],
        read_copy: Callable[[Path, Selection], AsyncGenerator[Page]],  # noqa: ARG002 - for SQLite
    ) -> AsyncGenerator[Page]:
        """Yield the pages of ``read``, or of ``read_copy`` if reading would block writers."""
        return read(where)

    # Statements

    def compile(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Return a statement and its values for the driver."""
        statement, bound = self.syntax.bind(sql, values)
        compiled = statement.compile(dialect=self._engine.dialect)
        state = compiled.construct_expanded_state(bound)
        return state.statement, state.positional_parameters

    async def execute_json(
        self, connection: AsyncConnection, sql: str, value: bytes, values: Mapping[str, Any]
    ) -> None:
        """Run a statement with ``value`` at ``Syntax.json_place``."""
        stored = {**values, "json": self.syntax.stored_json(value)}
        await self.execute(connection, sql, stored)

    async def execute_json_many(
        self,
        connection: AsyncConnection,
        sql: str,
        texts: Sequence[bytes],
        values: Sequence[Mapping[str, Any]],
    ) -> None:
        """Run a statement with each of these values, and with each text as ``execute_json``."""
        compiled = text(sql).compile(dialect=self._engine.dialect)
        names = compiled.positiontup or []
        stored = [
            {**one, "json": self.syntax.stored_json(json)}
            for json, one in zip(texts, values, strict=True)
        ]
        bound = [[one[name] for name in names] for one in stored]
        await (await driver_of(connection)).executemany(str(compiled), bound)

    async def execute(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Run a statement that may wait for other transactions; return its rows.

        No result may be open on the connection.
        """
        return await self.fetch_all(connection, sql, values)

    async def fetch_all(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Return all rows of a statement, and close its result."""
        async with aclosing(self.rows(connection, sql, values)) as partitions:
            return [row async for rows in partitions for row in rows]


def make_database(location: Location, label: str) -> Database:
    """Return the database at a location, not yet connected; the kind begins with the engine."""
    engine = location.kind.partition("-")[0]
    module = import_module(f"memctl.engines.sql.{engine}")
    database: type[Database] = getattr(module, f"{engine.capitalize()}Database")
    return database(location, label)


async def driver_of(connection: AsyncConnection) -> Any:
    """Return the connection of the driver, within the transaction of SQLAlchemy."""
    return (await connection.get_raw_connection()).driver_connection


async def retry_while_locked(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat an attempt while other transactions hold the rows, with pauses in between.

    Raises:
        Contended: the rows stay locked.
    """
    for pause in PAUSES:
        try:
            return await attempt()
        except Contended:
            await asyncio.sleep(pause)
    return await attempt()


async def prefetch(
    fetch: Callable[[], Coroutine[Any, Any, Sequence[Any]]],
) -> AsyncGenerator[Sequence[Any]]:
    """Yield the results of ``fetch`` until one is empty, one call ahead of the consumer.

    Closing the stream early cancels ``fetch``.
    """
    coming = asyncio.create_task(fetch())
    try:
        while rows := await coming:
            coming = asyncio.create_task(fetch())
            # Send the statement now, not when the consumer asks for the next rows.
            await asyncio.sleep(0)
            yield rows
            del rows
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()  # retrieves the exception, so that asyncio does not log it


def damage(reason: str) -> Failure:
    """Return the failure of a damaged memory."""
    return Failure("damaged", reason)


def decoded(value: Any) -> str:
    """Return the value of a column as a text, with lone surrogates for bytes that are not UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def shown_name(value: Any) -> str:
    """Return a value of a column of names as text, for display; SQLite columns hold any value."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def is_text(name: str) -> bool:
    """Return whether a name is valid UTF-8 in the database."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for messages of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
