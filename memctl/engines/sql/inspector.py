"""The tables of a database and their columns: SQLAlchemy's inspection, and the same of SQLite."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, NamedTuple, Protocol


class Inspector(Protocol):
    """The part of SQLAlchemy's ``Inspector`` that recognizes layouts."""

    def get_table_names(self) -> list[str]:
        """Return the names of the tables, without views."""

    def get_view_names(self) -> list[str]:
        """Return the names of the views."""

    def has_table(self, table_name: str) -> bool:
        """Return whether there is a table or a view of the name."""

    def get_columns(self, table_name: str) -> list[Any]:
        """Return the columns: ``name``, ``type``, ``nullable``, ``default``, ``computed``."""

    def get_pk_constraint(self, table_name: str) -> Any:
        """Return the primary key: ``constrained_columns``."""

    def get_indexes(self, table_name: str) -> list[Any]:
        """Return the indexes: ``name``, ``column_names``."""

    def get_foreign_keys(self, table_name: str) -> list[Any]:
        """Return the foreign keys: ``constrained_columns``, ``referred_table``."""


def inspect(connection: Any) -> Inspector:
    """Return the inspector of a connection of ``sqlite3`` or of SQLAlchemy.

    It is used within ``Database.look`` or ``Database.run``.
    """
    if isinstance(connection, sqlite3.Connection):
        return SqliteInspector(connection)
    from sqlalchemy import inspect as inspect_connection  # SQLite does without SQLAlchemy

    found: Inspector = inspect_connection(connection)
    return found


def column_names(table: str, connection: Any) -> set[str]:
    """Return the names of the columns of a table; empty if there is no such table."""
    inspector = inspect(connection)
    if not inspector.has_table(table):
        return set()
    return {column["name"] for column in inspector.get_columns(table)}


def engine_of(connection: Any) -> str:
    """Return the kind of the database of a connection, as ``inspect`` takes it."""
    return "sqlite" if isinstance(connection, sqlite3.Connection) else connection.dialect.name


class SqliteType(NamedTuple):
    """The declared type of a column in SQLite, which is a hint and not a rule."""

    declared: str

    def __str__(self) -> str:
        return self.declared


def has_class(type_: Any, name: str) -> bool:
    """Return whether a column's type is of a class of SQLAlchemy, such as ``String``.

    For SQLite, its own rules say which declared types are texts, integers and fractions.
    """
    if isinstance(type_, SqliteType):
        return _affinity(type_.declared) == name
    return any(one.__name__ == name for one in type(type_).__mro__)


def _affinity(declared: str) -> str:
    text = declared.upper()
    if "INT" in text:
        return "Integer"
    if re.search("CHAR|CLOB|TEXT", text):
        return "String"
    return "Float" if re.search("REAL|FLOA|DOUB", text) else ""


class SqliteInspector:
    """The tables of a SQLite file, by its pragmas."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def _rows(self, sql: str, *values: str) -> list[Any]:
        return list(self._connection.execute(sql, values).fetchall())

    def get_table_names(self) -> list[str]:
        return self._names("table")

    def get_view_names(self) -> list[str]:
        return self._names("view")

    def _names(self, type_: str) -> list[str]:
        sql = (
            "SELECT name FROM sqlite_master WHERE type = ? "
            "AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
        )
        return [name for (name,) in self._rows(sql, type_)]

    def has_table(self, table_name: str) -> bool:
        return bool(self._rows("SELECT 1 FROM pragma_table_info(?)", table_name))

    def get_columns(self, table_name: str) -> list[Any]:
        sql = 'SELECT name, type, "notnull", dflt_value, hidden FROM pragma_table_xinfo(?)'
        return [
            {
                "name": name,
                "type": SqliteType(type_),
                "nullable": not filled,
                "default": default,
                "computed": hidden in (2, 3),
            }
            for name, type_, filled, default, hidden in self._rows(sql, table_name)
            if hidden != 1
        ]

    def get_pk_constraint(self, table_name: str) -> Any:
        sql = "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk"
        return {"constrained_columns": [name for (name,) in self._rows(sql, table_name)]}

    def get_indexes(self, table_name: str) -> list[Any]:
        sql = "SELECT name FROM pragma_index_list(?) WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        columns = "SELECT name FROM pragma_index_info(?) ORDER BY seqno"
        return [
            {"name": name, "column_names": [column for (column,) in self._rows(columns, name)]}
            for (name,) in self._rows(sql, table_name)
        ]

    def get_foreign_keys(self, table_name: str) -> list[Any]:
        sql = 'SELECT id, "table", "from" FROM pragma_foreign_key_list(?) ORDER BY id, seq'
        found: dict[int, Any] = {}
        for id, table, column in self._rows(sql, table_name):
            key = found.setdefault(id, {"constrained_columns": [], "referred_table": table})
            key["constrained_columns"].append(column)
        return list(found.values())
