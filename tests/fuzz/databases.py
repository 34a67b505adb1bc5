"""The databases in which the fuzzer makes tables, reached past memctl."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pymysql

from memctl.registry import parse
from tests.fuzz.files import database_contents
from tests.support.servers.mariadb import PASSWORD, Mariadb
from tests.support.servers.postgresql import Postgresql

REFUSALS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.DataError,
    pymysql.Error,
    sqlite3.Error,
    UnicodeEncodeError,
    OverflowError,
    ValueError,
)
"""The errors of a driver where a database refuses a statement or a row."""


class Database(ABC):
    """A database that each input empties and fills anew.

    It is made when it is first used, so that each worker has its own.
    """

    engine: ClassVar[str]
    quote: ClassVar[str] = '"'
    has_password: ClassVar[bool] = False
    """True where its URL has one."""
    guest: str = "guest"
    """A login with the rights that an input gives it."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The location of the database, as a user writes it."""

    @abstractmethod
    def execute(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Execute a statement; raise what the driver raises."""

    @abstractmethod
    def empty(self) -> None:
        """Drop every table."""

    def place(self, number: int) -> str:  # noqa: ARG002 - the same for most
        """Return the placeholder of a value in a statement."""
        return "%s"

    def quoted(self, name: str) -> str:
        """Return a name of a schema, a table or a column for a statement."""
        return f"{self.quote}{name}{self.quote}"

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of all tables."""

    def rows(self, table: str) -> list[Any]:
        """Return the rows of a table in a form that is equal only for equal rows."""
        return self.execute(f"SELECT * FROM {self.quoted(table)}")

    def columns(self, table: str) -> list[str]:
        """Return the names of the columns of a table."""
        sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = {} AND "
        sql += "table_name = {} ORDER BY ordinal_position"
        return self._names(sql, table)

    def key(self, table: str) -> list[str]:
        """Return the names of the columns of the primary key of a table."""
        sql = "SELECT k.column_name FROM information_schema.key_column_usage k "
        sql += "JOIN information_schema.table_constraints c USING (constraint_schema, "
        sql += "constraint_name, table_name) WHERE c.constraint_type = 'PRIMARY KEY' "
        sql += "AND k.table_schema = {} AND k.table_name = {} ORDER BY k.ordinal_position"
        return self._names(sql, table)

    schema_sql: ClassVar[str] = ""
    """The name of the schema of the tables, as an expression."""

    def _names(self, sql: str, table: str) -> list[str]:
        rows = self.execute(sql.format(self.schema_sql, self.place(0)), [table])
        return [name for (name,) in rows]

    def shown(self, column: str) -> str:
        """Return an expression for the value of a column that the driver can read."""
        return self.quoted(column)

    def contents(self) -> Any:
        """Return the rows of tables; one without rows is none, as a copy that fails leaves it."""
        found = {name: self.rows(name) for name in self.tables()}
        return {name: sorted(map(repr, rows)) for name, rows in found.items() if rows}


class PostgresqlDatabase(Database):
    """A database of a PostgreSQL server, reached through a socket."""

    engine = "postgresql"
    schema_sql = "'public'"

    def __init__(self, folder: Path) -> None:
        self.server = Postgresql(folder)

    @cached_property
    def url(self) -> str:
        return self.server.socket_url(self.server.fresh())

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    @cached_property
    def _connection(self) -> Any:
        name = self.url.partition(":///")[2].partition("?")[0]
        where = {"host": self.server.sockets, "port": self.server.port, "user": "memctl"}
        return self._loop.run_until_complete(asyncpg.connect(database=name, **where))

    def execute(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        rows = self._loop.run_until_complete(self._connection.fetch(sql, *values))
        return [tuple(row) for row in rows]

    def empty(self) -> None:
        self.execute("DROP SCHEMA public CASCADE")
        self.execute("CREATE SCHEMA public")

    def place(self, number: int) -> str:
        return f"${number + 1}"

    def shown(self, column: str) -> str:
        return f"{self.quoted(column)}::text"

    def tables(self) -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        return [name for (name,) in self.execute(sql)]

    def rows(self, table: str) -> list[Any]:
        return self.execute(f"SELECT t::text FROM {self.quoted(table)} t")


class MysqlDatabase(Database):
    """A database of a MariaDB server, reached through a socket."""

    engine = "mysql"
    schema_sql = "DATABASE()"
    quote = "`"
    has_password = True

    def __init__(self, folder: Path) -> None:
        self.server = Mariadb(folder)

    @cached_property
    def url(self) -> str:
        return self.server.socket_url(self.server.fresh())

    @cached_property
    def name(self) -> str:
        """The name of the database."""
        return parse(self.url).url.partition("?")[0].rpartition("/")[2]

    @cached_property
    def guest(self) -> str:  # type: ignore[override] # a login has rights in all databases
        return f"guest_{self.name}"

    @cached_property
    def _connection(self) -> Any:
        return pymysql.connect(
            unix_socket=self.server.socket,
            user="memctl",
            password=PASSWORD,
            database=self.name,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
        )

    def execute(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, list(values) or None)
            return list(cursor.fetchall())

    def empty(self) -> None:
        self.execute("SET foreign_key_checks = 0")
        for name in self.tables():
            self.execute(f"DROP TABLE `{name}`")
        self.execute("SET foreign_key_checks = 1")

    def tables(self) -> list[str]:
        return [name for (name,) in self.execute("SHOW TABLES")]


class SqliteDatabase(Database):
    """A SQLite file in the folder of the input."""

    engine = "sqlite"
    path = Path("shared.db")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path.absolute()}"

    def execute(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql, list(values)).fetchall()

    def empty(self) -> None:
        self.path.unlink(missing_ok=True)

    def place(self, number: int) -> str:  # noqa: ARG002 - the same for all
        return "?"

    def tables(self) -> list[str]:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'"
        return [name for (name,) in self.execute(sql)]

    def columns(self, table: str) -> list[str]:
        return self._names("SELECT name FROM pragma_table_info({1}) ORDER BY cid", table)

    def key(self, table: str) -> list[str]:
        sql = "SELECT name FROM pragma_table_info({1}) WHERE pk > 0 ORDER BY pk"
        return self._names(sql, table)

    def contents(self) -> Any:
        return database_contents(self.path, by_value=True)()
