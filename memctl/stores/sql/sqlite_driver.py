"""SQLite's driver: its own connection, and what memctl adds to the SQL that it understands."""

from __future__ import annotations

import sqlite3
from functools import partial

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from memctl import codec


async def driver_of(connection: AsyncConnection) -> aiosqlite.Connection:
    """The driver's own connection, within SQLAlchemy's transaction."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, aiosqlite.Connection)
    return driver


def add_functions(driver: sqlite3.Connection) -> None:
    """Gives a new connection memctl's functions."""
    driver.create_function("memctl_field", 2, _field, deterministic=True)
    driver.create_function("memctl_user", 3, partial(_user, driver))


def _field(message: str | bytes, name: str) -> str | None:
    text = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
    try:
        return codec.field(text, name)
    except ValueError:
        return None


def _user(driver: sqlite3.Connection, row: int, row_id: str, session: str) -> str | None:
    """What stands in a row id before the session and the id of its message.

    The message is read here: handed over by SQLite, a huge one would be there several times.
    """
    try:
        with driver.blobopen("message", "msg", row, readonly=True) as blob:
            name = _field(blob.read(), "id")
    except sqlite3.OperationalError:  # a number or NULL, which holds no id
        return None
    end = f"-{session}-{name}"
    return row_id.removesuffix(end) if name is not None and row_id.endswith(end) else None
