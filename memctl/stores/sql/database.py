"""AgentScope's SQL memory (AsyncSQLAlchemyMemory), whatever the database.

The databases (``sqlite``, ``postgresql``, ``mysql``) say how to connect and to fetch, and which
errors mean what; transactions and the questions that are asked of all are here.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from memctl.errors import BadData, Failure, Lost, MemctlError, Uninitialised
from memctl.location import Location
from memctl.model import PAGE_ENTRIES, MemoryKey
from memctl.store import OpenMode
from memctl.stores.sql.dialect import Condition, SqlDialect
from memctl.stores.sql.huge_messages import MOST, HugeMessages, describe
from memctl.stores.sql.schema import create_tables, missing_tables


async def ahead(
    fetch: Callable[[], Coroutine[Any, Any, Sequence[Any]]],
) -> AsyncGenerator[Sequence[Any]]:
    """What ``fetch`` gives, call after call, until it gives nothing; one call is always under way.

    ``fetch`` is cancelled when the stream is closed before its end.
    """
    coming = asyncio.create_task(fetch())
    try:
        while rows := await coming:
            coming = asyncio.create_task(fetch())
            # The database is asked now, not when those who use these rows wait for the next.
            await asyncio.sleep(0)
            yield rows
            del rows
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()  # nobody waits for it any more


CREATE_ATTEMPTS = 5
CREATE_PAUSE = 0.2
"""Tables that two runs create at once exist for the slower one when it looks again, in seconds."""

FETCH_ROWS = 256
"""Rows that a driver is asked for at a time: together at most 16 MiB."""


class Position(NamedTuple):
    """Where a memory ends: how many messages it holds, and its highest index."""

    messages: int
    top: int


class Refused(BadData):
    """The database understood the statement, but does not take one of its values."""

    def __init__(self, message: str, failure_code: str) -> None:
        super().__init__(message)
        self.failure = Failure(failure_code, message)


class Contended(Lost):
    """Others hold rows that are asked for, or the database had this transaction give way."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "others write to the same rows")
        self.failure = Failure("held", message)


class SqlDatabase(SqlDialect):
    """A database with AgentScope's tables: a row a message, in order of ``index`` in a session."""

    driver_errors: tuple[type[Exception], ...] = ()
    """Exceptions of the driver that can pass SQLAlchemy by."""

    _engine: AsyncEngine

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._searched = False

    @property
    def _caught(self) -> tuple[type[Exception], ...]:
        return (SQLAlchemyError, OSError, *self.driver_errors)

    # What a dialect says

    @abstractmethod
    def make_engine(self) -> AsyncEngine:
        """An engine for the location; nothing is connected yet.

        Raises:
            NotFound, UsageError: as ``Store.__aenter__``.
        """

    @abstractmethod
    def translate(self, error: BaseException) -> MemctlError | None:
        """The error of a driver as memctl's; None where the database refused a value."""

    @abstractmethod
    def is_repeat(self, error: BaseException) -> bool:
        """Whether a row was refused because its key is there already."""

    @abstractmethod
    async def begin_read(self, connection: AsyncConnection) -> None:
        """Starts a read-only transaction that sees one moment."""

    @abstractmethod
    async def begin_write(self, connection: AsyncConnection) -> None:
        """Starts a transaction."""

    @abstractmethod
    async def insert(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> None:
        """Inserts rows in bulk, the message as UTF-8 bytes."""

    @abstractmethod
    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        """Inserts the rows whose primary key is not there yet, and counts them."""

    @abstractmethod
    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: list[str]
    ) -> Sequence[Any]:
        """Runs a statement for the rows with these ids; what it gives, if anything.

        The statement is made with ``keyed`` or ``delete``, or says ``IN :rows``.
        """

    # Opening and closing

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        self._engine = self.make_engine()
        with self.errors():
            try:
                async with self._engine.connect() as connection:
                    missing = await connection.run_sync(missing_tables)
                if missing and not self.mode.creates:
                    raise Uninitialised(
                        f"{self.label} holds no AgentScope memory: it has no table {missing[0]!r}",
                        "is it the right database? AgentScope's tables are users, session, "
                        "message, message_mark",
                    )
                if missing:
                    await self._create_tables()
            except BaseException:
                await self.close()
                raise

    async def _create_tables(self) -> None:
        """Creates what is missing, beside another run that may be doing the same."""
        for left in reversed(range(CREATE_ATTEMPTS)):
            try:
                async with self._engine.begin() as connection:
                    await connection.run_sync(create_tables)
                return
            except self._caught:
                if not left:
                    raise
            await asyncio.sleep(CREATE_PAUSE)

    async def close(self) -> None:
        await self._engine.dispose()

    async def connect_alone(self) -> AsyncConnection:
        """A connection outside of transactions, to be closed by who asked for it."""
        return await self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what a driver raises into memctl's errors.

        Raises:
            Refused: a value was not taken; anything else may go on.
            Contended: others were in the way.
            MemctlError: the store failed.
        """
        try:
            yield
        except self._caught as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            found = self.translate(cause)
            if found is None:
                code = "repeated-id" if self.is_repeat(cause) else "refused"
                raise Refused(f"{self.label}: {first_line(cause)}", code) from error
            raise found from error

    # Reading

    @asynccontextmanager
    async def snapshot(self, *, opened: bool = True) -> AsyncGenerator[AsyncConnection]:
        """A connection in a read-only transaction; ``opened`` where messages are looked into."""
        with self.errors():
            async with self._engine.connect() as connection:
                await self.begin_read(connection)
                try:
                    if opened and not self._searched:
                        await self._find_huge(connection)
                    yield connection
                finally:
                    await connection.rollback()

    @asynccontextmanager
    async def reading(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """A transaction on a connection for a question: what it sees need not be one moment."""
        with self.errors():
            await connection.exec_driver_sql("SELECT 1")
            yield
            await connection.rollback()

    async def _find_huge(self, connection: AsyncConnection) -> None:
        result = await connection.execute(
            text(f"SELECT m.id FROM message m WHERE {self.is_huge()}")
        )
        ids = [row[0] for row in result]
        if len(ids) <= MOST:
            found = {row_id: describe(await self.fetch(connection, row_id)) for row_id in ids}
            self.huge = HugeMessages(found)
        self._searched = True

    async def fetch(self, connection: AsyncConnection, row_id: str) -> bytes:
        """The text of one large message, empty where it was deleted meanwhile."""
        sql = text(f"SELECT {self.payload} FROM message m WHERE m.id = :id")
        payload = (await connection.execute(sql, {"id": row_id})).scalar()
        if isinstance(payload, str):
            return payload.encode("utf-8", "surrogatepass")
        return payload or b""

    @asynccontextmanager
    async def aside(self, connection: AsyncConnection) -> AsyncGenerator[AsyncConnection]:
        """A connection for a question while a result of ``connection`` is still being read."""
        yield connection

    def sorted(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """The rows of ``ordered``, in partitions."""
        return self.rows(connection, self.ordered(where.sql), where.values)

    def picked(
        self, connection: AsyncConnection, memories: Condition, messages: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """The rows of ``ordered_among`` for ``messages`` of ``memories``, in partitions."""
        sql = self.ordered_among(memories.sql, messages)
        return self.rows(connection, sql, {**memories.values, **messages.values})

    def unsorted(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """The rows of ``loose``, in partitions, which need not be of one moment."""
        return self.rows(connection, self.loose(where.sql), where.values, PAGE_ENTRIES)

    @abstractmethod
    def rows(
        self,
        connection: AsyncConnection,
        sql: str,
        values: Mapping[str, Any],
        size: int = FETCH_ROWS,
    ) -> AsyncGenerator[Sequence[Any]]:
        """The result in partitions of ``size`` rows, from the driver itself."""

    async def few(
        self, connection: AsyncConnection, sql: str, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """All rows of a statement with a limit of its own, which is over then."""
        async with aclosing(self.rows(connection, sql, values)) as partitions:
            return [row async for rows in partitions for row in rows]

    def plain(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """A statement and its values as the driver takes them."""
        statement, bound = self.bind(sql, values)
        compiled = statement.compile(dialect=self._engine.dialect)
        state = compiled.construct_expanded_state(bound)
        return state.statement, state.positional_parameters

    async def sessions(self, connection: AsyncConnection) -> AsyncGenerator[MemoryKey]:
        """The memories that have a session row, with messages or without."""
        statement = "SELECT user_id, id FROM session"
        async with aclosing(self.rows(connection, statement, {})) as partitions:
            async for rows in partitions:
                for user, session in rows:
                    yield MemoryKey(user, session)

    # Writing

    async def count_positions(
        self, connection: AsyncConnection, values: dict[str, list[str]]
    ) -> dict[MemoryKey, Position]:
        """The positions in all sessions, or in those of the list ``sessions``."""
        condition = "m.session_id IN :sessions" if values else "1 = 1"
        sql = (
            f"SELECT user_id, session_id, COUNT(*), MAX(position) FROM ("
            f"SELECT {self.user} AS user_id, m.session_id AS session_id, {self.index} AS position "
            f"FROM {self.source()} WHERE {condition} {self.apart}) AS found "
            f"GROUP BY {self.exact('user_id')}, {self.exact('session_id')}"
        )
        async with aclosing(self.rows(connection, sql, values)) as partitions:
            return {
                MemoryKey(user, session): Position(count, top)
                async for rows in partitions
                for user, session, count, top in rows
            }

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for transactions that follow one another: to connect takes its time."""
        with self.errors():
            connection = await self._engine.connect()
        try:
            yield connection
        finally:
            with self.errors():
                await connection.close()

    @asynccontextmanager
    async def transaction(self, connection: AsyncConnection) -> AsyncGenerator[None]:
        """A write transaction, rolled back unless it ends well."""
        with self.errors():
            try:
                await self.begin_write(connection)
                yield
                await self.settle(connection)
                await connection.commit()
            except BaseException:
                with suppress(*self._caught):  # it broke before, and that error counts
                    await connection.rollback()
                raise

    async def settle(self, connection: AsyncConnection) -> None:
        """Puts in place what ``insert`` had to put aside, at the end of a transaction."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for messages of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
