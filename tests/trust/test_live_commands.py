"""An agent goes on talking while ``memctl delete`` and ``memctl undo`` run again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.model import MemoryKey
from memctl.testing import samples
from memctl.testing.samples import Sample
from tests.interop.test_migrate import PLACES
from tests.support.agentscope import AgentScope
from tests.support.cli import report
from tests.support.servers.pool import Servers
from tests.trust.kills import BESIDES, State, states
from tests.trust.places import KINDS, Place

pytestmark = pytest.mark.slow

ROUNDS = 12
MARKS = ["hint", "compressed"]
MEMORIES: list[dict[str, Any]] = [
    {"user": user, "session": session, "marks": MARKS}
    for user, session in (("alice", "s1"), ("it's *", "会话?"), ("alice", "s2"))
]


ORDERED = ("redis",)
"""Stores to which AgentScope adds in one step.  In SQL it looks for the next index first, and what
it adds while the newest messages are restored may share an index with another."""


def said(one: dict[str, Any]) -> list[str]:
    """The texts of a memory, as AgentScope reads them."""
    return [message["content"] for message in one["messages"]]


def exchanges(count: int, *, hints: bool) -> list[str]:
    """Return the agent's messages; a third of them are hints."""
    return ["first"] + [
        text
        for number in range(count)
        if hints or number % 3
        for text in (f"question {number}", f"reply {number}")
    ]


def assert_said(one: dict[str, Any], wanted: list[str], *, order: bool) -> None:
    """The memory holds these texts, each once."""
    assert sorted(said(one)) == sorted(wanted)
    if order:
        assert said(one) == wanted


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql", "redis"])
def test_live_nothing_is_lost(
    agentscope: AgentScope,
    run: Callable[..., Result],
    servers: Servers,
    tmp_path: Path,
    kind: str,
) -> None:
    place = PLACES[kind](tmp_path, servers)
    first = [(json.loads(samples.message("first", content="first")), [])]
    agentscope.write(place, [{**one, "messages": first} for one in MEMORIES])
    deleted = restored = 0
    in_force = []
    with agentscope.talking(place, MEMORIES, tmp_path / "enough") as talk:
        for number in range(ROUNDS):
            found = report(run("delete", place, "--mark", "hint", "--yes", "--json"))
            deleted += found["messages"]["deleted"]
            assert found["messages"]["failed"] == 0
            if "run" in found:
                in_force.append(found["run"])
            if number % 3 == 2 and in_force:
                back = report(run("undo", "--yes", "--store", place, "--json"))
                assert back["undoes"] == in_force.pop()
                restored += back["messages"]["restored"]
    count = talk["exchanges"]
    assert count > ROUNDS, "the agent hardly wrote anything"
    assert deleted > restored > 0
    last = report(run("delete", place, "--mark", "hint", "--yes", "--json"))
    if "run" in last:
        in_force.append(last["run"])
    for one in agentscope.read(place, MEMORIES):
        assert_said(one, exchanges(count, hints=False), order=kind in ORDERED)
        assert one["marked"]["hint"] == []
        texts = dict(zip([m["id"] for m in one["messages"]], said(one), strict=True))
        compressed = {int(texts[id].split()[1]) for id in one["marked"]["compressed"]}
        assert compressed == {number for number in range(count) if number % 12 in (4, 8)}
        assert len(one["marked"]["compressed"]) == 2 * len(compressed)
    for name in reversed(in_force):
        report(run("undo", name, "--store", place, "--json"))
    for one in agentscope.read(place, MEMORIES):
        assert_said(one, exchanges(count, hints=True), order=kind in ORDERED)
        assert len(one["marked"]["hint"]) == 2 * len(range(0, count, 3))


RUNS = 6
PAIRS = [
    ("sqlite", "redis"),
    ("postgresql", "sqlite"),
    ("mysql", "archive"),
    ("redis", "sqlite"),
]
KEYS = [MemoryKey("alice", "s1"), MemoryKey("it's *", "会话?"), MemoryKey("alice", "new")]
BEFORE = {KEYS[0]: 1501, KEYS[1]: 3}
"""The number of messages before the agent begins: one memory takes several pages."""


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_live_source_agent_keeps_writing(
    agentscope: AgentScope,
    run: Callable[..., Result],
    servers: Servers,
    tmp_path: Path,
    source: str,
    target: str,
) -> None:
    origin, copy = (
        place(tmp_path / "origin", source, servers),
        place(tmp_path / "copy", target, servers),
    )
    origin.fill(samples.sample(key, samples.entries(count)) for key, count in BEFORE.items())
    memories = [{"user": key.user, "session": key.session} for key in KEYS]
    seen: list[dict[MemoryKey, Sample]] = []
    name = f"sqlite:///{origin.text}" if source == "sqlite" else origin.text
    with agentscope.talking(name, memories, tmp_path / "enough") as talk:
        for _ in range(RUNS):
            result = run("migrate", origin.text, copy.text, "--json")
            assert result.exit_code == 0, result.output
            seen.append(copy.read())
    whole = states(origin.read(), order=False)
    assert {key: len(one) - BESIDES for key, one in whole.items()} == {
        key: BEFORE.get(key, 0) + 2 * talk["exchanges"] for key in KEYS
    }
    for found in seen:
        for key, state in states(found, order=False).items():
            assert_beginning(key, state, whole[key])
    sizes = [sum(len(one.entries) for one in found.values()) for found in seen]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > RUNS / 2, "the agent hardly wrote anything"
    last = run("migrate", origin.text, copy.text, "--json")
    assert last.exit_code == 0, last.output
    assert json.loads(last.stdout)["messages"]["written"] > 0
    assert states(copy.read(), order=False) == whole


def assert_beginning(key: MemoryKey, state: State, whole: State) -> None:
    """The memory is a beginning of what it came to be, and ends with a whole exchange."""
    assert state == whole[: len(state)], key
    written = len(state) - BESIDES - BEFORE.get(key, 0)
    assert written % 2 == 0, f"half an exchange at the end of {key}"


def place(folder: Path, kind: str, servers: Servers) -> Place:
    """A new and empty place."""
    folder.mkdir()
    return KINDS[kind](folder, servers)
