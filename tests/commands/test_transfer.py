"""Migrations over servers that hang, break and come back, and at a pace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.ops.copy.compare import CompareReport, compare
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.testing import samples
from tests.support.cli import Run, add, contents, fails, fill, report
from tests.support.processes import start, wait_until
from tests.support.servers.pool import Servers

KEYS = [samples.key(number) for number in range(20)]
ONE = MemoryKey("ada", "one")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A SQLite database of 20 memories of 100 messages, about 300 bytes each."""
    path = tmp_path / "source.db"
    asyncio.run(fill(str(path), {key: samples.entries(100) for key in KEYS}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1000", "1000/s", "{size}B", "{kilo}kB"])
def test_transfer_rate_is_kept(run: Run, source: Path, tmp_path: Path, rate: str) -> None:
    size = sum(len(entry.message) for entry in samples.entries(100)) * 10
    limit = rate.format(size=size, kilo=size / 1000)
    began = time.monotonic()
    options = ("--rate-limit", limit, "--no-verify")
    assert run("migrate", source, tmp_path / "t.db", *options).exit_code == 0
    # Two seconds at this rate; the last memory need not be waited for.
    assert time.monotonic() - began > 1.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.ndjson", "a.csv", "pages"])
def test_transfer_export_keeps_to_a_rate(run: Run, source: Path, tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    shape = ("--as", "markdown") if name == "pages" else ()
    options = ("-o", tmp_path / name, *shape, "--rate-limit", "1500")
    assert run("export", source, *options).exit_code == 0
    assert time.monotonic() - began > 1.2
    fails(
        run("export", source, "-o", tmp_path / "b", "--rate-limit", "fast"), 2, "messages a second"
    )


def has_memories(path: Path) -> bool:
    """Return whether a memory has come to a SQLite database that may not be there yet."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM session").fetchone() is not None
    except sqlite3.OperationalError:
        return False


@pytest.mark.parametrize("rate", ["fast", "0", "-5", "5 apples", "1e9", ""])
def test_transfer_what_is_no_rate(run: Run, source: Path, tmp_path: Path, rate: str) -> None:
    fails(run("migrate", source, tmp_path / "t.db", "--rate-limit", rate), 2, "messages a second")
    assert not (tmp_path / "t.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_transfer_memory_at_hand_is_finished(
    run: Run, source: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    target = tmp_path / "t.db"
    process = start("migrate", source, target, "--rate-limit", "300", "--json")
    wait_until(lambda: has_memories(target))
    process.send_signal(number)
    output, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    found = json.loads(output)
    assert found["error"]["code"] == "interrupted"
    assert "run the same command again: it continues" in said
    there = contents(f"sqlite:///{target}")
    assert 0 < len(there) < len(KEYS)
    assert found["memories"]["written"] == found["memories"]["selected"] == len(there)
    assert {len(entries) for entries in there.values()} == {100}
    assert run("migrate", source, target).exit_code == 0
    assert len(contents(f"sqlite:///{target}")) == len(KEYS)


def test_transfer_second_signal_does_not_wait(tmp_path: Path) -> None:
    source = tmp_path / "large.db"
    asyncio.run(fill(str(source), {ONE: samples.entries(5000)}))
    process = start("--verbose", "migrate", source, tmp_path / "t.db", "--rate-limit", "100")
    assert process.stderr
    assert "opened" in process.stderr.readline()
    time.sleep(1)  # until it reads the memory
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "the memory at hand takes a minute"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130, said
    assert [path.name for path in tmp_path.iterdir()] == ["large.db"], "an empty target goes again"


def test_transfer_archive_in_the_making_is_thrown_away_at_once(
    source: Path, tmp_path: Path
) -> None:
    process = start("migrate", source, tmp_path / "t.ndjson", "--rate-limit", "300")
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=5)
    assert process.returncode == 130, said
    assert [path.name for path in tmp_path.iterdir()] == ["source.db"]


@pytest.mark.slow
def test_transfer_connection_that_is_cut_is_made_again(
    servers: Servers, postgresql_url: str, source: Path
) -> None:
    process = start("migrate", source, postgresql_url, "--rate-limit", "500", "--json")
    count = "SELECT count(*) FROM session"
    exists = "SELECT to_regclass('session') IS NOT NULL"
    sql = servers.postgresql.execute
    wait_until(lambda: sql(postgresql_url, exists) == "t")
    wait_until(lambda: int(sql(postgresql_url, count)) > 2)
    servers.postgresql.cut(postgresql_url)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "trying again in" in said
    found = json.loads(output)
    assert found["memories"]["selected"] == found["memories"]["written"] == len(KEYS)
    assert found["messages"]["written"] == 100 * len(KEYS)
    assert found["verified"] is True


def test_transfer_redis_that_is_cut_is_connected_again(
    servers: Servers, redis_url: str, source: Path
) -> None:
    process = start("migrate", source, redis_url, "--rate-limit", "500", "--json")
    with servers.redis.client(redis_url) as client:
        wait_until(lambda: len(list(client.scan_iter("*:messages"))) > 2)
    servers.redis.cut(redis_url)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "trying again in" in said
    assert json.loads(output)["verified"] is True


def test_transfer_server_that_was_never_there_is_not_waited_for(source: Path) -> None:
    began = time.monotonic()
    process = start("migrate", source, "postgresql://u@127.0.0.1:1/x")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 3, said
    assert "trying again" not in said
    assert time.monotonic() - began < 10


def test_transfer_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    from tests.support.servers.redis import Redis

    server = Redis(tmp_path, "redis-hangs")
    url = server.fresh()
    asyncio.run(fill(url, {key: samples.entries(100) for key in KEYS}))
    with server.client(url) as client:
        pid = int(client.info("server")["process_id"])
    options = ("--rate-limit", "500", "--timeout", "1", "--retries", "0", "--json")
    process = start("migrate", url, tmp_path / "t.db", *options)
    wait_until(lambda: has_memories(tmp_path / "t.db"))
    os.kill(pid, signal.SIGSTOP)
    try:
        output, said = process.communicate(timeout=30)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert process.returncode == 3, said
    assert "has not answered for 1 seconds" in said
    assert json.loads(output)["memories"]["written"] > 0
    again = start("migrate", url, tmp_path / "t.db", "--json")
    output, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert len(contents(f"sqlite:///{tmp_path}/t.db")) == len(KEYS)


@pytest.mark.slow
def test_transfer_source_that_grows_meanwhile_is_no_difference(
    run: Run, source: Path, tmp_path: Path
) -> None:

    with sqlite3.connect(source) as database:
        database.execute("PRAGMA journal_mode = WAL")  # else the agent waits for the end
    process = start("migrate", source, tmp_path / "t.db", "--rate-limit", "500", "--json")
    wait_until(lambda: has_memories(tmp_path / "t.db"))
    add(source, KEYS[0], samples.entries(5, start=100), 100)
    add(source, ONE, samples.entries(5), 0)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert json.loads(output)["verified"] is True
    assert "10 messages added to the source meanwhile" in said
    again = report(run("migrate", source, tmp_path / "t.db", "--json"))
    assert again["messages"]["written"] == 10


def test_transfer_agent_can_write_to_a_file_that_is_read_for_long(
    source: Path, tmp_path: Path
) -> None:
    options = ("--rate-limit", "200", "--no-verify", "--json")
    process = start("migrate", source, tmp_path / "t.db", *options)
    wait_until(lambda: has_memories(tmp_path / "t.db"))
    with sqlite3.connect(source, timeout=5) as database:  # the default of Python
        database.execute("DELETE FROM message WHERE session_id = ?", (KEYS[-1].session,))
    assert process.poll() is None, "it was still being read"
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    found = json.loads(output)
    assert found["messages"]["written"] == 100 * len(KEYS), "as of the moment when it began"
    assert not list(Path(tempfile.gettempdir()).glob(".memctl-*/copy.db"))


@pytest.mark.slow
def test_transfer_writers_that_replace_do_not_lock_each_other_out(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    target = servers.mariadb.fresh()
    sources = [f"{tmp_path}/{name}.ndjson" for name in ("old", "new")]
    for number, source in enumerate(sources):
        entries = samples.entries(20, start=20 * number)
        asyncio.run(fill(source, dict.fromkeys(KEYS, entries)))
    assert run("migrate", sources[0], target).exit_code == 0
    options = ("--on-conflict", "replace", "--yes", "--jobs", "4", "--json")
    for source in reversed(sources * 2):
        before = servers.mariadb.dump(target)
        done = run("migrate", source, target, *options)
        assert "trying again" not in done.stderr
        found = report(done)
        assert found["messages"]["deleted"] == 20 * len(KEYS)
    assert run("undo", found["run"], "--store", target).exit_code == 0
    assert servers.mariadb.dump(target) == before


@pytest.mark.parametrize(("copied", "missing"), [(0, 0), (2, 1)])
def test_transfer_memory_that_was_empty_may_have_grown(
    redis_url: str, tmp_path: Path, copied: int, missing: int
) -> None:
    """Redis holds no memory without messages: it was not given one that was empty."""
    text = f"{tmp_path}/source.db"
    asyncio.run(fill(text, {ONE: samples.entries(2)}))

    async def compared() -> CompareReport:
        async with (
            make_store(parse(text)) as left,
            make_store(parse(redis_url)) as right,
        ):
            return await compare(left, right, Selection(), {ONE: copied})

    found = asyncio.run(compared())
    assert (found.missing, found.grown) == (missing, 2 if not missing else 0)
