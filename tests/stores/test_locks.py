"""Tests of locks whose server, file system or holder fails."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pymysql
import pytest

from memctl.engines.sql.mysql import MysqlLock
from memctl.engines.sql.postgresql import PostgresqlLock
from memctl.errors import Busy, Unavailable
from memctl.registry import make_store, parse
from memctl.shard import Shard
from memctl.store import OpenMode, Store
from memctl.storekit import locks
from memctl.storekit.locks import FileLock
from memctl.testing.lock_holder import lock_elsewhere
from tests.support.servers.pool import Servers

FIRST = "pid 4242 since 2026-11-21T02:17:53Z on web-1"
SECOND = "pid 4243 since 2026-11-21T02:18:00Z on web-2"
THIRD = "pid 4244 since 2026-11-21T02:19:00Z on web-3"
PERIOD = 0.2


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no test waits long."""
    monkeypatch.setattr("memctl.engines.redis.server.LEASE_SECONDS", 3 * PERIOD)
    for kind in (PostgresqlLock, MysqlLock):
        monkeypatch.setattr(kind, "period", PERIOD)


def target(url: str, shard: str = "") -> Store:
    """A store to write to, limited to a shard if one is named."""
    store = make_store(parse(url), OpenMode.CREATE)
    store.shard = Shard.parse(shard) if shard else None
    return store


@pytest.fixture(params=["postgresql", "mysql", "redis"])
def server(request: pytest.FixtureRequest, servers: Servers) -> Any:
    """Each server in turn."""
    name = "mariadb" if request.param == "mysql" else request.param
    return getattr(servers, name)


@pytest.fixture(params=["postgresql", "mysql", "redis", "tablestore", "folder"])
def divided(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """The location of a store that has a lock for each shard: each kind of lock in turn."""
    if request.param == "folder":
        return str(tmp_path / "sessions")
    name = "mariadb" if request.param == "mysql" else request.param
    return str(getattr(servers, name).fresh())


async def held_by(url: str, shard: str = "") -> str | None:
    """Return the holder that another run is shown; None where it gets the lock."""
    async with target(url, shard) as store:
        try:
            await store.lock(THIRD)
        except Busy as error:
            return error.message
    return None


async def test_lock_of_a_shard_leaves_other_shards_to_other_runs(divided: str) -> None:
    async with target(divided, "3/4") as last:
        await last.lock(FIRST)
        async with target(divided, "0/4") as first, target(divided, "0/3") as third:
            await first.lock(FIRST)  # by the same process
            await third.lock(SECOND)
            assert f"shard 0/4, {FIRST}" in str(await held_by(divided, "0/4"))
            assert f"shard 0/3, {SECOND}" in str(await held_by(divided, "0/3"))
            assert "shard " in str(await held_by(divided))
        assert await held_by(divided, "0/4") is None
        assert f"shard 3/4, {FIRST}" in str(await held_by(divided))
    assert await held_by(divided) is None


@pytest.mark.slow
async def test_lock_of_a_shard_is_refused_while_the_whole_is_locked(divided: str) -> None:
    async with target(divided) as store:
        await store.lock(FIRST)
        said = str(await held_by(divided, "0/4"))
        assert f"run, {FIRST}, is" in said  # no shard
        assert FIRST in str(await held_by(divided))
    assert await held_by(divided, "0/4") is None


@pytest.mark.slow
async def test_lock_of_a_shard_ends_with_a_killed_run(divided: str) -> None:
    holder = "tests.support.lock_holder"
    with (
        lock_elsewhere(divided, FIRST, holder, "0/4") as one,
        lock_elsewhere(divided, FIRST, holder, "1/4") as two,
    ):
        async with target(divided, "2/4") as other:
            await other.lock(SECOND)
            for killed in one, two:
                killed.kill()
                killed.wait()
            await free_soon(divided, "0/4")
            assert "shard " in str(await held_by(divided))
        await free_soon(divided)  # although nobody ran 1/4 again


async def free_soon(url: str, shard: str = "") -> None:
    """Wait until another run gets the lock."""
    deadline = time.monotonic() + 15
    while await held_by(url, shard) is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("shard", ["", "3/4"], ids=["whole", "shard"])
async def test_lock_that_was_lost_is_taken_again(server: Any, shard: str) -> None:
    url = server.fresh()
    async with target(url, shard) as store:
        await store.lock(FIRST)
        for _ in range(2):
            server.cut(url)
            await asyncio.sleep(3 * PERIOD)
            for other in (shard, ""):
                assert FIRST in str(await held_by(url, other))
        assert store.warnings == []
    assert await held_by(url) is None


@pytest.mark.slow
async def test_lock_run_that_comes_back_is_not_kept_out_by_itself(server: Any) -> None:
    """As after a lost connection of which the server has not noticed the end."""
    url = server.fresh()
    with lock_elsewhere(url, FIRST) as lost:
        await asyncio.sleep(PERIOD)  # MySQL knows by then whose lock it is
        lost.send_signal(signal.SIGSTOP)
        try:
            async with target(url) as store:
                await store.lock(FIRST)
                await asyncio.sleep(2 * PERIOD)
                assert FIRST in str(await held_by(url))
                assert store.warnings == []
        finally:
            lost.kill()


async def test_lock_key_that_was_deleted_is_set_again(servers: Servers) -> None:
    url = servers.redis.fresh()
    async with target(url) as store:
        await store.lock(FIRST)
        with servers.redis.client(url) as client:
            client.flushdb()
            await asyncio.sleep(2 * PERIOD)
            assert FIRST in str(client.get("memctl:lock:memory"))
            assert 0 < int(str(client.pttl("memctl:lock:memory"))) <= 3000 * PERIOD
    assert servers.redis.dump(url) == {}


async def test_lock_another_run_may_have_the_lock_by_then(servers: Servers) -> None:
    """The first goes on, says so at its end, and leaves the lock of the other alone."""
    url = servers.redis.fresh()
    async with target(url) as first, target(url) as second:
        await first.lock(FIRST)
        with servers.redis.client(url) as client:
            client.delete("memctl:lock:memory")
        await second.lock(SECOND)
        await asyncio.sleep(2 * PERIOD)
        await first.close()
        [warning] = first.warnings
        assert SECOND in warning
        assert second.warnings == []
        assert SECOND in str(await held_by(url))
    assert await held_by(url) is None


async def test_lock_server_that_is_gone_holds_nobody_up(servers: Servers) -> None:
    server = servers.redis_with("gone")
    url = server.fresh()
    async with target(url) as store:
        await store.lock(FIRST)
        with server.client(url) as client:
            client.shutdown(nosave=True)
        await asyncio.sleep(2 * PERIOD)


async def test_lock_both_redis_stores_of_a_prefix_have_locks(servers: Servers) -> None:
    url = servers.redis.fresh()
    async with target(f"{url}?prefix=app:&state=redis") as store:
        await store.lock(FIRST)
        with servers.redis.client(url) as client:
            assert set(client.keys()) == {b"app:memctl:lock:memory", b"app:memctl:lock:session"}
        async with target(f"{url}?layout=session&prefix=app:") as states:
            with pytest.raises(Busy, match="4242"):
                await states.lock(SECOND)
        async with target(f"{url}?prefix=other:") as other:
            await other.lock(SECOND)
    assert servers.redis.dump(url) == {}


@pytest.mark.slow
async def test_lock_schemas_have_locks_of_their_own(servers: Servers) -> None:
    url = servers.postgresql.fresh()
    servers.postgresql.execute(url, "CREATE SCHEMA other")
    other = f"{url}?options=-csearch_path%3Dother"
    for shard in "", "0/4":
        async with target(url, shard) as store, target(other, shard) as beside:
            await store.lock(FIRST)
            await beside.lock(SECOND)
            assert FIRST in str(await held_by(url, shard))
            assert SECOND in str(await held_by(other, shard))


async def test_lock_another_login_sees_the_connection_at_least(servers: Servers) -> None:
    url = servers.mariadb.fresh()
    name = url.rpartition("/")[2]
    with pymysql.connect(unix_socket=servers.mariadb.socket, user="root") as root:
        root.cursor().execute("CREATE USER plain@'%' IDENTIFIED BY 'plain'")
        root.cursor().execute(f"GRANT ALL ON {name}.* TO plain@'%'")
    async with target(url) as store:
        await store.lock(FIRST)
        plain = servers.mariadb.url(name, user="plain", password="plain")
        said = await held_by(plain)
        assert said is not None
        assert "connection " in said
    assert await held_by(plain) is None


async def test_lock_end_of_a_run_waits_for_no_period(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although MySQL looks after the lock by statements that sleep."""
    monkeypatch.setattr(MysqlLock, "period", 60)
    url = servers.mariadb.fresh()
    async with target(url) as store:
        await store.lock(FIRST)
        assert FIRST in str(await held_by(url))
        async with asyncio.timeout(4):  # by itself the server looks every 5 seconds
            await store.close()
            assert await held_by(url) is None


@pytest.mark.slow
async def test_lock_two_logins_of_postgresql(servers: Servers) -> None:
    """Also the one that may not see what the other does."""
    url = servers.postgresql.fresh()
    async with target(url) as store:
        await store.lock(FIRST)
        assert FIRST in str(await held_by(servers.postgresql.admin_url(url)))
    async with target(servers.postgresql.admin_url(url)) as store:
        await store.lock(FIRST)
        assert FIRST in str(await held_by(url))


# Files


def test_lock_file_that_a_killed_run_left(tmp_path: Path) -> None:
    left = tmp_path / ".x.db.memctl-lock"
    left.write_text("pid 1 since ever on a-machine-with-a-long-name\n")
    held = FileLock(tmp_path / "x.db", "x.db")
    assert held.take(FIRST) == []
    assert left.read_text() == f"{FIRST}\n"
    assert left.stat().st_mode & 0o777 == 0o644
    with pytest.raises(Busy, match="4242"):
        FileLock(tmp_path / "x.db", "x.db").take(SECOND)
    assert left.read_text() == f"{FIRST}\n"
    held.release()
    held.release()
    assert list(tmp_path.iterdir()) == []


async def test_lock_of_a_task_that_is_cancelled_meanwhile(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "agents.db", "agents.db")
    for _ in range(5):
        task = asyncio.create_task(lock.take_in_thread(FIRST))
        await asyncio.sleep(0)  # the thread begins
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not os.listdir(tmp_path)


def test_lock_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    held = FileLock(folder, "sessions")
    held.take(FIRST)
    (folder / ".memctl-lock").unlink()
    with FileLock(folder, "sessions").held(SECOND):
        held.release()
        assert (folder / ".memctl-lock").read_text() == f"{SECOND}\n"
    assert list(folder.iterdir()) == []


def test_lock_holder_that_never_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PAUSES", (0.001, 0.001))
    with open(tmp_path / ".x.db.memctl-lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="another memctl run is writing to x"):
            FileLock(tmp_path / "x.db", "x").take(SECOND)


def test_lock_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "read-only")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Unavailable, match="read-only"):
        FileLock(tmp_path / "x.db", "x").take(FIRST)


def test_lock_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    held = FileLock(tmp_path / "x.db", "x")
    [warning] = held.take(FIRST)
    assert "without locks" in warning
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_lock_no_text_of_another_program_reaches_the_terminal(tmp_path: Path) -> None:
    with open(tmp_path / ".x.db.memctl-lock", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"\x1b[31m\xff\nsecond line")
        other.flush()
        with pytest.raises(Busy) as caught:
            FileLock(tmp_path / "x.db", "x").take(SECOND)
    assert caught.value.message.isprintable()
