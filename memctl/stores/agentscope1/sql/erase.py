"""Erasing memories from AgentScope 1.x's tables: rows of messages, marks, sessions and users."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from memctl.engines.sql.connection import AsyncConnection, Result
from memctl.engines.sql.database import RejectedValue, retry_while_locked
from memctl.engines.sql.executor import erase_memories
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
        """Yield the selected memories, and the users without a memory (``Store.names``)."""
        for key in await self._sizes(where):
            yield key

    async def _sizes(self, where: Selection) -> dict[MemoryKey, int]:
        database = self._database
        async with database.snapshot() as connection:
            extents = await database.extents(connection, {})
            async with aclosing(database.sessions(connection)) as sessions:
                keys = [*extents, *[key async for key in sessions], *database.damaged]
            with_memory = {key.user for key in keys}
            rows = await database.fetch_all(connection, "SELECT id FROM users", {})
        alone = [user for (user,) in rows if isinstance(user, str) and user not in with_memory]
        keys += [MemoryKey(user, "") for user in alone]
        nothing = Extent(0, 0)
        return {key: extents.get(key, nothing).messages for key in keys if where.has_key(key)}

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Erase the selected memories (``Store.erase``)."""
        sizes = await self._sizes(where)
        if not sizes:
            return
        database = self._database
        async with database.connect() as connection:
            await database.prepare_erasing(connection)
            left: set[str] = set()
            damaged = [key for key in sizes if key in database.damaged]
            for key in damaged:
                left.add(key.user)
                yield WriteResult(key, failure=database.damaged[key])
            sound = {key: size for key, size in sizes.items() if key not in database.damaged}
            attempt = partial(self._delete, connection)
            async with aclosing(erase_memories(sound, attempt, database.batch_changes)) as results:
                async for result in results:
                    left |= {result.key.user} if result.failure else set()
                    yield result
            if where.sessions:
                async with aclosing(self.names(replace(where, sessions=frozenset()))) as names:
                    left |= {key.user async for key in names if key.session}
            gone = {key.user for key in sizes} - left
            await retry_while_locked(lambda: self._remove_users(connection, gone))
            await database.finish_erasing(connection)

    async def _delete(
        self, connection: AsyncConnection, keys: Sequence[MemoryKey]
    ) -> Mapping[MemoryKey, int]:
        """Delete memories; return the number of deleted messages of each.

        Also deletes the rows of their sessions, unless other users have messages in the session.
        """
        database, statements = self._database, self._statements
        lock = f"{statements.row_lock} {statements.no_wait}".strip()
        sessions = sorted({key.session for key in keys})
        async with database.transaction(connection):
            if lock:
                await lock_rows(database, connection, sessions, lock, "session")
                await lock_session_content(database, connection, sessions, lock)
            others = await self._others(connection, sessions, keys)
            deleted = await delete_messages(database, connection, keys)
            sql = "SELECT id, user_id FROM session WHERE id IN :sessions"
            rows = await self._run(connection, sql, sessions=sessions)
            owned = {MemoryKey(user, session) for session, user in rows}.intersection(keys)
            if alone := [key.session for key in owned if key.session not in others]:
                sql = f"DELETE FROM session WHERE {statements.among('id', 'sessions')}"
                await self._run(connection, sql, sessions=alone)
            shared = [key for key in owned if key.session in others]
            if shared:
                await self._hand_over(connection, shared, others)
        return deleted

    async def _others(
        self, connection: AsyncConnection, sessions: list[str], keys: Collection[MemoryKey]
    ) -> dict[str, dict[MemoryKey, Extent]]:
        extents = await self._database.extents(connection, {"sessions": sessions})
        others: dict[str, dict[MemoryKey, Extent]] = {}
        for key, extent in extents.items():
            if key not in keys:
                others.setdefault(key.session, {})[key] = extent
        return others

    async def _hand_over(
        self,
        connection: AsyncConnection,
        keys: Sequence[MemoryKey],
        others: Mapping[str, Mapping[MemoryKey, Extent]],
    ) -> None:
        """Make other users the owners of the sessions that the users of ``keys`` own.

        ``others`` are the memories of other users in these sessions, by session.

        Raises:
            RejectedValue: a new owner would become the user of messages that name no user.
        """
        database = self._database
        heirs: dict[str, list[str]] = {}
        for key in keys:
            heirs.setdefault(min(one.user for one in others[key.session]), []).append(key.session)
        rows = [(heir,) for heir in sorted(heirs)]
        await database.insert_missing(connection, "users", ["id"], rows)
        sql = f"UPDATE session SET user_id = :heir WHERE {self._statements.among('id', 'sessions')}"
        for heir, sessions in heirs.items():
            await self._run(connection, sql, heir=heir, sessions=sessions)
        after = await self._others(connection, sorted(key.session for key in keys), ())
        for key in keys:
            if after.get(key.session) != others[key.session]:
                raise RejectedValue(f"others have messages in {key} that name no user", "refused")

    async def _run(
        self, connection: AsyncConnection, sql: str, **values: str | list[str]
    ) -> Result:
        return await connection.execute(sql, self._statements.bound(sql, values))

    async def _remove_users(self, connection: AsyncConnection, users: set[str]) -> None:
        async with self._database.transaction(connection):
            made = {MemoryKey(user, ""): {"user": None} for user in users}
            await remove_empty(self._database, connection, made, spare=False)
