"""Tests that the remains of a killed run are harmless, and that the next run removes them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from memctl.storekit.files import temporary_folder
from memctl.testing import samples
from tests.support.cli import fill, report
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

Run = Callable[..., Result]
WRITER = """
import os, signal, sqlite3, sys
driver = sqlite3.connect(sys.argv[1], isolation_level=None)
driver.execute("PRAGMA cache_size = 1")
driver.execute("BEGIN IMMEDIATE")
driver.execute("UPDATE message SET msg = 'half ' || msg")
driver.execute('UPDATE message SET "index" = -1')
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A SQLite database with some memories."""
    path = tmp_path / "agents.db"
    keys = [samples.key(number) for number in range(4)]
    asyncio.run(fill(str(path), {key: samples.entries(100) for key in keys}))
    return path


@pytest.mark.parametrize("target", ["copy/a.ndjson", "copy/state.json", "copy/sessions", "copy"])
def test_leftovers_temporary_files_of_dead_runs(
    run: Run, filled: Path, tmp_path: Path, target: str
) -> None:
    place = tmp_path / target
    folder = place if place.suffix == "" else place.parent
    folder.mkdir(parents=True)
    (folder / ".memctl-dead.tmp").write_text("half")
    alive = folder / ".memctl-alive.tmp"
    with alive.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        name = ["--user", "user0", "--session", "session0"]
        report(run("migrate", filled, place, *name, "--json"))
        assert [path for path in folder.iterdir() if path.name.startswith(".memctl-")] == [alive]


def test_leftovers_temporary_folders_of_dead_runs(
    run: Run, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in "dead", "alive":
        (tmp_path / f".memctl-{name}.tmp").mkdir()
        (tmp_path / f".memctl-{name}.tmp" / "copy.db").write_text("messages")
    handle = os.open(tmp_path / ".memctl-alive.tmp", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert run("migrate", filled, "-").exit_code == 0
    finally:
        os.close(handle)
    assert {path.name for path in tmp_path.iterdir()} == {"agents.db", ".memctl-alive.tmp"}


def test_leftovers_temporary_folders_of_runs_that_begin_at_once(tmp_path: Path) -> None:
    """No run takes the new folder of another run for a leftover."""

    def use(_: int) -> bool:
        with temporary_folder(tmp_path) as folder:
            (folder / "export.ndjson").write_text("half")
            return folder.is_dir()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(2000)))
    assert not list(tmp_path.iterdir())


def test_leftovers_sqlite_file_whose_writer_was_killed(
    run: Run, filled: Path, tmp_path: Path
) -> None:
    whole = report(run("inspect", filled, "--json"))
    subprocess.run([sys.executable, "-c", WRITER, str(filled)], check=False)
    assert Path(f"{filled}-journal").stat().st_size
    killed = tmp_path / "killed.db"
    for suffix in ("", "-journal"):
        shutil.copy(f"{filled}{suffix}", f"{killed}{suffix}")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sqlite3.connect(f"file:{killed}?mode=ro", uri=True).execute("SELECT * FROM message")
    found = report(run("inspect", filled, "--json"))
    assert found["totals"] == whole["totals"]


def test_leftovers_journal_of_a_run_that_was_killed_when_all_was_written(
    run: Run, filled: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    report(run("migrate", filled, copy, "--json"))
    journal = Path(f"{copy}-journal")
    with closing(sqlite3.connect(copy)) as database:
        database.execute("PRAGMA journal_mode = PERSIST")
        database.execute("UPDATE users SET id = id")
        database.commit()
    assert journal.read_bytes()[:28] == bytes(28)
    again = report(run("migrate", filled, copy, "--json"))
    assert again["memories"]["written"] == 0
    assert not journal.exists()


def test_leftovers_what_is_staged_expires_until_it_is_published(
    run: Run, servers: Servers, redis_url: str, tmp_path: Path
) -> None:
    source = str(tmp_path / "large.ndjson")
    asyncio.run(fill(source, {samples.key(0): samples.entries(2500)}))
    client = servers.redis.client(redis_url)
    with client, client.monitor() as monitor:
        report(run("migrate", source, redis_url, "--json"))
        client.echo("the end")
        said: list[str] = []
        while "the end" not in (said[-1] if said else ""):
            said.append(str(monitor.next_command()["command"]))
    staged = [line for line in said if " memctl:" in line and "memctl:lock" not in line]
    assert [line for line in staged if line.startswith("SET ")]
    assert not [line for line in staged if line.startswith("PERSIST ")]
    with client:
        assert {client.ttl(key) for key in client.keys("*")} == {-1}
