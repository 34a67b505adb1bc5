"""AgentScope's tables in a database.  Each message is a row, ordered by ``index``.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import NAMED_TABLES, Database, damage, decoded, is_text, shown_name
from memctl.engines.sql.syntax import Condition
from memctl.errors import BadData, Failure, Uninitialised
from memctl.location import Location, visible
from memctl.model import PAGE_ENTRIES, MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import OpenMode
from memctl.stores.agentscope1.sql.huge_messages import MAX_HUGE, HugeMessages, describe
from memctl.stores.agentscope1.sql.schema import PRIMARY_KEYS, examine_schema
from memctl.stores.agentscope1.sql.statements import Statements


def name_of(value: bytes | None) -> str:
    """Decode a name; return an empty text for NULL."""
    return "" if value is None else decoded(value)


class Extent(NamedTuple):
    """The number of messages and the highest index of a memory."""

    messages: int
    last_index: int


class MemoryTables(Database):
    """A database with AgentScope's tables, and the state of a run on it."""

    syntax_class: ClassVar[type[Statements]]
    syntax: Statements

    def __init__(self, location: Location, label: str) -> None:
        super().__init__(location, label)
        self.damaged: dict[MemoryKey, Failure] = {}
        """The damaged memories found so far, with the reasons."""
        self.doubts = 0
        """The number of possibly damaged rows read while damage is skipped."""
        self.proved: Selection | None = None
        """The last selection whose read met no row that may be damaged."""
        self._searched = self._examined = True
        """True if memctl has searched for huge messages; true if it has looked for unsound rows."""
        self._keyless: list[str] = []
        """The tables without a primary key."""
        self.added_columns: dict[str, list[str]] = {}
        """The columns without a default that an application added to each table."""
        self.new_users: set[str] = set()
        self.new_sessions: set[str] = set()
        """The sessions with rows created by this run; ``new_users`` are such users."""

    @property
    def statements(self) -> Statements:
        """The statements for AgentScope's tables."""
        return self.syntax

    # Opening

    async def open(self, mode: OpenMode) -> None:
        """Connect; create missing tables if the mode creates.  Raises errors as ``Store.open``."""
        await self.start(mode, self.prepare)

    async def prepare(self) -> None:
        """Check AgentScope 1.x's tables; create missing tables if the mode creates.

        Raises:
            MemctlError: the tables are missing or not usable, as in ``Store.open``.
        """
        typed, keys = self.syntax.typed, self.mode.writes
        schema = await self.look(partial(examine_schema, typed=typed, keys=keys))
        missing = schema.missing
        if missing and not self.mode.creates:
            others = ", ".join(visible(shown_name(name)) for name in schema.others[:NAMED_TABLES])
            raise Uninitialised(
                f"{self.label} holds no AgentScope memory: it has no table {missing[0]!r}",
                "check the database: AgentScope's tables are users, session, "
                f"message, message_mark{f'; it has {others}' if others else ''}",
            )
        self._keyless = schema.keyless
        self.added_columns = schema.added
        if missing:
            self.require_keys()  # before memctl creates a table
            from memctl.stores.agentscope1.sql.declared import create_tables  # by SQLAlchemy

            await self.create(create_tables)
        self._searched = self._examined = False
        if self.syntax.typed:
            self.statements.expect_nulls(schema.nullable)

    async def find_unsound(self, connection: AsyncConnection) -> None:
        """Note memories with NULL or a wrong type in a column as damaged, once in a run."""
        if not self._examined and self.statements.may_be_unsound:
            self.damaged |= await self.describe_unsound(connection)
        self._examined = True

    async def describe_unsound(self, connection: AsyncConnection) -> dict[MemoryKey, Failure]:
        """Return a failure for each memory with NULL or a wrong type in a column of a row."""
        damaged: dict[MemoryKey, Failure] = {}
        for sql in self.statements.unsound_rows():
            for user, session, fault in await self.fetch_all(connection, sql, {}):
                damaged[MemoryKey(user, session)] = damage(fault)
            self.statements.has_unsound = bool(damaged)  # for the next statement
        return damaged

    def require_keys(self) -> None:
        """Check before a change that all tables have primary keys.

        Raises:
            BadData: a table has no primary key, so deleted rows could not be restored.
        """
        if self._keyless:
            name = self._keyless[0]
            key = ", ".join(PRIMARY_KEYS[name])
            raise BadData(
                f"the table {name!r} of {self.label} has no primary key, so changes could not be "
                "undone",
                f"delete rows without a key or with a duplicate one, then add it: {name} ({key})",
            )

    def is_damaged(self, key: MemoryKey) -> bool:
        """Return whether a memory is known to be damaged or has an invalid name."""
        if key not in self.damaged and not (is_text(key.user) and is_text(key.session)):
            self.damaged[key] = damage("its name is not valid UTF-8")
        return key in self.damaged

    # Connections

    @asynccontextmanager
    async def snapshot(
        self, shard: Shard | None = None, *, long: bool = True, find_huge: bool = False
    ) -> AsyncGenerator[AsyncConnection]:
        """Open a connection in a read-only transaction; ``shard`` is as in ``Database``.

        Most statements are ``long``, as the tables have no index by session; before these, look for
        unsound rows, once in a run.  With ``find_huge``, first search for huge messages, as
        statements that parse messages need.
        """
        async with super().snapshot(shard, long=long) as connection:
            if long:
                await self.find_unsound(connection)
            if find_huge and not self._searched:
                await self._find_huge(connection)
            yield connection

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[AsyncConnection]:
        """Open a connection for several transactions.

        Raises:
            BadData: a table has no primary key.
        """
        self.require_keys()
        async with super().connect() as connection:
            if not self._examined:
                async with self.read_transaction(connection):
                    await self.find_unsound(connection)
            yield connection

    # Statements

    async def _find_huge(self, connection: AsyncConnection) -> None:
        result = await connection.execute(
            f"SELECT m.id FROM message m WHERE {self.statements.is_huge()}"
        )
        ids = [row[0] for row in result]
        if len(ids) <= MAX_HUGE:
            found = {
                row_id: describe(await self.fetch_message(connection, row_id)) for row_id in ids
            }
            self.statements.huge = HugeMessages(found)
        self._searched = True

    @abstractmethod
    async def insert_missing(
        self, connection: AsyncConnection, table: str, columns: Sequence[str], rows: list[Any]
    ) -> int:
        """Insert the rows whose primary keys do not exist; return the number of inserted rows."""

    @abstractmethod
    async def for_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        """Run a statement for the rows with the ids ``row_ids``; return the rows of the result.

        ``sql`` contains ``Statements.keyed_rows`` or ``Statements.delete_keyed``.  A transaction
        stages the ids once for several statements.
        """

    async def delete_rows(
        self, connection: AsyncConnection, table: str, column: str, row_ids: Sequence[str]
    ) -> None:
        """Delete the rows of a table that have one of ``row_ids`` in ``column``.

        ``column`` is the first column of the primary key.

        Raises:
            RejectedValue: a trigger, a rule or a policy of the database kept rows.
        """
        await self.for_rows(connection, self.statements.delete_keyed(table, column), row_ids)
        sql = f"SELECT COUNT(*) FROM {self.statements.keyed_rows(table, column)}"
        [[kept]] = await self.for_rows(connection, sql, row_ids)
        self.check_deleted(table, kept, 0)

    async def select_rows(
        self, connection: AsyncConnection, sql: str, row_ids: Sequence[str]
    ) -> Sequence[Any]:
        """Run a SELECT for the rows with the ids ``row_ids``; return the rows of the result.

        ``sql`` ends with ``Statements.in_row_ids``.  Unlike ``for_rows``, this works in a read-only
        transaction.
        """
        return await self.for_rows(connection, sql, row_ids)

    async def fetch_message(self, connection: AsyncConnection, row_id: str) -> bytes:
        """Return the text of a large message; empty if the message was deleted meanwhile."""
        sql = f"SELECT {self.statements.payload} FROM message m WHERE m.id = :id"
        payload = (await connection.execute(sql, {"id": row_id})).scalar()
        if isinstance(payload, str):
            return payload.encode("utf-8", "surrogatepass")
        return payload or b""

    def read_ordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield the rows of ``Statements.select_ordered`` for a condition, in partitions."""
        return self.rows(connection, self.statements.select_ordered(where.sql), where.values)

    def read_matching(
        self, connection: AsyncConnection, memories: Condition, messages: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield the rows of ``Statements.select_matching``, in partitions.

        A message must meet two conditions: ``memories`` selects whole memories, ``messages``
        single messages.
        """
        sql = self.statements.select_matching(memories.sql, messages)
        return self.rows(connection, sql, {**memories.values, **messages.values})

    async def places(
        self, connection: AsyncConnection, key: MemoryKey, start: int, count: int
    ) -> tuple[Sequence[Any], int, bool]:
        """Find the messages of a window; see ``Store.window`` for ``start`` and ``count``.

        Returns the row ids and indexes of the messages, the place of the first message, and
        whether no message follows.
        """
        condition, values = self.statements.memory(key)
        select = partial(self.statements.select_window, condition)
        source = f"FROM {self.statements.source()} WHERE {condition}"
        return await self.fetch_window(connection, select, source, values, start, count)

    def read_unordered(
        self, connection: AsyncConnection, where: Condition
    ) -> AsyncGenerator[Sequence[Any]]:
        """Yield the rows of ``Statements.select_unordered`` for a condition, in partitions.

        The partitions may come from several snapshots.
        """
        sql = self.statements.select_unordered(where.sql)
        return self.rows(connection, sql, where.values, PAGE_ENTRIES)

    async def sessions(
        self, connection: AsyncConnection, shard: Shard | None = None
    ) -> AsyncGenerator[MemoryKey]:
        """Yield the memories with a row of ``session``, with or without messages.

        With a ``shard``, may leave out memories that are not in the shard.
        """
        selected = self.statements.in_shard(shard, "s.id")
        table = self.statements.session_table
        statement = f"SELECT s.user_id, s.id FROM {table} s WHERE {selected}"
        async with aclosing(self.rows(connection, statement, {})) as partitions:
            async for rows in partitions:
                for user, session in rows:
                    yield MemoryKey(user, session)

    async def shared_sessions(
        self, where: Selection, connection: AsyncConnection
    ) -> AsyncGenerator[MemoryKey]:
        """Yield the memories of users who do not own their session, and perhaps further memories.

        Yields at least the selected memories.
        """
        condition, values = self.statements.session_condition(where)
        statement = self.statements.select_owned_by_others(condition)
        async with aclosing(self.rows(connection, statement, values)) as partitions:
            async for rows in partitions:
                for user, session in rows:
                    if isinstance(user, str) and isinstance(session, str):
                        yield MemoryKey(user, session)

    async def has_session(self, connection: AsyncConnection, key: MemoryKey) -> bool:
        """Return whether the table ``session`` has a row of this session of this user."""
        among = self.statements.among
        sql = (
            f"SELECT 1 FROM {self.statements.session_table} s "
            f"WHERE {among('s.id', 'sessions')} AND {among('s.user_id', 'users')}"
        )
        values = {"sessions": [key.session], "users": [key.user]}
        return bool(await self.fetch_all(connection, sql, values))

    async def extents(
        self,
        connection: AsyncConnection,
        values: dict[str, list[str]],
        shard: Shard | None = None,
    ) -> dict[MemoryKey, Extent]:
        """Return the number of messages and the highest index of each memory with messages.

        ``values`` has the sessions to read under the key ``sessions``; an empty ``values`` reads
        all sessions, or with a ``shard`` at least the sessions of the shard.
        """
        statements = self.statements
        condition = "m.session_id IN :sessions" if values else statements.message_in_shard(shard)
        sql = (
            f"SELECT user_id, session_id, COUNT(*), MAX(position) FROM ("
            f"SELECT {statements.user} AS user_id, m.session_id AS session_id, "
            f"{statements.index} AS position "
            f"FROM {statements.source()} WHERE {condition} {statements.subquery_barrier}) AS found "
            f"GROUP BY {statements.exact('user_id')}, {statements.exact('session_id')}"
        )
        async with aclosing(self.rows(connection, sql, values)) as partitions:
            return {
                MemoryKey(user, session): Extent(count, last)
                async for rows in partitions
                for user, session, count, last in rows
            }


def make_tables(location: Location, label: str) -> MemoryTables:
    """Return AgentScope's tables at a location, of the engine with which its kind begins."""
    engine = location.kind.partition("-")[0]
    module = import_module(f"memctl.stores.agentscope1.sql.{engine}")
    tables: type[MemoryTables] = getattr(module, f"{engine.capitalize()}Tables")
    return tables(location, label)


def shape_of(row_id: str | None, *, blob: bool) -> str:
    """Return the shape of a message: JSON that names its row id, and whether it is a blob.

    Empty if ``row_id`` is None and the message is not a blob.
    """
    found = ({} if row_id is None else {"row": row_id}) | ({"blob": True} if blob else {})
    return json.dumps(found) if found else ""
