"""AgentScope's SQL memory (AsyncSQLAlchemyMemory), whatever the database.

The dialects (``sqlite``, ``postgresql``, ``mysql``) say how to connect, how to look into the JSON
of a message and which errors mean what; the questions that are asked of all are here.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from memctl.errors import BadData, Failure, MemctlError, Uninitialised
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.stores.sql.huge import HUGE_BYTES, MOST, HugeMessages, describe
from memctl.stores.sql.schema import create_tables, missing_tables
from memctl.streams import closing

MAX_PUSHED_VALUES = 1000
"""Longer lists of names are compared here: databases bound the parameters of a statement."""

SMALL_BYTES = 64 * 1024
"""Larger messages are fetched one by one: drivers fetch rows by number, whatever their size."""

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


class SqlDatabase(Store):
    """A database with AgentScope's tables: one row a message, in order of ``index`` in a session.

    The user of a message is what is left of the row id ``{user}-{session}-{message id}`` without
    ``-{session}-{message id}``; where the row id disagrees with the message, the owner of the
    session row.
    """

    capabilities = Capability.EMPTY
    quote: ClassVar[str] = '"'
    mark_list: ClassVar[str]
    """An aggregate that gives the marks of a message as a JSON array."""
    payload: ClassVar[str] = "m.msg"
    """The message as text or bytes."""
    row_columns: ClassVar[str] = "id"
    """What identifies a row of ``message``."""
    row_lock: ClassVar[str] = ""
    """SQL at the end of a SELECT that locks its rows until the transaction ends."""
    apart: ClassVar[str] = ""
    """SQL at the end of an inner SELECT that keeps the database from mixing it with the outer."""
    stub_cast: ClassVar[str] = "{}"
    """SQL that makes a value of the type of ``message.msg`` of a text."""

    driver_errors: tuple[type[Exception], ...] = ()
    """Exceptions of the driver that can pass SQLAlchemy by."""

    _engine: AsyncEngine

    def __init__(self, location: Location, *, create: bool = False) -> None:
        super().__init__(location, create=create)
        self.huge = HugeMessages({})
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
    def field(self, name: str) -> str:
        """SQL that gives a top-level text field of ``m.msg``, NULL where it is missing."""

    @abstractmethod
    def size(self) -> str:
        """SQL that gives the bytes of ``m.msg``."""

    @abstractmethod
    def suffix(self) -> str:
        """SQL that gives the user of a row ``m``, or NULL where the row id does not fit."""

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

    # Opening and closing

    async def open(self) -> None:
        self._engine = self.make_engine()
        with self.errors():
            try:
                async with self._engine.connect() as connection:
                    missing = await connection.run_sync(missing_tables)
                if missing and not self.create:
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

    @property
    def user(self) -> str:
        """SQL that gives the user of the row ``m`` joined with its session ``s``."""
        return f"COALESCE({self.suffix()}, s.user_id, '')"

    @property
    def index(self) -> str:
        """The name of the index column, a reserved word."""
        return f"m.{self.quote}index{self.quote}"

    def exact(self, text: str) -> str:
        """SQL for a text that equals only itself, whatever the collation."""
        return text

    def source(self) -> str:
        """The tables behind every question about messages, stubs in the place of huge ones."""
        message = "message"
        if self.huge:
            index = f"{self.quote}index{self.quote}"
            stubbed = self.huge.stubbed("msg", self.stub_cast)
            columns = f"{self.row_columns}, session_id, {index}, {stubbed} AS msg"
            message = f"(SELECT {columns} FROM message)"
        return f"{message} m LEFT JOIN session s ON s.id = m.session_id"

    def conditions(self, where: Selection) -> tuple[str, dict[str, list[str]]]:
        """A WHERE clause that lets through at least what is selected, and its values."""
        sessions = where.sessions
        if where.keys is not None:
            sessions = sessions or frozenset(key.session for key in where.keys)
        pushed = {
            ("users", f"{self.user} IN :users"): where.users,
            ("sessions", "m.session_id IN :sessions"): sessions,
            ("ids", f"{self.field('id')} IN :ids"): where.ids,
            (
                "marks",
                "EXISTS (SELECT 1 FROM message_mark k WHERE k.msg_id = m.id AND k.mark IN :marks)",
            ): where.marks,
        }
        used = {
            key: values for key, values in pushed.items() if 0 < len(values) <= MAX_PUSHED_VALUES
        }
        clause = " AND ".join(condition for _, condition in used) or "1 = 1"
        return clause, {name: sorted(values) for (name, _), values in used.items()}

    def ordered(self, condition: str) -> str:
        """The statement that reads messages, memory after memory, in order."""
        return (
            f"SELECT {self.user} AS owner, m.session_id, m.id, {self.index}, "
            f"{self.small_payload()} AS payload, {self.marks()} AS marks "
            f"FROM {self.source()} WHERE {condition} "
            f"ORDER BY {self.exact('m.session_id')}, {self.exact('owner')}, {self.index}, m.id"
        )

    def small_payload(self) -> str:
        """The message, or NULL for a large one, which is fetched by itself."""
        small = f"CASE WHEN {self.size()} <= {SMALL_BYTES} THEN {self.payload} END"
        return self.huge.hidden(small)

    def marks(self) -> str:
        """The marks of a message as a JSON array."""
        return f"(SELECT {self.mark_list} FROM message_mark k WHERE k.msg_id = m.id)"

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a read-only transaction."""
        with self.errors():
            async with self._engine.connect() as connection:
                await self.begin_read(connection)
                try:
                    if not self._searched:
                        await self._find_huge(connection)
                    yield connection
                finally:
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

    def is_huge(self) -> str:
        """SQL that tells whether ``m.msg`` is a huge message."""
        return f"{self.size()} > {HUGE_BYTES}"

    async def fetch(self, connection: AsyncConnection, row_id: str) -> bytes:
        """The text of one large message, empty where it was deleted meanwhile."""
        sql = text(f"SELECT {self.payload} FROM message m WHERE m.id = :id")
        payload = (await connection.execute(sql, {"id": row_id})).scalar()
        if isinstance(payload, str):
            return payload.encode("utf-8", "surrogatepass")
        return payload or b""

    def bind(self, sql: str, values: Mapping[str, Any]) -> tuple[TextClause, dict[str, Any]]:
        """A statement and all its values; lists become the values of an IN."""
        known = self.huge.values() if ":huge_" in sql else {}
        used = {name: value for name, value in known.items() if f":{name}" in sql}
        lists = (name for name, value in values.items() if isinstance(value, list))
        statement = text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))
        return statement, {**values, **used}

    @asynccontextmanager
    async def aside(self, connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        """A connection for a question while a result of ``connection`` is still being read."""
        yield connection

    async def rows(
        self, connection: AsyncConnection, sql: str, values: dict[str, list[str]]
    ) -> AsyncIterator[Sequence[Any]]:
        """The result in partitions of FETCH_ROWS."""
        statement, bound = self.bind(sql, values)
        async with connection.stream(statement, bound) as result:
            while rows := await result.fetchmany(FETCH_ROWS):
                yield rows

    async def sessions(self, connection: AsyncConnection) -> AsyncIterator[MemoryKey]:
        """The memories that have a session row, with messages or without."""
        statement = "SELECT user_id, id FROM session"
        async with closing(self.rows(connection, statement, {})) as partitions:
            async for rows in partitions:
                for user, session in rows:
                    yield MemoryKey(user, session)

    # Writing

    async def positions(self) -> dict[MemoryKey, Position]:
        """How many messages each memory holds, and its highest index."""
        async with self.snapshot() as connection:
            return await self.count_positions(connection, {})

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
        async with closing(self.rows(connection, sql, values)) as partitions:
            return {
                MemoryKey(user, session): Position(count, top)
                async for rows in partitions
                for user, session, count, top in rows
            }

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a write transaction, rolled back unless it ends well."""
        async with self._engine.connect() as connection:
            await self.begin_write(connection)
            yield connection
            await self.settle(connection)
            await connection.commit()

    async def settle(self, connection: AsyncConnection) -> None:
        """Puts in place what ``insert`` had to put aside, at the end of a transaction."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for messages of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
