"""A source that an agent keeps writing to, migrated again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from memctl.model import MemoryKey
from memctl.testing import samples
from memctl.testing.samples import Sample
from tests.support.agentscope import AgentScope
from tests.support.servers.pool import Servers
from tests.trust.kills import State, states
from tests.trust.places import KINDS, Place

RUNS = 6
PAIRS = [
    ("sqlite", "redis"),
    ("postgresql", "sqlite"),
    ("mysql", "archive"),
    ("redis", "sqlite"),
]
KEYS = [MemoryKey("alice", "s1"), MemoryKey("it's *", "会话?"), MemoryKey("alice", "new")]
BEFORE = {KEYS[0]: 1501, KEYS[1]: 3}
"""How many messages there are before the agent begins: one memory takes several pages."""


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
    assert {key: len(one) - 2 for key, one in whole.items()} == {
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
    assert (len(state) - 2 - BEFORE.get(key, 0)) % 2 == 0, f"half an exchange at the end of {key}"


def place(folder: Path, kind: str, servers: Servers) -> Place:
    """A new and empty place."""
    folder.mkdir()
    return KINDS[kind](folder, servers)
