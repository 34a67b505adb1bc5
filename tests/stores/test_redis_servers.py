"""Redis servers that hang, refuse, forget or are addressed wrongly."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis import exceptions

from memctl.engines.redis.pipeline import Pipeline, in_thread
from memctl.engines.redis.server import OPTIONS, RedisServer, translate_error
from memctl.errors import Lost, NotFound, Unavailable, UsageError
from memctl.registry import parse
from memctl.stores.agentscope1.redis.store import RedisMemoryStore
from tests.support.processes import start, wait_until
from tests.support.redis_memories import (
    BASE,
    KEY,
    large,
    make_messages,
    marks,
    page,
    put,
    read,
    store_of,
    write,
)
from tests.support.servers.pool import Servers

SCHEMES = ("redis", "rediss")


# Servers
async def test_cancelling_leaves_a_server_that_hangs(client: redis.Redis, redis_url: str) -> None:
    """Ctrl-C while Redis is busy: the waiting thread ends at once."""
    put(client, BASE, ["a"])
    async with store_of(redis_url) as store:
        # Not DEBUG SLEEP, which Redis 7 and later refuse by default.
        client.client_pause(3000)
        task = asyncio.create_task(read(store))
        await asyncio.sleep(0.3)
        start = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - start < 1
        assert set(await read(store)) == {KEY}


class Silent(NamedTuple):
    """Something that takes connections, reads, and never answers."""

    port: int
    links: list[socket.socket]


@pytest.fixture
def silent() -> Iterator[Silent]:
    links: list[socket.socket] = []

    def read_all(link: socket.socket) -> None:
        while link.recv(4096):
            pass

    def accept() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:  # shut down
                return
            links.append(link)
            threading.Thread(target=read_all, args=[link], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield Silent(listener.getsockname()[1], links)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for link in links:
        link.shutdown(socket.SHUT_RDWR)
        link.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_connecting_times_out(silent: Silent, scheme: str) -> None:
    with pytest.raises(Unavailable, match="Timeout") as late:
        async with store_of(f"{scheme}://127.0.0.1:{silent.port}", "socket_connect_timeout=0.5"):
            pass
    assert "TLS for rediss://" in str(late.value.hint)


def test_connecting_that_times_out_is_one_error(silent: Silent) -> None:
    urls = [f"{scheme}://127.0.0.1:{silent.port}?socket_connect_timeout=1" for scheme in SCHEMES]
    for process in [start("inspect", url) for url in urls]:
        _, said = process.communicate(timeout=30)
        assert process.returncode == Unavailable.exit_code, said


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_connecting_stops_at_a_signal(
    silent: Silent, scheme: str, number: signal.Signals, code: int
) -> None:
    process = start("inspect", f"{scheme}://127.0.0.1:{silent.port}")
    wait_until(lambda: silent.links)
    process.send_signal(number)
    _, said = process.communicate(timeout=8)  # it would give up by itself after 10 s
    assert process.returncode == code, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_thread_in_openssl_does_not_crash_the_end(tmp_path: Path) -> None:
    """A connection may still be made when memctl ends: exit() takes OpenSSL apart."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import ssl, sys, threading, time\n"
        "from memctl import cli\n"
        "def connect():\n"
        "    while True:\n"
        "        ssl.create_default_context()\n"
        "def app():\n"
        "    for _ in range(3):\n"
        "        threading.Thread(target=connect, daemon=True).start()\n"
        "    time.sleep(0.1)\n"
        "    print('said')\n"
        "    sys.exit(3)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    for _ in range(4):
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (3, "said\n")


async def test_connecting_closes_a_connection_that_comes_too_late(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(parse(f"{redis_url}?client_name=late"))
    connected, may_go, gone = threading.Event(), threading.Event(), threading.Event()
    acquire, release = server.acquire, server.release
    monkeypatch.setattr(server, "acquire", lambda: (acquire(), connected.set(), may_go.wait(10))[0])
    monkeypatch.setattr(server, "release", lambda link: (release(link), gone.set()))

    async def connect() -> None:
        async with server.pipeline():
            pass

    def names() -> list[str]:
        return [each["name"] for each in client.client_list()]

    task = asyncio.create_task(connect())
    assert await asyncio.to_thread(connected.wait, 10)
    assert "late" in names()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go.set()
    assert await asyncio.to_thread(gone.wait, 10)
    await asyncio.sleep(0.1)  # until the server sees it
    assert "late" not in names()
    await server.close()


async def test_replies_are_not_limited_by_the_connect_timeout(
    client: redis.Redis, redis_url: str
) -> None:
    server = RedisServer(parse(f"{redis_url}?socket_connect_timeout=0.5"))
    slow = (b"EVAL", b"while redis.call('TIME')[1] < ARGV[1] do end", b"0")
    async with server.pipeline() as pipeline:
        until = b"%d" % (client.time()[0] + 2)
        assert await in_thread(pipeline, lambda: pipeline.execute([(*slow, until)])) == [None]
    await server.close()


async def test_password_comes_from_the_environment(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.redis_with("password", password="a:b@/%")
    url = server.url(3, password="")
    monkeypatch.setenv("REDISCLI_AUTH", "a:b@/%")
    async with store_of(url) as store:
        assert await read(store) == {}
    monkeypatch.setenv("REDISCLI_AUTH", "wrong")
    with pytest.raises(Unavailable, match="refuses the login"):
        async with store_of(url):
            pass
    async with store_of(server.url(3)) as store:
        assert await read(store) == {}


async def test_errors_name_why_writes_are_refused(servers: Servers) -> None:
    """A server without the replicas that it wants; and it is said before anything is half done."""
    server = servers.redis_with("no-replicas", "--min-replicas-to-write", "1")
    async with store_of(server.url(1)) as store:
        assert await read(store) == {}
        for pages in ([page(make_messages(2))], large(make_messages(2))):
            with pytest.raises(Unavailable, match="redis refuses writes") as refused:
                await write(store, *pages)
            assert refused.value.hint
        assert await read(store) == {}


async def test_errors_name_what_an_acl_forbids(servers: Servers) -> None:
    """Reading without the right to read is no empty store."""
    server = servers.redis_with("acl")
    with server.client(server.url(0)) as client:
        client.acl_setuser(
            "looker", enabled=True, passwords=["+pw"], keys=["app:*"], commands=["+@all", "-lrange"]
        )
        put(client, f"app:{BASE}", ["a"])
    url = f"redis://looker:pw@127.0.0.1:{server.port}/0"
    async with store_of(url, "prefix=app:") as store:
        with pytest.raises(Unavailable, match="forbids a command"):
            await read(store)
    async with store_of(url, "prefix=other:") as store:
        with pytest.raises(Unavailable, match="forbids a command"):
            await write(store, page(make_messages(1)))


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost/zero",
        "redis://:pa/ss@localhost",
        "redis://user:pa?ss@localhost",
        "redis://user:p:pa#ss@localhost",
        "redis://localhost:port",
        "redis://localhost?no_such_option=1",
        "redis://localhost?db=zero",
        "rediss://localhost?ssl_cert_reqs=perhaps",
        "redis://localhost?ttl=soon",
        "redis://localhost?ttl=-1",
        "redis://localhost?ttl=inf",
    ],
)
def test_url_that_is_not_valid_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as wrong:
        RedisMemoryStore(parse(url))
    assert "pa" not in wrong.value.message.replace("has an option that", "")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        (
            "redis://localhost?pefix=x",
            "prefix, ttl, state, layout, and those of redis-py: .*client_name",
        ),
        ("redis://localhost?pefix=", "prefix"),
        ("redis://localhost?redis_connect_func=print", "socket_timeout"),
        ("redis://localhost?ssl_ca_certs=x", "rediss://"),
        ("unix:///socket?socket_keepalive=1", "prefix"),
    ],
)
def test_url_with_an_unknown_option_is_refused(url: str, hint: str) -> None:
    with pytest.raises(UsageError) as wrong:
        RedisMemoryStore(parse(url))
    assert url.partition("?")[2].partition("=")[0] in wrong.value.message
    assert wrong.value.hint
    assert re.search(hint, wrong.value.hint)


@pytest.mark.parametrize("scheme", list(OPTIONS))
def test_url_takes_every_listed_option(scheme: str) -> None:
    values = {
        "db": "1",
        "max_connections": "5",
        "protocol": "3",
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": "false",
        "ssl_exclude_verify_flags": "VERIFY_X509_STRICT",
        "ssl_include_verify_flags": "VERIFY_X509_STRICT",
    }
    for name in OPTIONS[scheme]:
        RedisMemoryStore(parse(f"{scheme}://localhost/1?{name}={values.get(name, 1)}"))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://{'a' * 64}.example",
        "redis://localhost?socket_connect_timeout=-1",
        "redis://localhost?socket_connect_timeout=inf",
    ],
)
async def test_url_that_python_refuses_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not valid"):
        async with RedisMemoryStore(parse(url)):
            pass


@pytest.mark.parametrize("number", [1 << 20, -1, 1 << 40])
async def test_database_that_does_not_exist_is_not_found(servers: Servers, number: int) -> None:
    with pytest.raises(NotFound, match="does not exist") as wrong:
        async with store_of(servers.redis.url(0), f"db={number}"):
            pass
    assert "0 to 15" in str(wrong.value.hint)


async def test_url_of_a_socket_has_several_spellings(servers: Servers) -> None:
    path = servers.redis.socket
    places = [f"unix://{path}?db=7", f"unix:{path}?db=7", f"redis+unix://{path}?db=7"]
    identities = set()
    for place in places:
        async with RedisMemoryStore(parse(place)) as store:
            identities.add(await store.identity())
    async with store_of(servers.redis.url(7)) as store:
        identities.add(await store.identity())
    assert len(identities) == 1


async def test_url_options_do_not_change_what_is_read(client: redis.Redis, redis_url: str) -> None:
    put(client, BASE, ["a"], hint=["a"])
    options = "decode_responses=true&protocol=3&socket_timeout=20&health_check_interval=1"
    async with store_of(redis_url, options) as store:
        assert marks((await read(store))[KEY]) == {"a": ("hint",)}


async def test_pipeline_sends_no_more_commands_than_asked(servers: Servers) -> None:
    server = RedisServer(parse(servers.redis.fresh()))
    async with server.pipeline() as pipeline:

        def ask() -> int:
            taken = most = 0

            def commands() -> Iterator[tuple[bytes, ...]]:
                nonlocal taken
                for number in range(1000):
                    taken += 1
                    yield (b"SET", b"k%d" % number, b"v" * (200_000 if number % 50 == 0 else 10))

            for count, _ in enumerate(pipeline.stream(commands(), ahead=lambda: 8)):
                most = max(most, taken - count)
            return most

        assert await in_thread(pipeline, ask) == 8
    await server.close()


@pytest.mark.parametrize("abort", [True, False])
async def test_pipeline_that_broke_does_not_reconnect(
    client: redis.Redis, redis_url: str, abort: bool
) -> None:
    """The rest of a transaction would run outside of it."""
    server = RedisServer(parse(redis_url))

    def commands(pipeline: Pipeline, number: int) -> Iterator[tuple[bytes, ...]]:
        yield (b"MULTI",)
        yield (b"SET", b"first", b"1")
        if abort:
            pipeline.abort()
        else:
            client.execute_command("CLIENT", "KILL", "ID", str(number))
        for number in range(2000):
            yield (b"SET", b"k%d" % number, b"v" * 1000)
        yield (b"EXEC",)

    async with server.pipeline() as pipeline:
        [number] = pipeline.execute([(b"CLIENT", b"ID")])
        with pytest.raises(Unavailable):
            pipeline.execute(commands(pipeline, number))
        with pytest.raises(Unavailable):
            pipeline.execute([(b"SET", b"last", b"1")])
    assert client.dbsize() == 0
    async with server.pipeline() as pipeline:
        assert pipeline.execute([(b"PING",)]) == [b"PONG"]
    await server.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionError("Connection closed by server."), Lost),
        (exceptions.ConnectionError("Error 111 connecting to x:1. Connection refused."), Lost),
        (exceptions.TimeoutError("Timeout reading from socket"), Lost),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), Lost),
        (exceptions.MasterDownError("Link with MASTER is down"), Lost),
        (exceptions.ResponseError("LOADING Redis is loading the dataset in memory"), Lost),
        (exceptions.ResponseError("MASTERDOWN Link with MASTER is down"), Lost),
        (exceptions.ResponseError("READONLY You can't write against a read only replica."), Lost),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), Lost),
        (exceptions.ResponseError("TRYAGAIN Multiple keys request during rehashing"), Lost),
        (exceptions.ConnectionError("SSL: WRONG_VERSION_NUMBER"), Unavailable),
        (exceptions.AuthenticationError("invalid username-password pair"), Unavailable),
        (exceptions.ResponseError("NOAUTH Authentication required."), Unavailable),
        (exceptions.ResponseError("NOPERM this user has no permissions"), Unavailable),
        (exceptions.ResponseError("OOM command not allowed"), Unavailable),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), Unavailable),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), Unavailable),
        (exceptions.ResponseError("EXECABORT Transaction discarded"), Unavailable),
    ],
)
def test_errors_tell_what_another_try_may_help(
    error: exceptions.RedisError, kind: type[Unavailable]
) -> None:
    found = translate_error(error, "redis://host/0")
    assert type(found) is kind
    assert found.hint


async def test_host_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(Unavailable) as wrong:
        async with store_of("redis://no-such-host.invalid"):
            pass
    lasting = "not known" in wrong.value.message or "No address" in wrong.value.message
    assert type(wrong.value) is (Unavailable if lasting else Lost)
