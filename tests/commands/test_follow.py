"""``memctl migrate --follow``: what comes to the source comes to the target, until stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.shard import Shard
from memctl.testing import samples
from tests.support.cli import Run, add, contents, fails, fill, names
from tests.support.processes import start
from tests.support.servers.pool import Servers

ONE = MemoryKey("ada", "one")
TWO = MemoryKey("bob", "two")
ALL = samples.entries(40)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A SQLite database with a memory of ten messages."""
    path = tmp_path / "source.db"
    asyncio.run(fill(str(path), {ONE: ALL[:10]}))
    return path


REPLACE = ("--on-conflict", "replace", "--yes")


@pytest.fixture
def following(
    request: pytest.FixtureRequest, source: Path, target: str
) -> Iterator[subprocess.Popen[str]]:
    """A run that follows the source, at its ease, with the options of the parameter."""
    options = getattr(request, "param", ())
    process = start("migrate", source, target, "--follow", "--interval", "0.2", "--json", *options)
    wait_until(lambda: held_if_any(target) == {ONE: ids(ALL[:10])}, process)
    yield process
    process.kill()
    process.communicate()


def ids(entries: list[StoredMessage]) -> list[tuple[str, tuple[str, ...]]]:
    return [(entry.id, tuple(sorted(entry.marks))) for entry in entries]


def held_if_any(target: str) -> dict[MemoryKey, list[tuple[str, tuple[str, ...]]]]:
    """Return ids and marks of what the target holds; nothing while it is not there."""
    if not Path(target.removeprefix("sqlite:///").partition("?")[0]).exists():
        return {}
    try:
        return {key: ids(entries) for key, entries in contents(target).items()}
    except Exception as error:  # noqa: BLE001 - its tables are being made
        return {MemoryKey("", type(error).__name__): []}


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def change(source: Path, sql: str, *values: str) -> None:
    with sqlite3.connect(source, timeout=30) as database:
        database.execute(sql, values)


@pytest.mark.slow
@pytest.mark.parametrize("following", [(), REPLACE, ("--checksum",)], indirect=True)
def test_follow_everything_that_happens_comes_along(
    run: Run, source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    add(source, ONE, ALL[10:15], 10)
    add(source, TWO, ALL[20:23], 0)
    expected = {ONE: ids(ALL[:15]), TWO: ids(ALL[20:23])}
    wait_until(lambda: held_if_any(target) == expected, following)
    change(source, "DELETE FROM message_mark")
    gone = f"ada-one-{ALL[3].id}"
    change(source, "DELETE FROM message WHERE id = ?", gone)
    left = [(id, ()) for id, _ in ids(ALL[:15]) if id != ALL[3].id]
    expected = {ONE: left, TWO: [(id, ()) for id, _ in ids(ALL[20:23])]}
    wait_until(lambda: held_if_any(target) == expected, following)
    following.send_signal(signal.SIGINT)
    output, said = following.communicate(timeout=30)
    assert following.returncode == 0, said
    found = json.loads(output)
    assert found["verified"] is True
    assert found["failures"] == []
    assert (found["follow"]["memories"], found["follow"]["messages"]) == (2, 17)
    assert found["follow"]["rounds"] >= 3
    assert "copied 8 messages in 2 memories" in said or "copied 5 messages" in said
    assert "in sync: safe to switch" in said
    assert run("undo", found["run"]).exit_code == 0
    assert held_if_any(target) == {}


@pytest.mark.slow
@pytest.mark.parametrize("following", [("--on-conflict", "append")], indirect=True)
def test_follow_with_append_removes_nothing(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    change(source, "DELETE FROM message_mark")
    unmarked = [(id, ()) for id, _ in ids(ALL[:10])]
    wait_until(lambda: held_if_any(target)[ONE] == unmarked, following)
    for n in range(2, 10):
        change(source, "DELETE FROM message WHERE id = ?", f"ada-one-{ALL[n].id}")
    add(source, TWO, ALL[23:25], 0)
    wait_until(lambda: TWO in held_if_any(target), following)
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=30)
    assert following.returncode == 0, said
    assert held_if_any(target)[ONE] == unmarked
    assert "not in sync: 1 memory of the target may lag behind the source" in said


def test_follow_a_source_that_was_emptied_empties_no_target(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    add(source, TWO, ALL[20:23], 0)
    wait_until(lambda: TWO in held_if_any(target), following)
    for table in "message_mark", "message", "session", "users":
        change(source, f"DELETE FROM {table}")
    following.send_signal(signal.SIGINT)
    output, said = following.communicate(timeout=30)
    assert following.returncode == 5, said
    failures = json.loads(output)["failures"]
    told = {(one["user"], one["session"]): (one["code"], one["message"]) for one in failures}
    reason = ("conflict", "the source no longer has the memory")
    assert told == {("ada", "one"): reason, ("bob", "two"): reason}
    assert held_if_any(target) == {ONE: ids(ALL[:10]), TWO: ids(ALL[20:23])}
    assert "not in sync: 2 memories of the target may lag behind the source" in said


def test_follow_a_memory_that_lost_all_messages_is_left_alone_until_it_has_some(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    for table in "message_mark", "message":
        change(source, f"DELETE FROM {table}")
    assert following.stderr is not None
    warned = "'ada'/'one' is left unchanged: the source no longer has any message of the memory"
    wait_until(lambda: warned in following.stderr.readline(), following)
    assert held_if_any(target) == {ONE: ids(ALL[:10])}
    add(source, ONE, ALL[10:12], 0)
    wait_until(lambda: held_if_any(target) == {ONE: ids(ALL[10:12])}, following)
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=30)
    assert following.returncode == 0, said


def test_follow_what_came_before_the_stop_is_there_after_it(source: Path, target: str) -> None:
    process = start("migrate", source, target, "--follow", "--interval", "3600")
    wait_until(lambda: held_if_any(target) == {ONE: ids(ALL[:10])}, process)
    add(source, ONE, ALL[10:12], 10)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert held_if_any(target) == {ONE: ids(ALL[:12])}


@pytest.mark.parametrize("following", [("--shard", "1/2")], indirect=True)
def test_follow_a_shard_leaves_the_others_alone(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    other = MemoryKey("ada", "three")
    assert [Shard(1, 2).has(key) for key in (ONE, TWO, other)] == [True, True, False]
    add(source, other, ALL[30:33], 0)
    add(source, TWO, ALL[20:23], 0)
    expected = {ONE: ids(ALL[:10]), TWO: ids(ALL[20:23])}
    wait_until(lambda: held_if_any(target) == expected, following)
    following.send_signal(signal.SIGTERM)
    _, said = following.communicate(timeout=30)
    assert following.returncode == 0, said
    assert held_if_any(target) == expected


@pytest.mark.slow
def test_follow_what_was_copied_is_known_after_a_lost_connection(
    source: Path, servers: Servers, postgresql_url: str
) -> None:
    options = ("--follow", "--interval", "0.1", "--retries", "2", "--json", *REPLACE)
    process = start("migrate", source, postgresql_url, *options)
    sql = servers.postgresql.execute
    exists = "SELECT to_regclass('message') IS NOT NULL"
    wait_until(lambda: sql(postgresql_url, exists) == "t", process)

    def holds(count: int) -> bool:
        return sql(postgresql_url, "SELECT count(*) FROM message") == str(count)

    wait_until(lambda: holds(10), process)
    for times in range(1, 5):  # more often than it may fail in a row
        wait_until(lambda: servers.postgresql.cut(postgresql_url) > 0, process)
        add(source, ONE, ALL[9 + times : 10 + times], 9 + times)
        wait_until(partial(holds, 10 + times), process)
    change(source, "DELETE FROM message WHERE id = ?", f"ada-one-{ALL[3].id}")
    wait_until(lambda: holds(13), process)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "trying again" in said
    assert json.loads(output)["failures"] == []


def test_follow_what_somebody_else_wrote_is_left_alone(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    path = Path(target.removeprefix("sqlite:///"))
    add(path, ONE, [samples.entry("own", 99)], 10)
    add(source, ONE, ALL[10:12], 10)
    add(source, TWO, ALL[20:23], 0)
    wait_until(lambda: TWO in held_if_any(target), following)
    assert following.stderr is not None
    warned = "'ada'/'one' is left unchanged: "
    wait_until(lambda: warned in following.stderr.readline(), following)  # before it is stopped
    following.send_signal(signal.SIGINT)
    output, said = following.communicate(timeout=30)
    assert following.returncode == 5, said
    assert warned not in said  # once
    assert "--on-conflict skip or append, or replace with --yes" in said
    assert "not in sync: 1 memory of the target may lag behind the source" in said
    found = json.loads(output)
    assert [row["code"] for row in found["failures"]] == ["conflict"]
    assert found["verified"] is False
    assert [id for id, _ in held_if_any(target)[ONE]] == [*(e.id for e in ALL[:10]), "own"]


@pytest.mark.slow
def test_follow_names_ten_memories_that_are_left_alone(
    source: Path, target: str, following: subprocess.Popen[str]
) -> None:
    path = Path(target.removeprefix("sqlite:///"))
    keys = [MemoryKey("ada", f"s{number}") for number in range(12)]
    for key in keys:
        add(source, key, ALL[:2], 0)
    wait_until(lambda: {*keys} <= held_if_any(target).keys(), following)
    for key in keys:
        add(path, key, [samples.entry("own", 99)], 2)
        add(source, key, ALL[2:3], 2)
    for session in ("later", "last"):  # two more rounds
        key = MemoryKey("ada", session)
        add(source, key, ALL[:1], 0)
        wait_until(lambda key=key: key in held_if_any(target), following)
    following.send_signal(signal.SIGINT)
    output, said = following.communicate(timeout=30)
    assert following.returncode == 5, said
    assert said.count(" is left unchanged: ") == 10
    assert said.count("more memories are left unchanged: the report names all") == 1
    assert len(json.loads(output)["failures"]) == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dry-run",), "cannot be combined"),
        (("--mark", "hint"), "whole memories"),
        (("--last", "3"), "whole memories"),
    ],
)
def test_follow_what_cannot_be_followed(
    run: Run, source: Path, target: str, options: tuple[str, ...], said: str
) -> None:
    fails(run("migrate", source, target, "--follow", *options), 2, said)


def test_follow_pipe_cannot_be_followed(run: Run, source: Path) -> None:
    fails(run("migrate", source, "-", "--follow"), 2, "name a file or a URL")


def test_follow_ends_with_the_state_and_is_undone_as_a_whole(
    run: Run, source: Path, target: str
) -> None:
    asyncio.run(fill(target, {TWO: ALL[20:23]}))
    process = start("migrate", source, target, "--follow", "--interval", "0.2")
    wait_until(lambda: ONE in held_if_any(target), process)
    add(source, ONE, ALL[10:12], 10)
    process.send_signal(signal.SIGINT)
    shown, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "in sync: 1 memory, 12 messages; source and target match" in shown
    assert "copied during this run: 12 messages in " in shown
    assert "undo it with: memctl undo " in shown
    assert run("undo", "--yes").exit_code == 0
    assert held_if_any(target) == {TWO: ids(ALL[20:23])}


@pytest.mark.slow
def test_follow_says_for_which_memories_the_sides_do_not_match(
    run: Run, source: Path, target: str
) -> None:
    asyncio.run(fill(target, {ONE: [samples.entry("own", 99)]}))
    process = start("migrate", source, target, "--follow", "--interval", "0.2")
    add(source, TWO, ALL[20:23], 0)
    wait_until(lambda: TWO in held_if_any(target), process)
    process.send_signal(signal.SIGTERM)
    shown, said = process.communicate(timeout=30)
    assert process.returncode == 5, said
    assert "in sync: 1 memory, 3 messages; source and target match, but for 1 memory" in shown
    fails(run("verify", source, target), 6)


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def both(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> tuple[str, str]:
    """An empty store of agents and an empty target, on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agents.db", f"sqlite:///{tmp_path}/target.db"
    server = getattr(servers, request.param)
    return server.fresh(), server.fresh()


def reply(run: Run, store: str, key: MemoryKey, number: int) -> None:
    """Answer a question with a hint that is deleted afterwards, as AgentScope's ReActAgent does."""
    asked, hint = samples.entry(f"q{number}"), samples.entry(f"h{number}", marks=("hint",))
    add(store, key, [asked, hint], len(contents(store).get(key, [])))
    time.sleep(0.1)
    chosen = ("--user", key.user, "--session", key.session)
    deleted = run("delete", store, *chosen, "--mark", "hint", "--yes", "--no-backup")
    assert deleted.exit_code == 0, deleted.stderr
    add(store, key, [samples.entry(f"a{number}")], len(contents(store)[key]))


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--jobs", "4")])
def test_follow_agents_that_delete_their_hints(
    request: pytest.FixtureRequest, run: Run, both: tuple[str, str], options: tuple[str, ...]
) -> None:
    agents, target = both
    old = {ONE: ALL[:10], TWO: ALL[20:23]}
    asyncio.run(fill(agents, old))
    asyncio.run(fill(target, old | {ONE: ALL[:4]}))
    before = contents(target), names(target)
    words = ("migrate", agents, target, "--follow", "--interval", "0.1", "--json", *options)
    process = start(*words)
    request.addfinalizer(process.kill)
    wait_until(lambda: contents(target) == contents(agents), process)
    for number in range(6):
        for key in (ONE, TWO, MemoryKey("eve", "new")):
            reply(run, agents, key, number)
    assert [one.id for one in contents(agents)[MemoryKey("eve", "new")]][-2:] == ["q5", "a5"]
    marked = run("mark", "add", agents, "compressed", "--user", "ada")
    assert marked.exit_code == 0, marked.stderr
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "in sync: safe to switch" in said
    assert run("verify", agents, target).exit_code == 0
    found = json.loads(output)
    assert found["failures"] == []
    undo = ("undo", found["run"], "--store", target)
    dry = run(*undo, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.stderr
    undone = run(*undo)
    assert undone.exit_code == 0, (undone.stdout, undone.stderr)
    assert (contents(target), names(target)) == before


@pytest.mark.slow
@pytest.mark.parametrize("filled", [False, True])
def test_follow_into_another_format_is_undone(
    request: pytest.FixtureRequest, run: Run, tmp_path: Path, filled: bool
) -> None:
    agents, target = f"sqlite:///{tmp_path}/agents.db", f"sqlite:///{tmp_path}/new.db"
    target += "?layout=agentscope2"
    asyncio.run(fill(agents, {ONE: samples.entries(10)}))
    if filled:
        assert run("migrate", agents, target, "--lossy").exit_code == 0
    before = contents(target) if filled else {}
    process = start("migrate", agents, target, "--follow", "--interval", "0.1", "--lossy", "--json")
    request.addfinalizer(process.kill)
    add(agents, TWO, ALL[20:21], 0)
    wait_until(lambda: {ONE, TWO} <= held_if_any(target).keys(), process)
    for number in range(4):
        for key in (ONE, TWO):
            reply(run, agents, key, number)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert run("verify", agents, target).exit_code == 0
    undone = run("undo", json.loads(output)["run"], "--yes")
    assert undone.exit_code == 0, (undone.stdout, undone.stderr)
    left = contents(target)
    assert left.keys() == before.keys()
    assert not filled or left[ONE][: len(before[ONE])] == before[ONE]
