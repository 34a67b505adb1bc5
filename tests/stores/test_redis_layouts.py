"""Layouts of Redis that are found by their keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from tests.support.cli import Run, fails, fill, report
from tests.support.processes import wait_until
from tests.support.redis_sessions import contents, history, message, put_session, record
from tests.support.servers.pool import Servers, start
from tests.support.servers.redis import redis_program

KEY = MemoryKey("u", "s")
SAID = [json.loads(samples.message("m1")), []]


def _memory(client: redis.Redis) -> None:
    client.rpush("user_id:u:session:s:messages", "m1")
    client.set("user_id:u:session:s:msg:m1", samples.message("m1"))


def _state(client: redis.Redis) -> None:
    state = {"memory": {"_compressed_summary": "", "content": [SAID]}}
    client.set("user_id:u:session:s:state", json.dumps(state))


def _agentscope2(client: redis.Redis) -> None:
    put_session(client, record([message("m1")]), [message("m1")])


def _history(client: redis.Redis) -> None:
    client.set("session:u:s", history("u", "s", ["m1"]), ex=1000)


def _runtime_memory(client: redis.Redis) -> None:
    client.hset("user_memory:u", "s", json.dumps([{"id": "m1", "role": "user"}]))


def _runtime_state(client: redis.Redis) -> None:
    state = {"memory": {"_compressed_summary": "", "content": [SAID]}}
    client.hset("user_state:u:s", "1", json.dumps(state))


def _nothing(_: redis.Redis) -> None:
    """Leave the database empty."""


FOUND: dict[str, tuple[Callable[[redis.Redis], None], str, str]] = {
    "nothing": (_nothing, "redis", "redis"),
    "memories": (_memory, "redis", "redis"),
    "states": (_state, "redis-session", "redis"),
    "sessions of 2.x": (_agentscope2, "redis-agentscope2", "redis-agentscope2"),
    "histories": (_history, "redis-runtime", "redis"),
    "memories of the runtime": (_runtime_memory, "redis-runtime", "redis"),
    "states of the runtime": (_runtime_state, "redis-runtime-state", "redis"),
}
"""What fills a database, and the kinds of store that it is to read and as a target."""


@pytest.mark.parametrize("words", ["delete --all", "delete --id m1", "erase --user u"])
@pytest.mark.parametrize("name", [name for name in FOUND if name != "nothing"])
def test_memory_that_expires_between_the_plan_and_the_change_is_skipped(
    run: Run,
    client: redis.Redis,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: str,
) -> None:
    filling, kind, _ = FOUND[name]
    if "runtime" in kind and not words.startswith("erase"):
        pytest.skip("memctl only reads and erases these")
    filling(client)
    keys = client.keys()
    command, *options = words.split()
    method = "erase" if command == "erase" else "edit"
    store = type(make_store(parse(f"{redis_url}?layout={kind.partition('-')[2] or 'memory'}")))
    change = getattr(store, method)

    def expire(self: Any, *arguments: Any) -> Any:
        for key in keys:
            client.pexpire(key, 1)
        time.sleep(0.01)
        return change(self, *arguments)

    monkeypatch.setattr(store, method, expire)
    result = run(command, redis_url, *options, "--yes")
    assert result.exit_code == 0, result.stderr
    assert not client.exists(*keys)


@pytest.mark.parametrize("name", FOUND)
async def test_layout_is_found(client: redis.Redis, redis_url: str, name: str) -> None:
    filling, kind, target = FOUND[name]
    filling(client)
    for mode, expected in (
        (OpenMode.READ, kind),
        (OpenMode.CHANGE, kind),
        (OpenMode.CREATE, target),
    ):
        async with make_store(parse(redis_url), mode) as store:
            assert store.kind == expected
            assert store.features == make_store(store.location).features


async def test_layout_of_memories_and_states_is_that_of_memories(
    client: redis.Redis, redis_url: str
) -> None:
    _memory(client)
    _state(client)
    async with make_store(parse(redis_url)) as store:
        assert store.kind == "redis"


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_layouts_that_are_several_are_named(
    client: redis.Redis, redis_url: str, run: Run, command: str
) -> None:
    _memory(client)
    _agentscope2(client)
    fails(run(command, redis_url), 2, "agentscope2, memory", "?layout=agentscope2")
    assert run("inspect", f"{redis_url}?layout=memory").exit_code == 0
    assert run("inspect", f"{redis_url}?layout=agentscope2").exit_code == 0


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_layout_that_is_unknown_is_no_empty_store(
    client: redis.Redis, redis_url: str, run: Run, command: str
) -> None:
    client.set("celery-task", "x")
    client.set("session:web:1", "another application's")
    client.rpush("user:7:cart", "x")
    result = run(command, redis_url)
    fails(result, 8, "keys that memctl does not know", "celery-task", "session:web:1")
    assert run(command, f"{redis_url}?layout=memory").exit_code == 0


def test_layout_of_memories_next_to_other_keys(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    _memory(client)
    client.set("celery-task", "x")
    client.set("session:web:1", "another application's")
    client.set("memctl:lock:memory", "x")
    assert report(run("inspect", redis_url, "--json"))["memories"]


def _other(client: redis.Redis) -> None:
    client.set("celery-task", "x")


@pytest.mark.parametrize("beside", [_nothing, _state, _history, _other])
def test_layout_is_found_by_an_undo_when_all_memories_are_gone(
    client: redis.Redis, redis_url: str, run: Run, beside: Callable[[redis.Redis], None]
) -> None:
    _memory(client)
    options = "?layout=memory" if beside is _history else ""
    beside(client)
    before = contents(client)
    assert run("delete", redis_url + options, "--all", "--yes").exit_code == 0
    assert contents(client) != before
    gone = contents(client)
    undone = report(run("undo", "--yes", "--json"))["run"]
    assert contents(client) == before
    again = report(run("undo", undone, "--yes", "--json"))["run"]
    assert contents(client) == gone
    assert run("undo", again, "--store", redis_url + options).exit_code == 0
    assert contents(client) == before


def test_undo_of_an_import_finds_the_layout_that_it_wrote(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path
) -> None:
    """The memories that an import adds go with its undo, and nothing but states is left."""
    _memory(client)
    assert run("export", redis_url, "-o", tmp_path / "all.ndjson").exit_code == 0
    client.flushdb()
    _state(client)
    before = contents(client)
    assert run("import", tmp_path / "all.ndjson", f"{redis_url}?layout=memory").exit_code == 0
    filled = contents(client)
    assert run("delete", redis_url, "--all", "--yes").exit_code == 0
    assert contents(client) == before
    assert run("undo", "--yes").exit_code == 0
    assert contents(client) == filled


async def test_layout_is_found_under_a_prefix(client: redis.Redis, redis_url: str) -> None:
    _memory(client)  # of another application
    await fill(f"{redis_url}?layout=agentscope2&prefix=app:", {KEY: samples.entries(0)})
    async with make_store(parse(f"{redis_url}?prefix=app:")) as store:
        assert store.kind == "redis-agentscope2"
    async with make_store(parse(redis_url)) as store:
        assert store.kind == "redis"


def test_layout_is_found_by_a_change_and_its_undo(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    _agentscope2(client)
    before = contents(client)
    assert run("delete", redis_url, "--id", "m1", "--yes").exit_code == 0
    assert client.llen("agentscope:user:u:session:s:messages") == 0
    assert run("undo", "--yes").exit_code == 0
    assert contents(client) == before


OTHERS = {
    "memory": _memory,
    "session": _state,
    "agentscope2": _agentscope2,
    "runtime": _history,
    "runtime-state": _runtime_state,
}
WRONG = [(there, named) for there in OTHERS for named in OTHERS if there != named]


@pytest.mark.parametrize(("there", "named"), WRONG)
def test_layout_that_is_not_there_is_refused_with_the_one_that_is(
    client: redis.Redis, redis_url: str, run: Run, there: str, named: str
) -> None:
    OTHERS[there](client)
    before = sorted(client.scan_iter())
    for command in (
        ("inspect",),
        ("doctor",),
        ("export", "-o", "-"),
        ("delete", "--all", "--dry-run"),
        ("delete", "--all", "--yes"),
    ):
        result = run(command[0], f"{redis_url}?layout={named}", *command[1:])
        fails(result, 8, f"no data of the layout {named}, but of {there}", f"?layout={there}")
    assert run("inspect", f"{redis_url}?layout={there}").exit_code == 0
    assert sorted(client.scan_iter()) == before


@pytest.mark.parametrize("named", OTHERS)
def test_layout_of_an_empty_database_may_be_any(
    client: redis.Redis, redis_url: str, run: Run, named: str
) -> None:
    url = f"{redis_url}?layout={named}"
    assert report(run("inspect", url, "--json"))["totals"]["memories"] == 0
    client.set("memctl:lock:memory", "x")
    client.set("celery-task", "x")
    assert report(run("inspect", url, "--json"))["totals"]["memories"] == 0


@pytest.mark.parametrize(("there", "named"), WRONG)
def test_layout_that_is_there_too_is_read(
    client: redis.Redis, redis_url: str, run: Run, there: str, named: str
) -> None:
    OTHERS[there](client)
    OTHERS[named](client)
    for layout in (there, named):
        found = report(run("inspect", f"{redis_url}?layout={layout}", "--json"))
        assert found["totals"]["memories"] == 1


@pytest.mark.parametrize(
    ("there", "named"), [pair for pair in WRONG if not pair[1].startswith("runtime")]
)
def test_layout_comes_to_a_database_that_has_another(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path, there: str, named: str
) -> None:
    OTHERS[there](client)
    source, target = f"sqlite:///{tmp_path}/m.db", f"{redis_url}?layout={named}"
    asyncio.run(fill(source, {MemoryKey("ada", "trip"): [samples.entry("m1")]}))
    for words in (("--dry-run",), ()):
        found = report(run("migrate", source, target, *words, "--json"))
        assert found["memories"]["written"] == 1
    for layout in (there, named):
        found = report(run("inspect", f"{redis_url}?layout={layout}", "--json"))
        assert found["totals"]["memories"] == 1


def test_layout_of_summaries_need_not_be_there(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path
) -> None:
    _memory(client)
    source = f"sqlite:///{tmp_path}/m.db"
    asyncio.run(fill(source, {KEY: [samples.entry("m1")]}))
    states = quote(f"{redis_url}?layout=session", safe="")
    assert report(run("inspect", f"{source}?state={states}", "--json"))["totals"]["memories"] == 1


def test_layout_that_is_gone_is_restored_next_to_another(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    _memory(client)
    _agentscope2(client)
    url = f"{redis_url}?layout=memory"
    before = report(run("inspect", url, "--json"))["totals"]
    assert run("delete", url, "--all", "--yes").exit_code == 0
    fails(run("inspect", url), 8, "no data of the layout memory, but of agentscope2")
    assert run("undo", "--dry-run").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert report(run("inspect", url, "--json"))["totals"] == before


def test_layout_under_a_prefix_that_nobody_gave(redis_url: str, run: Run) -> None:
    asyncio.run(fill(f"{redis_url}?prefix=app:", {KEY: samples.entries(2)}))
    fails(run("inspect", redis_url), 8, "app:user_id:", "hint: use ?prefix=app: to read")
    other = f"{redis_url}?prefix=other:"
    found = report(run("inspect", other, "--json"))
    assert found["totals"]["memories"] == 0
    [said] = found["warnings"]
    assert f"{other} has no key with the prefix 'other:', but others, such as app:user_id:" in said
    fails(run("inspect", other, "--user", "nobody"), 4, "but others, such as app:user_id:")
    assert "but others" not in run("inspect", f"{redis_url}?prefix=app:", "--mark", "no").stderr


def test_layout_of_a_database_next_to_one_with_keys(
    client: redis.Redis, servers: Servers, run: Run, tmp_path: Path
) -> None:
    _memory(client)
    free = servers.redis.fresh()
    number = free.rpartition("/")[2]
    exports = [("export", free, "-o", tmp_path / name) for name in ("a.html", "a.csv", "a.jsonl")]
    for words in (("inspect", free), ("migrate", free, tmp_path / "a.db"), *exports):
        said = run(*words).stderr
        assert f"database {number} has no memory; other databases of the server have keys: " in said
        assert re.search(r": \d+ \([\d,]+\)", said)


@pytest.fixture
def node(servers: Servers) -> str:
    """A node of a Redis Cluster, which has all of its slots, with a state of a session."""
    # The port of the cluster's bus is 10,000 above, which may be too high.
    server = servers.redis_with("cluster", "--cluster-enabled", "yes", "--port", "0")
    with redis.Redis(unix_socket_path=server.socket, protocol=2) as client:
        with contextlib.suppress(redis.ResponseError):  # a test before this one did
            client.execute_command("CLUSTER ADDSLOTS", *range(16384))
        state = {"memory": {"_compressed_summary": "", "content": [SAID]}}
        wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        client.set("user_id:u:session:s:state", json.dumps(state))
        client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@read"])
    return server.socket


@pytest.mark.parametrize(
    "options",
    [
        *("", "layout=memory", "layout=session", "layout=agentscope2", "layout=runtime"),
        *("layout=runtime-state", "layout=langchain", "layout=openai-agents", "state=redis"),
    ],
)
@pytest.mark.parametrize("login", ["", "reader:any@"], ids=["default", "without INFO"])
def test_layout_of_a_node_of_a_cluster_is_not_asked_for(
    run: Run, tmp_path: Path, node: str, options: str, login: str
) -> None:
    archive = tmp_path / "a.ndjson"
    place = f"unix://{login}{node}?{options}"
    commands = (
        *(["inspect", place], ["export", place, "-o", archive], ["doctor", place]),
        *(["migrate", place, tmp_path / "m.db"], ["delete", place, "--all", "--yes"]),
    )
    for words in commands:
        fails(run(*words), 3, "is a node of a Redis Cluster", "hint: use a single server")
    assert not archive.exists()
    if "runtime" not in options:  # memctl writes none
        asyncio.run(fill(str(archive), {KEY: samples.entries(2)}))
        fails(run("migrate", archive, place, "--lossy"), 3, "is a node of a Redis Cluster")


def test_layout_of_a_sentinel_is_not_asked_for(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.conf"
    config.write_text("")
    socket = tmp_path / "s.sock"
    program = subprocess.Popen(
        [start(redis_program), config, "--sentinel", "--port", "0", "--unixsocket", socket],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(socket.exists)
        fails(run("inspect", f"unix://{socket}"), 3, "is a Redis Sentinel", "hint: use the address")
    finally:
        program.terminate()
        program.wait()
