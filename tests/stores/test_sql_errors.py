"""Errors of databases: those that another try may not meet are told apart from the others."""

from __future__ import annotations

import socket
import sqlite3
import time
from pathlib import Path

import asyncpg
import pymysql
import pytest

from memctl.engines.sql import database, sqlite_driver
from memctl.engines.sql.database import Contended
from memctl.errors import Lost, MemctlError, PasswordMissing, Unavailable
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write, write_all
from memctl.testing.samples import sample
from tests.support.backends import sql_database


def told(kind: str, error: BaseException) -> MemctlError | None:
    """Return the error that a store of the kind makes of an error of its driver."""
    places = {"sqlite": "m.db", "postgresql": "postgresql://h/d", "mysql": "mysql://h/d"}
    store = make_store(parse(places[kind]))
    return sql_database(store).translate(error)


@pytest.mark.parametrize(
    "state",
    ["08000", "08006", "53300", "57P01", "57P02", "57P03"],
)
def test_sql_what_passes_in_postgresql(state: str) -> None:
    assert type(told("postgresql", asyncpg.PostgresError.new({"C": state, "M": "no"}))) is Lost


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
def test_sql_others_are_in_the_way_in_postgresql(state: str) -> None:
    error = told("postgresql", asyncpg.PostgresError.new({"C": state, "M": "no"}))
    assert type(error) is Contended


@pytest.mark.parametrize("state", ["28000", "53100", "25006", "42501", "XX000"])
def test_sql_what_stays_in_postgresql(state: str) -> None:
    error = told("postgresql", asyncpg.PostgresError.new({"C": state, "M": "no"}))
    assert type(error) is Unavailable
    refused = told("postgresql", asyncpg.PostgresError.new({"C": "28P01", "M": "no"}))
    assert type(refused) is PasswordMissing  # the URL has none


@pytest.mark.parametrize("code", [1040, 1053, 2003, 2006, 2013])
def test_sql_what_passes_in_mysql(code: int) -> None:
    assert type(told("mysql", pymysql.err.OperationalError(code, "no"))) is Lost


@pytest.mark.parametrize("code", [1205, 1213, 3572])
def test_sql_others_are_in_the_way_in_mysql(code: int) -> None:
    assert type(told("mysql", pymysql.err.OperationalError(code, "no"))) is Contended


@pytest.mark.parametrize("code", [1021, 1044, 1290, 1698])
def test_sql_what_stays_in_mysql(code: int) -> None:
    assert type(told("mysql", pymysql.err.OperationalError(code, "no"))) is Unavailable
    refused = told("mysql", pymysql.err.OperationalError(1045, "no"))
    assert type(refused) is PasswordMissing  # the URL has none


async def test_sql_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "LOCK_TIMEOUT", 0.1)
    one = sample(samples.key(1), samples.entries(2))
    async with make_store(parse(f"{tmp_path}/m.db"), OpenMode.CREATE) as store:
        other = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Lost, match="locked"):
            await write(store, [one])
        other.execute("ROLLBACK")
        other.close()
        await write_all(store, [one])


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
async def test_sql_server_that_never_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        store = make_store(parse(f"{kind}://u@127.0.0.1:{silent.getsockname()[1]}/d"))
        with pytest.raises(Lost, match="no answer in 1 second"):
            await store.open(OpenMode.READ)
        assert 0.9 < time.monotonic() - start < 5
