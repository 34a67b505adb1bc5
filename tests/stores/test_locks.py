"""Tests of locks whose server, file system or holder fails."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from memctl.engines.redis import lock
from memctl.engines.sql.mysql import MysqlLock
from memctl.engines.sql.postgresql import PostgresqlLock
from memctl.errors import Busy, Unavailable
from memctl.registry import make_store, parse
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
    monkeypatch.setattr(lock, "LEASE_SECONDS", 3 * PERIOD)
    for kind in (PostgresqlLock, MysqlLock):
        monkeypatch.setattr(kind, "period", PERIOD)


def target(url: str) -> Store:
    """A store to write to."""
    return make_store(parse(url), OpenMode.CREATE)


@pytest.fixture(params=["postgresql", "mysql", "redis"])
def server(request: pytest.FixtureRequest, servers: Servers) -> Any:
    """Each server in turn."""
    name = "mariadb" if request.param == "mysql" else request.param
    return getattr(servers, name)


async def held_by(url: str) -> str | None:
    """Return the holder that another run is shown; None where it gets the lock."""
    async with target(url) as store:
        try:
            await store.lock(THIRD)
        except Busy as error:
            return error.message
    return None


async def test_lock_that_was_lost_is_taken_again(server: Any) -> None:
    url = server.fresh()
    async with target(url) as store:
        await store.lock(FIRST)
        for _ in range(3):
            server.cut(url)
            await asyncio.sleep(3 * PERIOD)
            said = await held_by(url)
            assert said is not None
            assert FIRST in said
        assert store.warnings == []
    assert await held_by(url) is None


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


async def test_lock_schemas_have_locks_of_their_own(servers: Servers) -> None:
    url = servers.postgresql.fresh()
    servers.postgresql.execute(url, "CREATE SCHEMA other")
    other = f"{url}?options=-csearch_path%3Dother"
    async with target(url) as store, target(other) as beside:
        await store.lock(FIRST)
        await beside.lock(SECOND)
        assert FIRST in str(await held_by(url))
        assert SECOND in str(await held_by(other))


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
