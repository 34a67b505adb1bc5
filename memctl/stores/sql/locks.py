"""Locks on the rows that change, and the lock of a run on a database server."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import MemctlError
from memctl.model import MemoryKey
from memctl.stores.locks import ServerLock
from memctl.stores.sql.database import SqlDatabase

PAGE_ROWS = 1000


async def lock_rows(
    store: SqlDatabase,
    connection: AsyncConnection,
    row_ids: list[str],
    lock: str,
    table: str = "message",
    column: str = "id",
) -> None:
    """Locks rows by their keys, those of messages if not said otherwise.

    ``lock`` is the SQL that does it.
    """
    locked = f"SELECT 1 FROM {store.keyed(table, column)} {lock}"
    await store.for_rows(connection, f"SELECT COUNT(*) FROM ({locked}) AS locked", row_ids)


class Row(NamedTuple):
    """Whose message a row holds, and where it stands."""

    session: str
    user: str
    index: int  # type: ignore[assignment]


async def locked_rows(
    store: SqlDatabase, connection: AsyncConnection, row_ids: list[str], lock: str
) -> dict[str, Row]:
    """The messages of these keys that are there, by their keys; ``lock`` as for ``lock_rows``.

    Whose they are is asked of few: of most the key tells, as ``SqlDialect.splits`` has it.
    """
    # What a subquery reads is not locked.
    owner = "(SELECT s.user_id FROM session s WHERE s.id = t.session_id)"
    columns = f"t.id, t.session_id, {owner}, t.{store.quote}index{store.quote}"
    sql = f"SELECT {columns} FROM {store.keyed('message', 'id')} {lock}"
    rows: dict[str, Row] = {}
    rest: list[str] = []
    for row_id, session, user, position in await store.for_rows(connection, sql, row_ids):
        if user is not None and _splits(row_id, user, session):
            rows[row_id] = Row(session, user, position)
        else:
            rest.append(row_id)
    if rest:
        sql = (
            f"SELECT m.id, m.session_id, {store.user}, {store.index} "
            f"FROM {store.source()} WHERE m.id IN :rows"
        )
        for row_id, *row in await store.for_rows(connection, sql, rest):
            rows[row_id] = Row(*row)
    return rows


def _splits(row_id: str, owner: str, session: str) -> bool:
    between = f"-{session}-"
    return (
        row_id.startswith(owner)
        and row_id.find(between) == len(owner)
        and row_id.find(between, len(owner) + 1) < 0
    )


async def lock_session(
    store: SqlDatabase, connection: AsyncConnection, session: str, lock: str
) -> None:
    """Locks all messages of a session and their marks."""
    values = {"sessions": [session]}
    condition = "m.session_id IN :sessions"
    if store.locks_what_it_reads:
        async for row_ids in row_pages(store, connection, condition, values):
            await lock_rows(store, connection, row_ids, lock)
            await lock_rows(store, connection, row_ids, lock, "message_mark", "msg_id")
        return
    rows = f"SELECT m.id FROM message m WHERE {condition}"
    for sql in f"SELECT 1 FROM message_mark WHERE msg_id IN ({rows})", rows:
        counted = f"SELECT COUNT(*) FROM ({sql} {lock}) AS locked"
        await connection.execute(*store.bind(counted, values))


async def row_pages(
    store: SqlDatabase, connection: AsyncConnection, condition: str, values: Mapping[str, Any]
) -> AsyncGenerator[list[str]]:
    """The ids of the rows ``m`` for which the condition holds, some at a time; none is locked."""
    more = ""
    known = dict(values)
    while True:
        sql = f"SELECT m.id FROM message m WHERE {condition} {more} ORDER BY m.id LIMIT {PAGE_ROWS}"
        row_ids = [row_id for (row_id,) in await connection.execute(*store.bind(sql, known))]
        if not row_ids:
            return
        yield row_ids
        more = "AND m.id > :last"
        known["last"] = row_ids[-1]


async def claim(
    store: SqlDatabase, connection: AsyncConnection, keys: Sequence[MemoryKey], lock: str
) -> set[str]:
    """Makes the sessions ours until the transaction ends; gives those that it did not create.

    A session that is created here is empty.  Into one that was there, an agent or another run may
    have written up to now; from now on they wait.  ``lock`` is the SQL that locks its row.
    """
    owners: dict[str, str] = {}
    for key in keys:
        owners.setdefault(key.session, key.user)
    there = f"SELECT t.id FROM {store.keyed('session', 'id')} ORDER BY t.id {lock}"
    known = {row[0] for row in await store.for_rows(connection, there, sorted(owners))}
    users = sorted({(key.user,) for key in keys})
    await store.insert_missing(connection, "users", ["id"], users)
    new = sorted((name, user) for name, user in owners.items() if name not in known)
    if new and len(new) > await store.insert_missing(connection, "session", ["id", "user_id"], new):
        known |= {name for name, _ in new}
    return known


ANSWER_SECONDS = 15


class SqlLock(ServerLock):
    """A lock that belongs to a connection."""

    def __init__(self, store: SqlDatabase) -> None:
        super().__init__(store.label, store.warnings)
        self._store = store
        self._connection: AsyncConnection | None = None

    async def attempt(self) -> str | None:
        await self._drop()
        with self._store.errors():
            self._connection = await self._store.connect_alone()
            try:
                if await self.try_to_take():
                    return None
                other = await self.who_holds()
            except BaseException:
                await self._drop()
                raise
        await self._drop()
        return other

    async def stay(self) -> bool:
        if self._connection is None:
            await asyncio.sleep(self.period)
            return False
        try:
            with self._store.errors():
                await self.wait()
        except MemctlError:  # the lock has gone with the connection
            await self._drop()
            return False
        return True

    async def let_go(self) -> None:
        if self._connection is None:
            return
        try:
            # The server frees it in any case; asked to, it does so before the next run may ask.
            with suppress(MemctlError), self._store.errors():
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self.free()
        finally:
            await self._drop()

    async def ask(self, sql: str, **values: Any) -> Any:
        """The first row of an answer on the lock's connection, None where there is none."""
        assert self._connection is not None
        async with asyncio.timeout(self.period + ANSWER_SECONDS):
            return (await self._connection.execute(text(sql), values)).first()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MemctlError), self._store.errors():  # it broke before
                await connection.close()

    @abstractmethod
    async def try_to_take(self) -> bool:
        """Whether the lock is ours now."""

    @abstractmethod
    async def who_holds(self) -> str:
        """The text of who holds the lock, if there is one."""

    @abstractmethod
    async def wait(self) -> None:
        """Waits for a period; raises what the driver does when the connection has gone."""

    @abstractmethod
    async def free(self) -> None:
        """Frees the lock."""
