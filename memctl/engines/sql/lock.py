"""The lock of a run, which a database server keeps for a connection."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from memctl.engines.sql.connection import AsyncConnection
from memctl.errors import MemctlError
from memctl.shard import Shard
from memctl.storekit.locks import ServerLock

ANSWER_SECONDS = 15


class LockedDatabase(Protocol):
    """The methods of a database that the lock of a run calls."""

    label: str

    def errors(self) -> AbstractContextManager[None]:
        """Turn exceptions that the driver raises in the ``with`` block into errors of memctl."""

    async def connect_autocommit(self) -> AsyncConnection:
        """Return a new connection in autocommit mode; the caller closes the connection."""


class ConnectionLock(ServerLock):
    """The lock of a run on a database server.

    The lock has a connection of its own, and the server frees the lock when the connection ends.
    """

    def __init__(self, database: LockedDatabase, warnings: list[str], shard: Shard | None) -> None:
        super().__init__(database.label, warnings, shard)
        self._database = database
        self._connection: AsyncConnection | None = None

    async def attempt(self) -> str | None:
        await self._drop()
        with self._database.errors():
            self._connection = await self._database.connect_autocommit()
            try:
                if await self.acquire():
                    return None
                other = await self.find_owner()
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
            with self._database.errors():
                await self.wait()
        except MemctlError:  # the lock was lost with the connection
            await self._drop()
            return False
        return True

    async def let_go(self) -> None:
        if self._connection is None:
            return
        try:
            # The server frees the lock with the connection.  The explicit free lets the next run
            # start at once.
            with suppress(MemctlError), self._database.errors():
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self.free()
        finally:
            await self._drop()

    @property
    def _connected(self) -> AsyncConnection:
        assert self._connection is not None
        return self._connection

    async def ask(self, sql: str, **values: Any) -> Any:
        """Run a query on the lock's connection; return its first row, or None without rows.

        ``values`` are the parameters of the query.
        """
        async with asyncio.timeout(self.period + ANSWER_SECONDS):
            return (await self._connected.execute(sql, values)).first()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MemctlError), self._database.errors():  # a broken connection
                await connection.close()

    @abstractmethod
    async def acquire(self) -> bool:
        """Try to acquire the lock without waiting; return whether it was acquired."""

    @abstractmethod
    async def find_owner(self) -> str:
        """Return the owner text of the run that holds the lock; empty if the lock is free."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait for ``period`` seconds; raise the driver's error if the connection is lost."""

    @abstractmethod
    async def free(self) -> None:
        """Free the lock on the server."""
