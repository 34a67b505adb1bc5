"""Simple stores in a SQL database, which read and save each memory in a transaction of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from memctl.engines.sql.database import Contended, RejectedValue, make_database
from memctl.errors import BadData
from memctl.location import Location
from memctl.store import OpenMode
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged


class SqlSimpleStore(SimpleStore):
    """A ``SimpleStore`` in a SQL database.

    A subclass defines ``prepare``, ``keys``, ``load`` and ``save``.  ``load`` uses ``reading``,
    ``save`` and ``remove`` use ``changing``.
    """

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.kind = location.kind
        self.database = make_database(location, self.label)
        self.details = self.database.details
        self._idle: list[AsyncConnection] = []
        """The open connections that are not in use."""
        self._opened = AsyncExitStack()
        """The exits of all open connections."""

    @abstractmethod
    async def prepare(self) -> None:
        """Check the tables; create missing tables if the mode says so.

        Raises:
            MemctlError: as ``Store.open``.
        """

    async def connect(self, mode: OpenMode) -> None:
        await self.database.start(mode, self.prepare)

    async def disconnect(self) -> None:
        try:
            await self._opened.aclose()
        finally:
            await self.database.close()

    async def lock(self, owner: str) -> None:
        await self.database.lock(owner, self.warnings)

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Give a connection in a transaction that reads."""
        async with self._connection() as connection, self.database.read_transaction(connection):
            yield connection

    @asynccontextmanager
    async def changing(self, *, erases: bool = False) -> AsyncGenerator[AsyncConnection]:
        """Give a connection in a transaction that writes.

        ``erases`` has the database overwrite the deleted data.

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
        """Give an idle connection, or a new connection if none is idle: connecting takes time."""
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
