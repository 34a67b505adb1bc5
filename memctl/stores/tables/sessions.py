"""The rows that frameworks keep for sessions, users and applications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, inspect

from memctl.engines.sql.columns import Column, columns_of
from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Database, shown_name
from memctl.engines.sql.syntax import Condition
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.storekit.edits import is_same_text
from memctl.stores.tables.mapping import NOW, SessionTable

if TYPE_CHECKING:
    from memctl.stores.tables.codec import RowCodec


class MadeRow(NamedTuple):
    """A row that memctl made in the table of sessions, users or applications.

    ``state`` is the JSON value of the state column.  ``needless`` is True if the framework did not
    need the row: the session already had messages, or the user or application already had sessions.
    """

    state: Any
    needless: bool


MadeRows = dict[tuple[str, ...], MadeRow]
"""The new rows, by the name of the table followed by the values that name the row."""


class Sessions:
    """The tables of a store with a row for each session, user or application."""

    def __init__(self, codec: RowCodec, database: Database) -> None:
        self._codec = codec
        self._database = database
        self._mapping = codec.mapping
        self._shared: MadeRows = {}
        """The rows that memctl made for users and applications."""
        self._columns: dict[str, dict[str, Column]] = {}
        """The columns of each table in the database."""

    async def learn(self) -> None:
        """Read the columns of the tables from the database."""
        look = partial(_examine, self._mapping.sessions, self._database)
        self._columns = await self._database.run(look)

    def _names(self, table: SessionTable, key: MemoryKey) -> dict[str, str]:
        known = {"session": key.session, "user": key.user, "app": self._mapping.app_name}
        return {column: known[name] for name, column in table.names.items()}

    def _where(self, columns: dict[str, str]) -> tuple[str, dict[str, Any]]:
        quoted, exact = self._codec.quoted, self._database.syntax.exact
        tests = [f"{exact(quoted(name))} = :n{at}" for at, name in enumerate(columns)]
        return " AND ".join(tests), {f"n{at}": value for at, value in enumerate(columns.values())}

    async def extra(self, connection: AsyncConnection, key: MemoryKey) -> str:
        """Return the ``Memory.extra`` of a memory: a JSON object of its states, by table.

        Returns an empty text if all states are empty or absent.

        Raises:
            ValueError: the text of a state is not JSON.
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
        """Return the tables that lack a row for the session, user or application of a memory."""
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
        """Insert the missing rows of sessions, users and applications; return these rows.

        A new row gets its state from ``removed``, which has the states of rows that memctl removed
        before, by table.  If ``removed`` has none for the table, the state is from
        ``Memory.extra``.  The tables in ``left_out`` get no rows.  ``filled`` are the memories that
        had messages before the transaction.
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
        """Remember the new rows of users and applications; call this after the transaction."""
        shared = {table.table for table in self._mapping.sessions if "session" not in table.names}
        self._shared |= {which: row for which, row in made.items() if which[0] in shared}

    def made(self, key: MemoryKey, made: MadeRows) -> dict[str, MadeRow]:
        """Return the rows that memctl made for a memory, by table.

        ``made`` has the rows of the current transaction.  The result also has rows for the user and
        for the application that earlier transactions of this run made.
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
        """Remove rows that memctl made for a memory; return their states, by table.

        ``made`` has the state that memctl wrote into each row, by table.  A row stays if its state
        has changed, or if an application gave a value to a column that it added.  A row also
        stays if the memory has messages, or if the user or application of the row has a session,
        unless ``needless`` has its table.
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
            known = {*names, *table.values, table.state}
            where = Condition(condition, values)
            if await self._database.has_added_value(connection, table.table, known, where):
                continue
            name = self._codec.quoted(table.table)
            rows = f"FROM {name} WHERE {condition}"
            if table.state:
                sql = f"SELECT {self._state_text(table)} {rows}"
                found = await self._database.fetch_all(connection, sql, values)
                if not all(_is_state(text, made[table.table]) for (text,) in found):
                    continue
            [[count]] = await self._database.fetch_all(
                connection, f"SELECT COUNT(*) {rows}", values
            )
            done = await connection.execute(f"DELETE {rows}", values)
            self._database.check_deleted(table.table, count, done.rowcount)
            removed[table.table] = made[table.table]
        return removed

    async def _has_messages(self, connection: AsyncConnection, key: MemoryKey) -> bool:
        condition, values = self._codec.of(key)
        sql = f"SELECT 1 FROM {self._codec.table} WHERE {condition} LIMIT 1"
        return bool(await self._database.fetch_all(connection, sql, values))

    async def _is_needed(
        self, connection: AsyncConnection, table: SessionTable, names: dict[str, str]
    ) -> bool:
        """Return whether the user or the application of a row has a session.

        False for the row of a session.  ``names`` has the columns that name the row, with their
        values.
        """
        if "session" in table.names:
            return False
        for other in self._mapping.sessions:
            if "session" in other.names:
                columns = {other.names[one]: names[column] for one, column in table.names.items()}
                if await self._has_row(connection, other, columns):
                    return True
        return False

    def _state_text(self, table: SessionTable) -> str:
        return f"CAST({self._codec.quoted(table.state)} AS {self._database.syntax.text_type})"

    def _now(self, table: SessionTable, column: str) -> Any:
        return self._columns[table.table][column].moment(datetime.now(UTC).replace(tzinfo=None))

    async def empty(
        self, connection: AsyncConnection, shard: Shard | None = None
    ) -> list[MemoryKey]:
        """Return the sessions that have a row but no messages.

        Empty if sessions have no state.  With a ``shard``, sessions outside of it may be left out
        or, even if they have messages, be in the list.
        """
        if not self._mapping.keeps_state:
            return []
        filled = set(await self.with_messages(connection, shard))
        return [key for key in await self.names(connection, shard) if key not in filled]

    async def with_messages(
        self, connection: AsyncConnection, shard: Shard | None = None
    ) -> list[MemoryKey]:
        """Return the sessions that have messages.

        With a ``shard``, sessions outside of it may be left out.
        """
        condition, values = self._codec.condition(Selection(shard=shard))
        names = ", ".join(self._codec.names)
        sql = f"SELECT DISTINCT {names} FROM {self._codec.table} WHERE {condition}"
        rows = await self._database.fetch_all(connection, sql, values)
        return [self._codec.key_of(row) for row in rows]

    async def names(
        self, connection: AsyncConnection, shard: Shard | None = None
    ) -> list[MemoryKey]:
        """Return the sessions that have a row in a table of sessions.

        With a ``shard``, sessions outside of it may be left out.
        """
        quoted, found = self._codec.quoted, []
        for table in self._mapping.sessions:
            if "session" not in table.names:
                continue
            columns = [
                quoted(table.names[name])
                for name in ("session", "user", "app")
                if name in table.names
            ]
            selected = self._database.syntax.in_shard(shard, columns[0])
            sql = f"SELECT {', '.join(columns)} FROM {quoted(table.table)} WHERE {selected}"
            for session, *more in await self._database.fetch_all(connection, sql, {}):
                user = more[0] if "user" in table.names else self._mapping.user
                if "app" not in table.names or more[-1] == self._mapping.app_name:
                    found.append(MemoryKey(shown_name(user), shown_name(session)))
        return found

    async def remove(self, connection: AsyncConnection, key: MemoryKey) -> None:
        """Remove the row of a session, and the row of its user if the user has no other session."""
        left = True
        for table in self._mapping.sessions:
            if "session" not in table.names and (left or "user" not in table.names):
                continue
            condition, values = self._where(self._names(table, key))
            sql = f"DELETE FROM {self._codec.quoted(table.table)} WHERE {condition}"
            await connection.execute(sql, values)
            left = any(one.user == key.user for one in await self.names(connection))


def _examine(
    tables: Iterable[SessionTable], database: Database, connection: Connection
) -> dict[str, dict[str, Column]]:
    inspector = inspect(connection)
    return {
        one.table: columns_of(database, one.table, connection)
        for one in tables
        if inspector.has_table(one.table)
    }


def _is_state(text: Any, state: Any) -> bool:
    return text is not None and is_same_text(_bytes(text), jsonio.dumps(state))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _state(text: Any, table: SessionTable) -> Any:
    """Parse the text in a state column; None for NULL.

    Raises:
        ValueError: the text is not JSON; the error names the column and the table.
    """
    if text is None:
        return None
    try:
        return jsonio.loads(_bytes(text))
    except ValueError as error:
        raise ValueError(f"its {table.state} in {table.table} is not JSON") from error
