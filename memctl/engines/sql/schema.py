"""The columns of tables, and the creation of missing tables."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Float, MetaData, inspect


class TextForm(NamedTuple):
    """How to exchange the values of a column that the driver does not convert exactly."""

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


def other_columns(table: str, known: Collection[str], connection: Connection) -> list[OtherColumn]:
    """Return the columns of a table, without ``known`` names and computed columns."""
    found = []
    for one in inspect(connection).get_columns(table):
        if one["name"] in known or one.get("computed"):
            continue
        default = one["default"] or ""
        # Different numbers in single precision may have the same text.
        is_literal = bool(_LITERAL.fullmatch(default)) and not isinstance(one["type"], Float)
        without = one["default"] is None or bool(_NULL.fullmatch(default))
        text = None if without else default.replace(":", "\\:")
        found.append(OtherColumn(one["name"], text, is_literal))
    return found
