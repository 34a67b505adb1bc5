"""Connections to a SQL database, whatever the library that makes them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""The named parameters of a statement; or several, for each of which the statement runs."""


class Result(Protocol):
    """The result of a statement, whose rows are all read."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""

    @property
    def returns_rows(self) -> bool:
        """True if the statement returns rows, even none."""

    @property
    def lastrowid(self) -> Any:
        """The number of the inserted row, in a database that numbers rows."""

    def __iter__(self) -> Iterator[Any]: ...

    def all(self) -> Sequence[Any]:
        """Return the rows."""

    def one(self) -> Any:
        """Return the only row."""

    def first(self) -> Any:
        """Return the first row; None without rows."""

    def scalar(self) -> Any:
        """Return the first column of the first row; None without rows."""


class AsyncConnection(ABC):
    """A connection whose methods wait without blocking the event loop.

    A statement has named parameters (``:name``), of which a list stands for the values of an IN, or
    the placeholders of the driver.
    """

    @property
    @abstractmethod
    def info(self) -> dict[Any, Any]:
        """Values that last as long as the connection of the driver."""

    @abstractmethod
    async def driver(self) -> Any:
        """Return the connection of the driver."""

    @abstractmethod
    async def run(self, work: Callable[[Any], T]) -> T:
        """Call ``work`` with what ``inspector.inspect`` takes; return its result."""

    @abstractmethod
    async def execute(self, sql: str, values: Values | None = None) -> Result:
        """Run a statement with named parameters."""

    @abstractmethod
    async def exec_driver_sql(
        self, sql: str, values: tuple[Any, ...] | Sequence[tuple[Any, ...]] | None = None
    ) -> Result:
        """Run a statement with the driver's placeholders, once or for each of a list of tuples."""

    async def set_options(self, **options: Any) -> None:  # noqa: B027 - SQLite has none
        """Set options of the library for the next statements, such as the isolation level."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back the transaction, if there is one."""

    @abstractmethod
    async def close(self) -> None:
        """Roll back the transaction, if there is one, and close the connection of the driver."""


class AsyncEngine(ABC):
    """Makes connections to a database, each with a connection of the driver of its own."""

    @abstractmethod
    async def connect(self, **options: Any) -> AsyncConnection:
        """Return a new connection with options of the library; the caller closes the connection."""

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """Yield a new connection, which is closed afterwards even if the task is cancelled."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            await asyncio.shield(asyncio.ensure_future(connection.close()))

    @abstractmethod
    def compile(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Return a statement with the driver's placeholders, and the values in their order."""

    @abstractmethod
    def compile_names(self, sql: str) -> tuple[str, Sequence[str]]:
        """Return a statement with the driver's placeholders, and the names in their order."""
