"""The columns of tables, and the creation of missing tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, MetaData, inspect


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


def other_columns(
    table: str, known: Collection[str], connection: Connection, *, filled: bool = True
) -> list[str]:
    """Return the names of a table's columns, without ``known`` names and computed columns.

    Without ``filled``, columns with a default are left out, too.
    """
    return [
        one["name"]
        for one in inspect(connection).get_columns(table)
        if one["name"] not in known
        and not one.get("computed")
        and (filled or one["default"] is None)
    ]
