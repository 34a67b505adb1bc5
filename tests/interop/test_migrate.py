"""AgentScope writes, memctl copies, AgentScope reads: it cannot tell the copy from the original."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.testing import samples
from tests.support.agentscope import AgentScope
from tests.support.processes import start, wait_until
from tests.support.servers.pool import Servers

Run = Callable[..., Result]
Make = Callable[[Path, Servers], str]

PLACES: dict[str, Make] = {
    "sqlite": lambda folder, _: f"sqlite:///{folder}/m.db",
    "postgresql": lambda _, servers: servers.postgresql.fresh(),
    "mysql": lambda _, servers: servers.mariadb.fresh(),
    "redis": lambda _, servers: f"{servers.redis.fresh()}?prefix=app:",
    "redis_session": lambda _, servers: f"{servers.redis.fresh()}?layout=session",
    "state_dict": lambda folder, _: str(folder / "state.json"),
    "json_session": lambda folder, _: str(folder / "sessions"),
}
ALONE = "state_dict"
"""Holds one memory, and does not say whose it is."""
SUMMARISED = ["state_dict", "json_session", "redis_session"]

KEYS = [("alice", "s1"), ("bob", "s2"), ("it's a: *?[x]", 'say "hi" 100%'), ("会话", "😀 - -- x")]
MARKS = ["hint", "compressed", "a:b*?[c]", "it's 😀", "%", "unknown"]
HARD = ["huge integer", "floats", "null character", "beyond the basic plane", "null metadata"]
HARD += ["unknown block", "tools", "empty", "empty blocks", "quotes"]
IDS = ["a:b", "*", "[x]?", "it's", "50%", "two words", "-a-", "会话", "😀", "x" * 100, "A", "a"]


def messages(count: int, prefix: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Return messages with marks, among them hard ones with hard ids."""
    found: list[dict[str, Any]] = [
        json.loads(samples.message(f"{prefix}{number}", number)) for number in range(count)
    ]
    found += [
        json.loads(samples.message(f"{prefix}{id}", number, **samples.MESSAGES[name]))
        for number, (id, name) in enumerate(zip(IDS, HARD + HARD, strict=False))
    ]
    return [
        (message, [mark for n, mark in enumerate(MARKS[:-1], 2) if number // 40 % n == 1])
        for number, message in enumerate(found)
    ]


def memories(count: int, *, large: int = 40, summary: bool = False) -> list[dict[str, Any]]:
    """So many memories, for AgentScope to write; the first has ``large`` messages and some."""
    return [
        {
            "user": user,
            "session": session,
            "summary": f"Summary {number} 😀" if summary else "",
            "messages": messages(5 if number else large, f"{number}-"),
        }
        for number, (user, session) in enumerate(KEYS[:count])
    ]


def asked(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same memories, for AgentScope to read."""
    return [{"user": w["user"], "session": w["session"], "marks": MARKS} for w in written]


@pytest.fixture
def place(tmp_path: Path, servers: Servers) -> Callable[[str], str]:
    """Make new and empty places, by their kind."""
    made: list[str] = []

    def make(kind: str) -> str:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(PLACES[kind](folder, servers))
        return made[-1]

    return make


@pytest.mark.parametrize(("source", "target"), list(product(PLACES, PLACES)))
def test_migrate_agentscope_reads_what_it_wrote(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], source: str, target: str
) -> None:
    alone = ALONE in (source, target)
    large = 1200 if "sqlite" in (source, target) else 40  # AgentScope takes its time elsewhere
    summary = {source, target} <= set(SUMMARISED)
    written = memories(1 if alone else len(KEYS), large=large, summary=summary)
    first, second = place(source), place(target)
    agentscope.write(first, written)
    before = agentscope.read(first, asked(written))
    assert [len(one["messages"]) for one in before] == [len(one["messages"]) for one in written]
    names = ["--user", written[0]["user"], "--session", written[0]["session"]] if alone else []
    if target in SUMMARISED and source not in SUMMARISED:
        names.append("--lossy")  # the summary of the compressed messages is missing
    result = run("migrate", first, second, *names)
    assert result.exit_code == 0, result.output
    assert agentscope.read(second, asked(written)) == before
    assert agentscope.read(first, asked(written)) == before
    again = run("migrate", first, second, *names, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["messages"]["written"] == 0


@pytest.mark.parametrize("target", PLACES)
def test_migrate_agentscope_goes_on_where_memctl_wrote(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], target: str
) -> None:
    """New messages follow the copied ones, and then pass to a third place."""
    [written] = memories(1)
    first, second, third = place("sqlite"), place(target), place("sqlite")
    names = ["--user", written["user"], "--session", written["session"]]
    agentscope.write(first, [written])
    assert run("migrate", first, second, *names, "--lossy").exit_code == 0
    more = [{**written, "messages": messages(3, "more-")}]
    agentscope.write(second, more)
    for end in (third, first):
        result = run("migrate", second, end, *names, "--lossy")
        assert result.exit_code == 0, result.output
        [found] = agentscope.read(end, asked([written]))
        expected = [message["id"] for message, _ in [*written["messages"], *more[0]["messages"]]]
        assert [message["id"] for message in found["messages"]] == expected


@pytest.mark.parametrize(("source", "target"), list(product(SUMMARISED, ["sqlite", "redis"])))
def test_migrate_summary_is_not_lost_in_silence(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], source: str, target: str
) -> None:
    [written] = memories(1, summary=True)
    first, second = place(source), place(target)
    agentscope.write(first, [written])
    names = ["--user", written["user"], "--session", written["session"]]
    assert run("migrate", first, second, *names).exit_code == 9
    assert run("migrate", first, second, *names, "--lossy").exit_code == 0
    [found] = agentscope.read(second, asked([written]))
    assert found["size"] == len(written["messages"])


FOLLOWED = ["sqlite", "postgresql", "redis"]
SHARED = ["sqlite", "postgresql", "mysql", "redis"]


@pytest.mark.parametrize(("source", "target"), list(product(SHARED, SHARED)))
def test_migrate_two_users_with_one_session_id(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], source: str, target: str
) -> None:
    """On SQL AgentScope shows each user the messages of both, in the order they came."""
    first, second = place(source), place(target)
    users = [{"user": user, "session": "default_session", "marks": MARKS} for user in ("a-b", "a")]
    for number in range(4):
        one = users[number % 2]
        agentscope.write(first, [{**one, "messages": messages(3, f"{one['user']}-{number}-")}])
    before = agentscope.read(first, users)
    result = run("migrate", first, second)
    assert result.exit_code == 0, result.output
    after = agentscope.read(second, users)
    if (source == "redis") == (target == "redis"):
        assert after == before
    else:
        for one, other, user in zip(before, after, users, strict=True):
            assert own(other, user["user"]) == own(one, user["user"])


def own(found: dict[str, Any], user: str) -> list[dict[str, Any]]:
    """The messages that this user wrote, of those that AgentScope showed."""
    start = f"{user}-"
    others = () if user == "a-b" else ("a-b-",)
    return [
        message
        for message in found["messages"]
        if message["id"].startswith(start) and not message["id"].startswith(others)
    ]


@pytest.mark.parametrize(("source", "target"), list(product(FOLLOWED, FOLLOWED)))
def test_migrate_follows_an_agent_that_deletes_its_hints(
    agentscope: AgentScope,
    run: Run,
    place: Callable[[str], str],
    request: pytest.FixtureRequest,
    source: str,
    target: str,
) -> None:
    """ReActAgent adds its hints with a mark, and deletes them by this mark after the reply."""
    first, second = place(source), place(target)
    about = {"user": "alice", "session": "trip", "marks": MARKS}

    def say(id: str, *marks: str) -> None:
        told = json.loads(samples.message(id))
        agentscope.write(first, [{**about, "messages": [(told, list(marks))]}])

    say("before")
    process = start("migrate", first, second, "--follow", "--interval", "0.1", "--json")
    request.addfinalizer(process.kill)
    for number in range(4):
        for id, marks in ((f"q{number}", ()), (f"h{number}", ("hint",))):
            say(id, *marks)
        wait_until(lambda number=number: f"h{number}" in held(run, second))
        agentscope.call(first, about, ["delete_by_mark", {"mark": "hint"}])
        say(f"a{number}")
    agentscope.call(first, about, ["update_messages_mark", {"new_mark": "compressed"}])
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "in sync: safe to switch" in said
    assert agentscope.read(second, [about]) == agentscope.read(first, [about])
    undone = run("undo", json.loads(output)["run"], "--store", second)
    assert undone.exit_code == 0, undone.output
    assert held(run, second) == ""


def held(run: Run, store: str) -> str:
    """Return the messages in a store; none as long as memctl cannot read it."""
    shown = run("inspect", store, "--messages", "--format", "ndjson")
    return shown.stdout if shown.exit_code == 0 else ""
