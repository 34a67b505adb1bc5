"""Simple stores in a SQL database, which read and save each memory in a transaction of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Contended, RejectedValue
from memctl.engines.sql.store import DatabaseStore
from memctl.errors import BadData
from memctl.location import Location
from memctl.store import OpenMode
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged


class SqlSimpleStore(DatabaseStore, SimpleStore):
    """A store in a SQL database that reads and saves each memory as a whole.

    A subclass defines ``prepare``, ``keys``, ``load`` and ``save``.  ``load`` gets its connection
    from ``reading``, ``save`` and ``remove`` get theirs from ``changing``.
    """

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._idle: list[AsyncConnection] = []
        """The open connections that are not in use."""
        self._opened = AsyncExitStack()
        """Closes all open connections."""

    async def connect(self, mode: OpenMode) -> None:
        await self.database.start(mode, self.prepare)

    async def disconnect(self) -> None:
        try:
            await self._opened.aclose()
        finally:
            await self.database.close()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Yield a connection in a transaction for reading."""
        async with self._connection() as connection, self.database.read_transaction(connection):
            yield connection

    @asynccontextmanager
    async def changing(self, *, erases: bool = False) -> AsyncGenerator[AsyncConnection]:
        """Yield a connection in a write transaction, committed if the ``with`` block succeeds.

        With ``erases``, the database overwrites the data that the transaction deletes.

        Raises:
            Rejected: the database refused a value, or other programs hold the rows.
        """
        transaction = self.database.erasing if erases else self.database.transaction
        try:
            async with self._connection() as connection, transaction(connection):
                yield connection
        except (RejectedValue, Contended) as error:
            raise Rejected(error.failure.code, error.failure.message) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection]:
        """Yield an idle connection, or a new one if none is idle; keep it for later calls."""
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await self._opened.enter_async_context(self.database.connect())
        try:
            yield connection
        except (BadData, Rejected, VersionChanged):  # the data's fault, not the connection's
            self._idle.append(connection)
            raise
        self._idle.append(connection)
