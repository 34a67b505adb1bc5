"""Connections to SQLite for ``Database``, without SQLAlchemy."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

from msgspec import Struct

from memctl.engines.sql.connection import AsyncConnection, AsyncEngine, Values
from memctl.engines.sql.sqlite_driver import Connection

T = TypeVar("T")

_NAMED = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
"""A named parameter, as SQLAlchemy's ``text`` recognizes it."""


class SqliteResult(Struct, frozen=True):
    """The rows and the counts of a statement."""

    rows: list[Any]
    rowcount: int
    lastrowid: Any
    returns_rows: bool

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def all(self) -> Sequence[Any]:
        return self.rows

    def one(self) -> Any:
        [row] = self.rows
        return row

    def first(self) -> Any:
        return self.rows[0] if self.rows else None

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None


class SqliteConnection(AsyncConnection):
    """A connection of aiosqlite; a statement is one call in the thread of the connection."""

    def __init__(self, driver: Connection) -> None:
        self._driver = driver
        self._info: dict[Any, Any] = {}

    @property
    def info(self) -> dict[Any, Any]:
        return self._info

    async def driver(self) -> Connection:
        return self._driver

    async def run(self, work: Callable[[Any], T]) -> T:
        return await self._driver.call(work)

    async def execute(self, sql: str, values: Values | None = None) -> SqliteResult:
        if values is None or isinstance(values, Mapping):
            statement, bound = compiled(sql, values or {})
            return await self.exec_driver_sql(statement, tuple(bound))
        statement, names = compiled_names(sql)
        rows = [tuple(one[name] for name in names) for one in values]
        return await self.exec_driver_sql(statement, rows)

    async def exec_driver_sql(
        self, sql: str, values: tuple[Any, ...] | Sequence[tuple[Any, ...]] | None = None
    ) -> SqliteResult:
        def work(driver: sqlite3.Connection) -> SqliteResult:
            run = driver.execute if isinstance(values, tuple) or not values else driver.executemany
            with closing(run(sql, values or ())) as cursor:  # no lock on the file remains
                rows, returns = cursor.fetchall(), cursor.description is not None
                return SqliteResult(rows, cursor.rowcount, cursor.lastrowid, returns)

        return await self._driver.call(work)

    async def commit(self) -> None:
        await self._driver.commit()

    async def rollback(self) -> None:
        await self._driver.rollback()

    async def close(self) -> None:
        await self._driver.close()


class SqliteEngine(AsyncEngine):
    """Makes connections by a function that opens a connection of aiosqlite."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect

    async def connect(self, **options: Any) -> SqliteConnection:  # noqa: ARG002 - it has none
        return SqliteConnection(await self._connect())

    def compile(self, sql: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        return compiled(sql, values)

    def compile_names(self, sql: str) -> tuple[str, Sequence[str]]:
        return compiled_names(sql)


def compiled(sql: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a statement with ``?`` for each value, and the values in their order.

    The values of a list are those of an IN.
    """
    bound: list[Any] = []

    def place(found: re.Match[str]) -> str:
        value = values[found[1]]
        if not isinstance(value, list):
            bound.append(value)
            return "?"
        bound.extend(value)
        return f"({', '.join('?' * len(value))})"

    return _NAMED.sub(place, sql).replace("\\:", ":"), bound


def compiled_names(sql: str) -> tuple[str, list[str]]:
    """Return a statement with ``?`` for each named parameter, and the names in their order."""
    return _NAMED.sub("?", sql).replace("\\:", ":"), _NAMED.findall(sql)
