"""The lock of a run, which a database server keeps for a connection."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.errors import MemctlError
from memctl.storekit.locks import ServerLock

ANSWER_SECONDS = 15


class LockedDatabase(Protocol):
    """The part of a database that a lock uses."""

    label: str

    def errors(self) -> AbstractContextManager[None]:
        """Turn what a driver raises into memctl's errors."""

    async def connect_autocommit(self) -> AsyncConnection:
        """Return a connection outside of transactions, which the caller closes."""


class ConnectionLock(ServerLock):
    """A lock that belongs to a connection of its own, and ends with it."""

    def __init__(self, database: LockedDatabase, warnings: list[str]) -> None:
        super().__init__(database.label, warnings)
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
        except MemctlError:  # the lock has gone with the connection
            await self._drop()
            return False
        return True

    async def let_go(self) -> None:
        if self._connection is None:
            return
        try:
            # The server frees it in any case; told to, it does so before the next run tries.
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
        """Return the first row of an answer on the lock's connection, None where there is none."""
        async with asyncio.timeout(self.period + ANSWER_SECONDS):
            return (await self._connected.execute(text(sql), values)).first()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MemctlError), self._database.errors():  # it broke before
                await connection.close()

    @abstractmethod
    async def acquire(self) -> bool:
        """Try to acquire the lock; return whether it is ours now."""

    @abstractmethod
    async def find_owner(self) -> str:
        """Return the text of the run that holds the lock, empty where there is none."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait for a period; raise what the driver raises when the connection is lost."""

    @abstractmethod
    async def free(self) -> None:
        """Free the lock."""
