"""Erasing memories from AgentScope 1.x's tables: rows of messages, marks, sessions and users."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.engines.sql.database import RejectedValue, retry_while_locked
from memctl.engines.sql.executor import erase_memory
from memctl.model import MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.stores.agentscope1.sql.locks import lock_rows, lock_session_content, remove_empty
from memctl.stores.agentscope1.sql.tables import Extent, MemoryTables
from memctl.stores.agentscope1.sql.write import delete_messages


class SqlEraser:
    """Erases memories, and lists the names of all memories and users in the tables."""

    def __init__(self, database: MemoryTables) -> None:
        self._database = database
        self._statements = database.statements

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        """Yield the selected memories, and users without a memory; see ``Store.names``."""
        async with self._database.snapshot() as connection:
            for key in await self._names(connection):
                if where.has_key(key):
                    yield key

    async def _names(self, connection: AsyncConnection) -> list[MemoryKey]:
        database = self._database
        keys = dict.fromkeys(await database.extents(connection, {}))
        async with aclosing(database.sessions(connection)) as sessions:
            keys |= dict.fromkeys([key async for key in sessions])
        keys |= dict.fromkeys(database.damaged)
        with_memory = {key.user for key in keys}
        rows = await database.fetch_all(connection, "SELECT id FROM users", {})
        alone = [user for (user,) in rows if isinstance(user, str) and user not in with_memory]
        return [*keys, *(MemoryKey(user, "") for user in alone)]

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Erase the selected memories; see ``Store.erase``."""
        keys = [key async for key in self.names(where)]
        if not keys:
            return
        async with self._database.connect() as connection:
            await self._database.prepare_erasing(connection)
            left: set[str] = set()
            for key in keys:
                result = await self._erase(connection, key)
                left |= {key.user} if result.failure else set()
                yield result
            if where.sessions:
                async with aclosing(self.names(replace(where, sessions=frozenset()))) as names:
                    left |= {key.user async for key in names if key.session}
            gone = {key.user for key in keys} - left
            await retry_while_locked(lambda: self._remove_users(connection, gone))
            await self._database.finish_erasing(connection)

    async def _erase(self, connection: AsyncConnection, key: MemoryKey) -> WriteResult:
        if failure := self._database.damaged.get(key):
            return WriteResult(key, failure=failure)
        return await erase_memory(key, lambda: self._delete(connection, key))

    async def _delete(self, connection: AsyncConnection, key: MemoryKey) -> int:
        """Delete a memory; return the number of deleted messages.

        Also deletes the row of the session, unless other users have messages in the session.
        """
        database, statements = self._database, self._statements
        lock = f"{statements.row_lock} {statements.no_wait}".strip()
        async with database.transaction(connection):
            if lock:
                await lock_rows(database, connection, [key.session], lock, "session")
                await lock_session_content(database, connection, key.session, lock)
            in_session = {"sessions": [key.session]}
            others = await database.extents(connection, in_session)
            others = {one: extent for one, extent in others.items() if one.session == key.session}
            mine = others.pop(key, Extent(0, 0))
            if mine.messages:
                await delete_messages(database, connection, [key])
            if others:
                await self._hand_over(connection, key, others)
            else:
                await self._run(connection, f"DELETE FROM session WHERE {self._own}", key)
        return mine.messages

    async def _hand_over(
        self, connection: AsyncConnection, key: MemoryKey, others: Mapping[MemoryKey, Extent]
    ) -> None:
        """If the user of a memory owns the session, make another user the owner.

        ``others`` are the memories of other users with messages in the session.

        Raises:
            RejectedValue: the new owner would become the user of messages that name no user.
        """
        database = self._database
        heir = min(one.user for one in others)
        if not await self._run(connection, f"SELECT id FROM session WHERE {self._own}", key):
            return
        await database.insert_missing(connection, "users", ["id"], [(heir,)])
        sql = f"UPDATE session SET user_id = :heir WHERE {self._own}"
        await self._run(connection, sql, key, heir=heir)
        if await database.extents(connection, {"sessions": [key.session]}) != others:
            raise RejectedValue(f"others have messages in {key} that name no user", "refused")

    @property
    def _own(self) -> str:
        """SQL to find the row of the session ``:session`` if ``:user`` owns the session."""
        exact = self._statements.exact
        return f"{exact('id')} = {exact(':session')} AND {exact('user_id')} = {exact(':user')}"

    async def _run(self, connection: AsyncConnection, sql: str, key: MemoryKey, **more: str) -> int:
        """Run a statement; return the number of rows found or changed.

        The parameters are ``:session`` and ``:user`` of the memory ``key``, and ``more``.
        """
        values = {"session": key.session, "user": key.user, **more}
        result = await connection.execute(*self._statements.bind(sql, values))
        return len(result.all()) if result.returns_rows else result.rowcount

    async def _remove_users(self, connection: AsyncConnection, users: set[str]) -> None:
        """Delete the rows of those of ``users`` who have no session."""
        async with self._database.transaction(connection):
            for user in sorted(users):
                await remove_empty(
                    *(self._database, connection, MemoryKey(user, ""), {"user": None}), spare=False
                )
