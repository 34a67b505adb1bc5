"""The connections that a command makes to a database: each is a login, often over a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.engines.sql.alchemy import AlchemyConnection, AlchemyEngine
from memctl.engines.sql.sqlite_engine import SqliteConnection, SqliteEngine
from tests.support.backends import SQL_PLACES
from tests.support.cli import FRIDAY, Run
from tests.support.servers.pool import Servers


@pytest.mark.parametrize("name", SQL_PLACES)
def test_sql_store_is_inspected_with_one_connection(
    run: Run, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url = SQL_PLACES[name](tmp_path, servers)
    made = Counter[str]()

    def counting(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **options: Any) -> Any:
            made[name] += 1
            return await call(*args, **options)

        return counted

    for engine in SqliteEngine, AlchemyEngine:
        monkeypatch.setattr(engine, "connect", counting("open", engine.connect))
    for connection in SqliteConnection, AlchemyConnection:
        monkeypatch.setattr(connection, "close", counting("closed", connection.close))
    place = ("--user", "u", "--session", "s")
    assert run("import", FRIDAY, url, *place, "--lossy").exit_code == 0
    assert made["open"] == made["closed"]
    made.clear()
    assert run("inspect", url).exit_code == 0
    assert made == {"open": 2, "closed": 2}  # one to look at the tables, and one to read
