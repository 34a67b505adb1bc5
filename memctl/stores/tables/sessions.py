"""The rows that frameworks keep for sessions, users and applications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import jsonio
from memctl.engines.sql.columns import Column
from memctl.engines.sql.database import Database, shown_name
from memctl.model import Memory, MemoryKey
from memctl.storekit.edits import is_same_text
from memctl.stores.tables.mapping import NOW, SessionTable

if TYPE_CHECKING:
    from memctl.stores.tables.codec import RowCodec


class MadeRow(NamedTuple):
    """A row that memctl made.

    The row is needless if its session already had messages, or its user or application already had
    sessions.
    """

    state: Any
    needless: bool


MadeRows = dict[tuple[str, ...], MadeRow]
"""New rows by table and names."""


class Sessions:
    """The tables of ``Mapping.sessions`` in the database of a store."""

    def __init__(self, codec: RowCodec, database: Database) -> None:
        self._codec = codec
        self._database = database
        self._mapping = codec.mapping
        self._shared: MadeRows = {}
        """The rows that memctl made for users and applications."""
        self._columns: dict[str, dict[str, Column]] = {}
        """The columns of each table in the database."""

    async def learn(self) -> None:
        """Read the columns of the tables."""
        look = partial(_examine, self._mapping.sessions, self._database.syntax.typed)
        self._columns = await self._database.run(look)

    def _names(self, table: SessionTable, key: MemoryKey) -> dict[str, str]:
        """Return the columns that name the row of a memory, with their values."""
        known = {"session": key.session, "user": key.user, "app": self._mapping.app_name}
        return {column: known[name] for name, column in table.names.items()}

    def _where(self, columns: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition for a row, and the values of the condition."""
        quoted, exact = self._codec.quoted, self._database.syntax.exact
        tests = [f"{exact(quoted(name))} = :n{at}" for at, name in enumerate(columns)]
        return " AND ".join(tests), {f"n{at}": value for at, value in enumerate(columns.values())}

    async def extra(self, connection: AsyncConnection, key: MemoryKey) -> str:
        """Return the states of a memory as ``Memory.extra``; empty without states.

        Raises:
            ValueError: a state is not JSON.
        """
        states: dict[str, Any] = {}
        for table in self._mapping.sessions:
            if not table.state:
                continue
            condition, values = self._where(self._names(table, key))
            quoted = self._codec.quoted
            sql = f"SELECT {self._state_text(table)} FROM {quoted(table.table)} WHERE {condition}"
            for (text,) in await self._database.fetch_all(connection, sql, values):
                state = _state(text, table)
                if state:
                    states[table.table] = state
        return jsonio.dumps(states).decode() if states else ""

    async def missing(self, connection: AsyncConnection, key: MemoryKey) -> list[str]:
        """Return the tables that have no row for a memory."""
        return [
            table.table
            for table in self._mapping.sessions
            if not await self._has_row(connection, table, self._names(table, key))
        ]

    async def _has_row(
        self, connection: AsyncConnection, table: SessionTable, names: dict[str, str]
    ) -> bool:
        condition, values = self._where(names)
        sql = f"SELECT 1 FROM {self._codec.quoted(table.table)} WHERE {condition}"
        return bool(await self._database.execute(connection, sql, values))

    async def add(
        self,
        connection: AsyncConnection,
        memories: Sequence[Memory],
        left_out: Collection[str] = (),
        removed: Mapping[str, Any] | None = None,
        filled: Collection[MemoryKey] = (),
    ) -> MadeRows:
        """Make the missing rows of memories; return the new rows.

        Tables in ``left_out`` get no rows.  ``removed`` has the states of removed rows, by table;
        they override the states in ``Memory.extra``.  ``filled`` are the memories that had
        messages.
        """
        made: MadeRows = {}
        done: set[tuple[str, ...]] = set()
        for memory in memories if self._mapping.sessions else ():
            states = jsonio.loads(memory.extra.encode()) if memory.extra else {}
            states = {**states, **(removed or {})}
            # Rows that other rows refer to come first.
            for table in reversed(self._mapping.sessions):
                names = self._names(table, memory.key)
                which = (table.table, *names.values())
                if which in done or table.table in left_out:
                    continue
                done.add(which)
                if await self._has_row(connection, table, names):
                    continue
                row: dict[str, Any] = {**names}
                for column, value in table.values.items():
                    row[column] = self._now(table, column) if value is NOW else value
                state = states.get(table.table) or {}
                needless = (
                    memory.key in filled
                    if "session" in table.names
                    else await self._is_needed(connection, table, names)
                )
                made[which] = MadeRow(state, needless)
                if table.state:
                    row[table.state] = jsonio.dumps(state).decode()
                await self._database.insert_rows(
                    connection, table.table, list(row), [tuple(row.values())]
                )
        return made

    def keep(self, made: MadeRows) -> None:
        """Remember the new rows that several memories share, after the transaction."""
        shared = {table.table for table in self._mapping.sessions if "session" not in table.names}
        self._shared |= {which: row for which, row in made.items() if which[0] in shared}

    def made(self, key: MemoryKey, made: MadeRows) -> dict[str, MadeRow]:
        """Return the rows that memctl made for a memory, by table.

        ``made`` are the rows of the last transaction.  Shared rows of earlier transactions are
        found, too.
        """
        found = {}
        for table in self._mapping.sessions:
            which = (table.table, *self._names(table, key).values())
            for rows in (made, self._shared):
                if which in rows:
                    found[table.table] = rows[which]
        return found

    async def unmake(
        self,
        connection: AsyncConnection,
        key: MemoryKey,
        made: Mapping[str, Any],
        needless: Collection[str],
    ) -> dict[str, Any]:
        """Remove rows that memctl made for a memory; return their states by table.

        ``made`` has the states of the rows by table.  A row stays if its state differs now.  A row
        with messages or sessions stays, unless ``needless`` has its table.
        """
        removed = {}
        for table in self._mapping.sessions:
            names = self._names(table, key)
            if table.table not in made:
                continue
            if table.table not in needless and (
                await self._has_messages(connection, key)
                or await self._is_needed(connection, table, names)
            ):
                continue
            condition, values = self._where(names)
            name = self._codec.quoted(table.table)
            rows = f"FROM {name} WHERE {condition}"
            if table.state:
                sql = f"SELECT {self._state_text(table)} {rows}"
                found = await self._database.fetch_all(connection, sql, values)
                if not all(_is_state(text, made[table.table]) for (text,) in found):
                    continue
            await connection.execute(*self._database.syntax.bind(f"DELETE {rows}", values))
            removed[table.table] = made[table.table]
        return removed

    async def _has_messages(self, connection: AsyncConnection, key: MemoryKey) -> bool:
        condition, values = self._codec.of(key)
        sql = f"SELECT 1 FROM {self._codec.table} WHERE {condition} LIMIT 1"
        return bool(await self._database.fetch_all(connection, sql, values))

    async def _is_needed(
        self, connection: AsyncConnection, table: SessionTable, names: dict[str, str]
    ) -> bool:
        """Return whether the user or the application of a row has a session."""
        if "session" in table.names:
            return False
        for other in self._mapping.sessions:
            if "session" in other.names:
                columns = {other.names[one]: names[column] for one, column in table.names.items()}
                if await self._has_row(connection, other, columns):
                    return True
        return False

    def _state_text(self, table: SessionTable) -> str:
        """Return SQL for the text of a state."""
        return f"CAST({self._codec.quoted(table.state)} AS {self._database.syntax.text_type})"

    def _now(self, table: SessionTable, column: str) -> Any:
        """Return the current time as the driver takes it for a column."""
        return self._columns[table.table][column].moment(datetime.now(UTC).replace(tzinfo=None))

    async def empty(self, connection: AsyncConnection) -> list[MemoryKey]:
        """Return the sessions without messages, if the layout keeps a state for sessions."""
        if not self._mapping.keeps_state:
            return []
        found = await self.names(connection)
        condition, values = self._codec.condition_of_app()
        names = ", ".join((self._codec.session, self._codec.user))
        sql = f"SELECT DISTINCT {names} FROM {self._codec.table} WHERE {condition}"
        filled = {
            self._codec.key_of(row)
            for row in await self._database.fetch_all(connection, sql, values)
        }
        return [key for key in found if key not in filled]

    async def names(self, connection: AsyncConnection) -> list[MemoryKey]:
        """Return the names of the sessions that have a row."""
        quoted, found = self._codec.quoted, []
        for table in self._mapping.sessions:
            if "session" not in table.names:
                continue
            columns = [
                quoted(table.names[name])
                for name in ("session", "user", "app")
                if name in table.names
            ]
            sql = f"SELECT {', '.join(columns)} FROM {quoted(table.table)}"
            for session, *more in await self._database.fetch_all(connection, sql, {}):
                user = more[0] if "user" in table.names else self._mapping.user
                if "app" not in table.names or more[-1] == self._mapping.app_name:
                    found.append(MemoryKey(shown_name(user), shown_name(session)))
        return found

    async def remove(self, connection: AsyncConnection, key: MemoryKey) -> None:
        """Remove the row of a session, and the row of a user whose last session it was."""
        left = True
        for table in self._mapping.sessions:
            if "session" not in table.names and (left or "user" not in table.names):
                continue
            condition, values = self._where(self._names(table, key))
            sql = f"DELETE FROM {self._codec.quoted(table.table)} WHERE {condition}"
            await connection.execute(*self._database.syntax.bind(sql, values))
            left = any(one.user == key.user for one in await self.names(connection))


def _examine(
    tables: Iterable[SessionTable], typed: bool, connection: Connection
) -> dict[str, dict[str, Column]]:
    inspector = inspect(connection)
    return {
        one.table: {
            column["name"]: Column(column["name"], column["type"], typed)
            for column in inspector.get_columns(one.table)
        }
        for one in tables
        if inspector.has_table(one.table)
    }


def _is_state(text: Any, state: Any) -> bool:
    """Return whether the text in a row has the value of a state."""
    return text is not None and is_same_text(_bytes(text), jsonio.dumps(state))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _state(text: Any, table: SessionTable) -> Any:
    """Return the value of a state; None for NULL.

    Raises:
        ValueError: the text is not JSON.
    """
    if text is None:
        return None
    try:
        return jsonio.loads(_bytes(text))
    except ValueError as error:
        raise ValueError(f"its {table.state} in {table.table} is not JSON") from error
