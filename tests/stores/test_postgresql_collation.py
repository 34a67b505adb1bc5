"""Columns of PostgreSQL with a collation of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, fill
from tests.support.servers.pool import Servers


@pytest.mark.slow
@pytest.mark.parametrize("column", ["message.session_id", "message_mark.msg_id", "users.id"])
def test_column_with_a_collation_is_like_any(
    run: Run, servers: Servers, tmp_path: Path, column: str
) -> None:
    url, archive = servers.postgresql.fresh(), tmp_path / "x.ndjson"
    keys = [MemoryKey("ada", "s"), MemoryKey("Ada", "S")]
    asyncio.run(fill(url, {key: samples.entries(5, 7 * at) for at, key in enumerate(keys)}))
    table, name = column.split(".")
    sql = f'ALTER TABLE {table} ALTER COLUMN {name} TYPE varchar(255) COLLATE "C"'
    servers.postgresql.execute(url, sql)
    for words in (
        ("migrate", url, archive),
        ("verify", url, archive),
        ("delete", url, "--mark", "hint", "--yes"),
        ("undo", "--store", url, "--yes"),
        ("verify", url, archive),
        ("search", url, "message"),
        ("erase", url, "--user", "ada", "--yes"),
    ):
        done = run(*words)
        assert done.exit_code == 0, (words, done.stderr)
