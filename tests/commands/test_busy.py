"""Two runs into one target: the second says so, ends with 75 and writes nothing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

import asyncpg
import pytest

from memctl.errors import Uninitialised
from memctl.ops.copy.migration import NewTarget
from memctl.ops.report import CopyReport
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write
from memctl.testing.lock_holder import lock_elsewhere
from tests.support.cli import Run, fails, fill, report
from tests.support.processes import start
from tests.support.servers.pool import Servers

KEYS = [samples.key(number) for number in range(3)]
OTHER = samples.key(90)
LARGE = [samples.key(number) for number in range(40)]
HOLDER = "pid 4242 since 2026-11-21T02:17:53Z on web-1 (ada)"


@pytest.fixture(
    params=["x.db", "x.ndjson", "sessions", "postgresql", "mysql", "redis", "redis-both"]
)
def target(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """An empty target, as a user writes it."""
    match request.param:
        case "postgresql":
            return servers.postgresql.fresh()
        case "mysql":
            return servers.mariadb.fresh()
        case "redis":
            return servers.redis.fresh()
        case "redis-both":
            return f"{servers.redis.fresh()}?state=redis"
        case name:
            return str(tmp_path / name)


def locked(text: str) -> AbstractContextManager[object]:
    """Another process that holds the lock of the place."""
    return lock_elsewhere(text, HOLDER)


def keys(text: str) -> set[object]:
    """The names of the memories that are there."""

    async def found() -> set[object]:
        async with make_store(parse(text)) as store:
            return {memory.key async for memory in store.headers(Selection())}

    return asyncio.run(found())


def memctl(*arguments: object) -> subprocess.Popen[str]:
    """memctl as a process of its own."""
    return start(*arguments, stdin=subprocess.PIPE)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A source of three memories."""
    path = str(tmp_path / "source.ndjson")
    asyncio.run(fill(path, {key: samples.entries(5) for key in KEYS}))
    return path


@pytest.mark.slow
def test_lock_second_run_is_busy(run: Run, source: str, target: str) -> None:
    asyncio.run(fill(target, {OTHER: samples.entries(2)}))
    with locked(target):
        result = run("migrate", source, target)
        fails(result, 75, "another memctl run, pid 4242 since 2026-11-21T02:17:53Z on web-1")
        assert "hint: wait for it to end" in result.stderr
        found = report(run("migrate", source, target, "--json"), 75)
        assert found["error"]["code"] == "busy"
        assert "pid 4242" in found["error"]["message"]
        assert found["error"]["hint"]
        assert keys(target) == {OTHER}
        assert run("migrate", source, target, "--dry-run").exit_code == 0
        assert run("inspect", target).exit_code == 0
        assert run("export", target, "--as", "archive").exit_code == 0
        assert run("verify", target, target).exit_code == 0
    assert run("migrate", source, target).exit_code == 0
    assert keys(target) == {OTHER, *KEYS}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x.db", "sessions", "postgresql", "redis-both"], indirect=True)
def test_lock_of_a_shard_leaves_the_rest_to_other_runs(run: Run, source: str, target: str) -> None:
    one_file = target.endswith(".db")
    asyncio.run(fill(target, {OTHER: samples.entries(2)}))
    with lock_elsewhere(target, HOLDER, shard="0/2"):
        held = "pid 4242" if one_file else "shard 0/2, pid 4242"
        for shard in [], ["--shard", "0/2"]:
            fails(run("migrate", source, target, *shard), 75, held)
        fails(run("erase", target, "--user", OTHER.user, "--yes"), 75, held)
        assert keys(target) == {OTHER}
        code = run("migrate", source, target, "--shard", "1/2").exit_code
        assert code == (75 if one_file else 0)
    expected = {key for key in KEYS if Shard(1, 2).has(key)}
    assert keys(target) == {OTHER, *(() if one_file else expected)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A source that takes a while to copy: 40 memories of 1,000 messages."""
    path = str(tmp_path_factory.mktemp("large") / "large.ndjson")
    memories = {key: samples.entries(1000) for key in LARGE}
    asyncio.run(fill(path, memories))
    return path


def is_writing(target: str, folder: Path) -> bool:
    """Return whether a run has the lock: its file is signed, or something was written under it."""
    if "://" not in target:
        return any(path.read_text() for path in folder.rglob(".*memctl-lock"))
    try:
        return bool(keys(target))
    except Uninitialised:
        return False


@pytest.mark.slow
def test_lock_two_processes(source: str, large: str, target: str, tmp_path: Path) -> None:
    """The first is stopped while it writes, and goes on when the second has given up."""
    asyncio.run(fill(source, {OTHER: samples.entries(2)}))
    first = memctl("migrate", large, target, "--no-verify")
    try:
        deadline = time.monotonic() + 30
        while not is_writing(target, tmp_path):
            assert time.monotonic() < deadline
            assert first.poll() is None, first.communicate()
            time.sleep(0.005)
        first.send_signal(signal.SIGSTOP)
        second = memctl("migrate", source, target, "--json")
        output, said = second.communicate()
        assert second.returncode == 75, said
        message = json.loads(output)["error"]["message"]
        if target.startswith("mysql"):  # a run that is stopped says nothing there
            assert re.search(r"pid \d+ since|connection \d+ of the server", message)
        else:
            who = re.search(r"pid (\d+) since \S+Z on ([\w.-]+)", message)
            assert who, message
            assert int(who[1]) == first.pid
            assert socket.gethostname().startswith(who[2])
    finally:
        first.send_signal(signal.SIGCONT)
        said = first.communicate()[1]
    assert first.returncode == 0, said
    assert OTHER not in keys(target)
    assert len(keys(target)) == 40


@pytest.mark.slow
@pytest.mark.parametrize("command", ["migrate", "delete"])
def test_lock_suspended_run_writes_no_more_without_it(
    run: Run, large: str, servers: Servers, command: str
) -> None:
    """As a laptop that sleeps for longer than the lock lives, while another run has its turn."""
    url = servers.redis.fresh()
    asyncio.run(fill(url, {OTHER: samples.entries(2)}))
    if command == "delete":
        assert run("migrate", large, url, "--no-verify", "--no-backup").exit_code == 0
        users = [word for key in LARGE for word in ("--user", key.user)]
        words = ["delete", url, *users, "--yes"]
    else:
        words = ["migrate", large, url, "--no-verify"]
    before = keys(url)
    first = memctl(*words, "--json")
    try:
        deadline = time.monotonic() + 30
        while keys(url) == before:
            assert time.monotonic() < deadline
            assert first.poll() is None, first.communicate()
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        with servers.redis.client(url) as client:
            assert client.delete("memctl:lock:memory") == 1  # as at the end of its life
        assert run("mark", "add", url, "seen", "--user", OTHER.user).exit_code == 0
        there = keys(url)
    finally:
        first.send_signal(signal.SIGCONT)
        output, said = first.communicate()
    found = json.loads(output)
    changed = len(there ^ before)
    assert 0 < changed < len(LARGE)
    if command == "migrate":  # it takes the lock again, and compares the rest anew
        assert first.returncode == 0, said
        assert "was lost" in said
        assert keys(url) == {OTHER, *LARGE}
        assert found["memories"]["written"] == len(LARGE)
    else:
        assert first.returncode == 75, said
        assert "was lost" in found["error"]["message"]
        # One transaction, whose look at the lock came before the stop, may still be carried out.
        changed = len(keys(url) ^ before)
        assert changed < len(LARGE)
        assert found["memories"]["written"] == changed
    assert report(run("undo", found["run"], "--json"))["failures"] == []
    assert keys(url) == before
    marks = report(run("mark", "list", url, "--json"))["marks"]
    assert [one["messages"] for one in marks if one["mark"] == "seen"] == [2]


def test_lock_run_that_was_killed_is_in_nobodys_way(
    run: Run, source: str, large: str, tmp_path: Path
) -> None:
    target = tmp_path / "x.ndjson"
    lock = tmp_path / ".x.ndjson.memctl-lock"
    process = memctl("migrate", large, target)
    while process.poll() is None and not lock.exists():
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert lock.exists()
    assert run("migrate", source, target).exit_code == 0
    assert not lock.exists()
    lock.write_text("pid 1 since ever on nowhere\n")
    assert run("migrate", source, target).exit_code == 0
    assert not lock.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.ndjson", "x.json", "folder"])
def test_lock_export_over_what_another_run_writes(
    run: Run, source: str, tmp_path: Path, name: str
) -> None:
    shape = ("--as", "session-dir") if name == "folder" else ()
    one = ("--user", KEYS[0].user, "--session", KEYS[0].session)
    export = ("export", source, *one, *shape, "-o", tmp_path / name, "--force")
    with locked(str(tmp_path / name)):
        before = sorted(tmp_path.rglob("*"))
        fails(run(*export), 75, "pid 4242")
        assert sorted(tmp_path.rglob("*")) == before
    assert run(*export).exit_code == 0
    assert [path for path in tmp_path.rglob("*") if ".memctl-" in path.name] == []


@pytest.mark.slow
def test_lock_link_has_the_lock_of_its_file(run: Run, source: str, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real = tmp_path / "far" / "x.ndjson"
    link = tmp_path / "link.ndjson"
    link.symlink_to(real)
    with locked(str(link)):
        assert (tmp_path / "far" / ".x.ndjson.memctl-lock").exists()
        fails(run("migrate", source, real), 75, "pid 4242")
        fails(run("export", source, "-o", link), 75, "pid 4242")


@pytest.mark.slow
def test_lock_longest_name_has_a_lock(run: Run, source: str, tmp_path: Path) -> None:
    target = tmp_path / f"{'x' * 248}.ndjson"
    assert run("migrate", source, target).exit_code == 0
    with locked(str(target)):
        fails(run("migrate", source, target), 75, "pid 4242")


async def test_lock_new_target_of_another_run_is_not_removed(tmp_path: Path) -> None:
    """A run that fails takes its empty target away; by then it may be that of the next run."""
    path = tmp_path / "t.db"
    failed = NewTarget(parse(str(path)))
    async with make_store(parse(str(path)), OpenMode.CREATE) as other:
        await other.lock("another run")
        await failed.withdraw(CopyReport())
        assert path.exists()
    await failed.withdraw(CopyReport())
    assert not path.exists()


@pytest.mark.parametrize("words", [("inspect",), ("delete", "--last", "1", "--yes")])
def test_wait_for_another_program_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {OTHER: samples.entries(5)}))
    command, *options = words
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        process = memctl(command, path, *options)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == f"memctl: waiting for another program, which locks {path} (up to 30 s)\n"
        other.execute("ROLLBACK")
        _, rest = process.communicate()
    assert (process.returncode, rest) == (0, "")


async def test_wait_for_a_lock_in_postgresql_names_its_holder(postgresql_url: str) -> None:
    async with make_store(parse(postgresql_url), OpenMode.CREATE) as store:
        await write(store, [samples.sample(OTHER, samples.entries(5))])
    named = {"application_name": "the report"}
    other = await asyncpg.connect(postgresql_url, server_settings=named)
    try:
        await other.execute("BEGIN; LOCK TABLE message IN ACCESS EXCLUSIVE MODE")
        process = memctl("inspect", postgresql_url)
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        who = rf"waiting for the report \(\w+, pid {other.get_server_pid()}\), which locks "
        assert re.search(who, line), line
        await other.execute("ROLLBACK")
        _, rest = await asyncio.to_thread(process.communicate)
    finally:
        await other.close()
    assert (process.returncode, rest) == (0, "")
