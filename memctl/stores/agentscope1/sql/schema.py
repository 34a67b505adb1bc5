"""The tables of AgentScope 1.x's SQL memory, equal to the declarations of AgentScope.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.12 to 1.0.21.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    CHAR,
    JSON,
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
)

from memctl.engines.sql.schema import create_missing, default_of
from memctl.errors import BadData

METADATA = MetaData()

_OWN = "give AgentScope's memory a database (or a schema) of its own"

Table("users", METADATA, Column("id", String(255), primary_key=True))
Table(
    "session",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("user_id", String(255), ForeignKey("users.id"), nullable=False),
)
Table(
    "message",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("msg", JSON, nullable=False),
    Column("session_id", String(255), ForeignKey("session.id"), nullable=False),
    Column("index", BigInteger, nullable=False, index=True),
)
Table(
    "message_mark",
    METADATA,
    Column("msg_id", String(255), ForeignKey("message.id", ondelete="CASCADE"), primary_key=True),
    Column("mark", String(255), primary_key=True),
)


class Schema(NamedTuple):
    """The differences between a database and AgentScope's tables."""

    missing: list[str]
    """The missing tables."""
    nullable: dict[str, list[str]]
    """The nullable columns of each table."""
    keyless: list[str]
    """The tables without a primary key."""
    others: list[str]
    """The tables of other programs."""
    added: dict[str, list[str]]
    """The columns without a default that an application added to each table."""


def examine_schema(connection: Connection, *, typed: bool, keys: bool) -> Schema:
    """Compare the tables of a database with AgentScope's tables; return the differences.

    With ``keys``, also compares the primary keys.  With ``typed``, also compares the types of
    columns, which the database enforces.

    Raises:
        BadData: a table with a name of AgentScope lacks a column, has a column of a wrong type, or
            is a view.
    """
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    # In a damaged schema of SQLite, the name of a table may be a blob.
    found = Schema([], {}, [], sorted(there - METADATA.tables.keys(), key=str), {})
    for name, table in METADATA.tables.items():
        if name not in there:
            if name in inspector.get_view_names():
                raise BadData(f"{name!r} is a view, not AgentScope's table", _OWN)
            found.missing.append(name)
            continue
        columns = {column["name"]: column for column in inspector.get_columns(name)}
        alien = f"the table {name!r} is not AgentScope's: "
        if "id" in columns and not isinstance(columns["id"]["type"], String):
            raise BadData(f"{alien}its column 'id' is not a string", _OWN)
        for column in table.columns:
            if column.name not in columns:
                raise BadData(f"{alien}it has no column {column.name!r}", _OWN)
            if typed and not _holds(columns[column.name]["type"], column.type):
                raise BadData(
                    f"the column {column.name!r} of the table {name!r} is of the type "
                    f"{columns[column.name]['type']}, not {column.type}",
                    "change it to that type (ALTER TABLE), as AgentScope makes it",
                )
        found.nullable[name] = [one.name for one in table.columns if columns[one.name]["nullable"]]
        found.added[name] = [
            one["name"]
            for one in columns.values()
            if not (one["name"] in table.columns or one.get("computed") or default_of(one))
        ]
        if keys:
            key = inspector.get_pk_constraint(name)["constrained_columns"]
            if set(key) != set(table.primary_key.columns.keys()):
                found.keyless.append(name)
    return found


def _holds(type_: Any, declared: Any) -> bool:
    match declared:
        case JSON():  # in MariaDB a text type
            return type(type_).__name__ in ("JSON", "LONGTEXT", "MEDIUMTEXT")
        case String():  # CHAR pads values with spaces
            return isinstance(type_, String) and not isinstance(type_, CHAR)
    return isinstance(type_, Integer)


def create_tables(connection: Connection) -> None:
    """Create the missing tables exactly as AgentScope does."""
    create_missing(connection, METADATA)
