"""Connections of SQLAlchemy for asyncio, without its ORM.

``sqlalchemy.ext.asyncio`` imports the ORM, which would take a tenth of the time and of the RAM of a
short command.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, TextClause, bindparam, create_engine, text
from sqlalchemy.exc import SAWarning
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from memctl.engines.sql.connection import AsyncConnection, AsyncEngine, Values

T = TypeVar("T")


class AlchemyConnection(AsyncConnection):
    """A ``sqlalchemy.Connection``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def info(self) -> dict[Any, Any]:
        return self._connection.info

    async def driver(self) -> Any:
        raw = await greenlet_spawn(getattr, self._connection, "connection")
        return raw.driver_connection

    async def run(self, work: Callable[[Connection], T]) -> T:
        def quietly(connection: Connection) -> T:
            # SQLAlchemy warns of types and indexes that it does not know.
            with warnings.catch_warnings(action="ignore", category=SAWarning):
                return work(connection)

        return await greenlet_spawn(quietly, self._connection)

    async def execute(
        self, sql: str, values: Values | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        statement = _statement(sql, values) if isinstance(values, Mapping) else text(sql)
        return await greenlet_spawn(self._connection.execute, statement, values)

    async def exec_driver_sql(
        self, sql: str, values: tuple[Any, ...] | Sequence[tuple[Any, ...]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
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


class AlchemyEngine(AsyncEngine):
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

    async def connect(self, **options: Any) -> AlchemyConnection:
        engine = self.sync_engine.execution_options(**options)
        return AlchemyConnection(await greenlet_spawn(engine.connect))

    def compile(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        compiled = _statement(sql, values).compile(dialect=self.sync_engine.dialect)
        state = compiled.construct_expanded_state(dict(values))
        return state.statement, state.positional_parameters

    def compile_names(self, sql: str) -> tuple[str, Sequence[str]]:
        compiled = text(sql).compile(dialect=self.sync_engine.dialect)
        return str(compiled), compiled.positiontup or []


def _statement(sql: str, values: Mapping[str, Any]) -> TextClause:
    lists = (name for name, value in values.items() if isinstance(value, list))
    return text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))
