"""Memories that go from a store of one dialect to one of another, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place
from memctl.testing.samples import sample
from tests.support.backends import OF_AGENTSCOPE2, new_place
from tests.support.cli import Run, report
from tests.support.hostile import memories
from tests.support.places import append, held, put
from tests.support.servers.pool import Servers

KEY = MemoryKey("ada", "trip")


@pytest.fixture
def archive(tmp_path: Path, servers: Servers) -> Place:
    """An archive of AgentScope 1.x with nothing in it."""
    return new_place("archive", tmp_path, servers)


def message(id: str, role: str, content: Any, *marks: str) -> StoredMessage:
    """Return a message as AgentScope 1.x stores it."""
    value = {"id": id, "name": role, "role": role, "content": content}
    value |= {"metadata": {}, "timestamp": "2025-01-01 10:00:00.000"}
    return StoredMessage(id, json.dumps(value).encode(), marks)


def call(id: str, *calls: str) -> StoredMessage:
    """Return a message that calls tools."""
    blocks = [{"type": "tool_use", "id": one, "name": "f", "input": {"q": one}} for one in calls]
    return message(id, "assistant", blocks)


def result(id: str, call: str) -> StoredMessage:
    """Return a message with the result of a call."""
    block = {"type": "tool_result", "id": call, "name": "f", "output": "done"}
    return message(id, "system", [block])


@pytest.mark.parametrize("name", OF_AGENTSCOPE2)
def test_hostile_memories_come_back_as_they_were(
    run: Run, archive: Place, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    place, back = one(name), f"{tmp_path}/back.ndjson"
    put(archive, memories(12, 20 if name.startswith("mysql") else 90))  # MariaDB takes 31 levels
    found = report(run("migrate", archive.text, place.text, "--json"))
    assert (found["memories"]["written"], found["messages"]["written"]) == (12, 480)
    assert run("verify", archive.text, place.text).exit_code == 0
    again = report(run("migrate", archive.text, place.text, "--json"))
    assert (again["memories"]["written"], again["memories"]["unchanged"]) == (0, 12)
    assert run("migrate", place.text, back).exit_code == 0
    assert "480 messages and 480" in run("verify", archive.text, back).stdout


@pytest.mark.parametrize("name", OF_AGENTSCOPE2)
def test_a_growing_memory_is_followed_and_undone_step_by_step(
    run: Run, archive: Place, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    steps = [
        [message("q", "user", "What is the weather?"), call("c", "1", "2")],
        [result("r1", "1")],
        [result("r2", "2"), message("a", "assistant", [{"type": "text", "text": "Fine."}])],
    ]
    put(archive, [sample(KEY, steps[0])])
    assert run("migrate", archive.text, place.text).exit_code == 0
    states, runs = [], []
    for step in steps[1:]:
        states.append(held(place))
        append(archive, KEY, step)
        runs.append(report(run("migrate", archive.text, place.text, "--json"))["run"])
        assert run("verify", archive.text, place.text).exit_code == 0
    ids = [id for id, _, _ in held(place)[KEY][2]]
    assert ids == ["q", "c", "a"], "the results belong to the call"
    for done in reversed(runs):
        assert run("undo", done, "--store", place.text).exit_code == 0
        assert held(place) == states.pop()
