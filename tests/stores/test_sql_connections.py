"""The connections that a command makes to a database: each is a login, often over a network."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memctl.engines.sql.connection import AsyncConnection, AsyncEngine
from tests.support.backends import SQL_PLACES
from tests.support.cli import FRIDAY, Run
from tests.support.servers.pool import Servers


@pytest.mark.parametrize("name", SQL_PLACES)
def test_sql_store_is_inspected_with_one_connection(
    run: Run, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url = SQL_PLACES[name](tmp_path, servers)
    made = Counter[str]()
    connect, close = AsyncEngine.connect, AsyncConnection.close

    async def connecting(engine: AsyncEngine, **options: Any) -> AsyncConnection:
        made["open"] += 1
        return await connect(engine, **options)

    async def closing(connection: AsyncConnection) -> None:
        made["closed"] += 1
        await close(connection)

    monkeypatch.setattr(AsyncEngine, "connect", connecting)
    monkeypatch.setattr(AsyncConnection, "close", closing)
    place = ("--user", "u", "--session", "s")
    assert run("import", FRIDAY, url, *place, "--lossy").exit_code == 0
    assert made["open"] == made["closed"]
    made.clear()
    assert run("inspect", url).exit_code == 0
    assert made == {"open": 2, "closed": 2}  # one to look at the tables, and one to read
