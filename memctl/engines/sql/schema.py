"""The columns of tables, and the creation of missing tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memctl.engines.sql.inspector import has_class, inspect

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData


class TextForm(NamedTuple):
    """The form as text of a column whose values the driver would change."""

    selected: str = "{}"
    """The SQL that selects a value exactly; ``{}`` stands for the quoted column."""
    type: str = ""
    """The SQL type that a text is cast to; empty if the driver takes the values."""
    writable: bool = True
    """False if the login may not insert a value."""


def create_missing(connection: Connection, metadata: MetaData) -> None:
    """Create the tables of ``metadata`` that the database lacks.

    One query finds the existing tables; SQLAlchemy's ``create_all`` alone makes a query per table.
    """
    there = set(inspect(connection).get_table_names())
    missing = [table for name, table in metadata.tables.items() if name not in there]
    metadata.create_all(connection, tables=missing, checkfirst=False)


class OtherColumn(NamedTuple):
    """A column of a table that does not belong to the layout."""

    name: str
    default: str | None
    """The SQL of the default value, for ``sqlalchemy.text``; None if new rows get NULL."""
    is_literal: bool
    """True if the default is a literal, so that each new row gets the same value."""


_TYPE = r"(::[\w \".,()\[\]]+)?"
_NULL = re.compile(f"NULL{_TYPE}", re.ASCII | re.IGNORECASE)
_LITERAL = re.compile(
    rf"(-?\d+(\.\d+)?|[bx]?'([^'\\]|'')*'){_TYPE}|true|false", re.ASCII | re.IGNORECASE
)


def default_of(column: Mapping[str, Any]) -> str | None:
    """Return the SQL of a column's default, from SQLAlchemy's inspection; None if there is none.

    An identity column, which numbers its rows, has the default ``identity``.
    """
    default: str | None = column["default"]
    if default is None:
        return "identity" if column.get("identity") else None
    return None if _NULL.fullmatch(default) else default


def other_columns(table: str, known: Collection[str], connection: Any) -> list[OtherColumn]:
    """Return the columns of a table, without ``known`` names and computed columns."""
    found = []
    for one in inspect(connection).get_columns(table):
        if one["name"] in known or one.get("computed"):
            continue
        default = default_of(one)
        # Different numbers in single precision may have the same text.
        is_literal = bool(_LITERAL.fullmatch(default or "")) and not has_class(one["type"], "Float")
        text = default and default.replace(":", "\\:")
        found.append(OtherColumn(one["name"], text, is_literal))
    return found
