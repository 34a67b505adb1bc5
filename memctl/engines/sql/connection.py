"""Connections of SQLAlchemy for asyncio, without its ORM.

``sqlalchemy.ext.asyncio`` imports the ORM, which would take a tenth of the time and of the RAM of a
short command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

T = TypeVar("T")


class AsyncConnection:
    """A ``sqlalchemy.Connection`` whose methods wait without blocking the event loop.

    All rows of a result are read before a method returns the result.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def info(self) -> dict[Any, Any]:
        """Values that last as long as the connection of the driver."""
        return self._connection.info

    async def driver(self) -> Any:
        """Return the connection of the driver."""
        raw = await greenlet_spawn(getattr, self._connection, "connection")
        return raw.driver_connection

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Call ``work`` with the connection, such as to inspect tables; return its result."""
        return await greenlet_spawn(work, self._connection)

    async def execute(
        self, statement: Executable, values: dict[str, Any] | list[dict[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run a statement of SQLAlchemy with its parameters, or with each of a list of them."""
        return await greenlet_spawn(self._connection.execute, statement, values)

    async def exec_driver_sql(
        self, sql: str, values: tuple[Any, ...] | Sequence[tuple[Any, ...]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run a statement with the driver's placeholders, once or for each of a list of tuples."""
        return await greenlet_spawn(self._connection.exec_driver_sql, sql, values)

    async def set_options(self, **options: Any) -> None:
        """Set SQLAlchemy's options of execution, such as the isolation level."""
        await greenlet_spawn(self._connection.execution_options, **options)

    async def commit(self) -> None:
        await greenlet_spawn(self._connection.commit)

    async def rollback(self) -> None:
        await greenlet_spawn(self._connection.rollback)

    async def close(self) -> None:
        await greenlet_spawn(self._connection.close)


class AsyncEngine:
    """A ``sqlalchemy.Engine`` that makes a connection of the driver for each of its connections."""

    def __init__(self, url: str, connect: Callable[[], Awaitable[Any]], **settings: Any) -> None:
        """Create an engine of the dialect in ``url``; ``connect`` opens a driver's connection.

        ``settings`` are those of the dialect's adapter, which makes the connection synchronous.
        """

        def creator() -> Any:
            adapter = self.sync_engine.dialect.dbapi
            assert adapter is not None
            return adapter.connect(async_creator_fn=connect, **settings)

        self.sync_engine: Engine = create_engine(url, creator=creator, poolclass=NullPool)

    @property
    def dialect(self) -> Dialect:
        return self.sync_engine.dialect

    async def connect(self, **options: Any) -> AsyncConnection:
        """Return a new connection with options of execution; the caller closes the connection."""
        engine = self.sync_engine.execution_options(**options)
        return AsyncConnection(await greenlet_spawn(engine.connect))

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """Yield a new connection, which is closed afterwards even if the task is cancelled."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            await asyncio.shield(asyncio.ensure_future(connection.close()))
