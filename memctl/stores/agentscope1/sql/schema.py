"""AgentScope 1.x's tables in a database: what is there, and what differs.

Source: ``memory/_working_memory/_sqlalchemy_memory.py`` of agentscope 1.0.12 to 1.0.21.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memctl.engines.sql.inspector import has_class, inspect
from memctl.engines.sql.schema import default_of
from memctl.errors import BadData

_OWN = "give AgentScope's memory a database (or a schema) of its own"
_NAME, _JSON, _NUMBER = "VARCHAR(255)", "JSON", "BIGINT"
TABLES = {
    "users": {"id": _NAME},
    "session": {"id": _NAME, "user_id": _NAME},
    "message": {"id": _NAME, "msg": _JSON, "session_id": _NAME, "index": _NUMBER},
    "message_mark": {"msg_id": _NAME, "mark": _NAME},
}
"""The tables with their columns and types; ``declared`` creates them."""
PRIMARY_KEYS = {
    "users": ("id",),
    "session": ("id",),
    "message": ("id",),
    "message_mark": ("msg_id", "mark"),
}
REPAIRS = frozenset({"orphan-mark", "duplicate-index", "no-session-index"})


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


def examine_schema(connection: Any, *, typed: bool, keys: bool) -> Schema:
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
    found = Schema([], {}, [], sorted(there - TABLES.keys(), key=str), {})
    for name, declared in TABLES.items():
        if name not in there:
            if name in inspector.get_view_names():
                raise BadData(f"{name!r} is a view, not AgentScope's table", _OWN)
            found.missing.append(name)
            continue
        columns = {column["name"]: column for column in inspector.get_columns(name)}
        alien = f"the table {name!r} is not AgentScope's: "
        if "id" in columns and not has_class(columns["id"]["type"], "String"):
            raise BadData(f"{alien}its column 'id' is not a string", _OWN)
        for column, type_ in declared.items():
            if column not in columns:
                raise BadData(f"{alien}it has no column {column!r}", _OWN)
            if typed and not _holds(columns[column]["type"], type_):
                raise BadData(
                    f"the column {column!r} of the table {name!r} is of the type "
                    f"{columns[column]['type']}, not {type_}",
                    "change it to that type (ALTER TABLE), as AgentScope makes it",
                )
        found.nullable[name] = [one for one in declared if columns[one]["nullable"]]
        found.added[name] = [
            one["name"]
            for one in columns.values()
            if not (one["name"] in declared or one.get("computed") or default_of(one))
        ]
        if keys:
            key = inspector.get_pk_constraint(name)["constrained_columns"]
            if set(key) != set(PRIMARY_KEYS[name]):
                found.keyless.append(name)
    return found


def _holds(type_: Any, declared: str) -> bool:
    if declared == _JSON:  # in MariaDB a text type
        return type(type_).__name__ in ("JSON", "LONGTEXT", "MEDIUMTEXT")
    if declared == _NAME:  # CHAR pads values with spaces
        return has_class(type_, "String") and not has_class(type_, "CHAR")
    return has_class(type_, "Integer")
