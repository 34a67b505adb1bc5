"""A class of an application's own on one side, memctl and AgentScope's own stores on the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.agentscope import AgentScope
from tests.support.histories import said

MAPPING = "session:session_id,role:role,content:content,time:timestamp,order:id"
ABOUT = {"user": "", "session": "kyoto", "marks": []}
SAID = [
    said("m1", "How is Kyoto? 京都", "user"),
    said("m2", [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Kyoto"}}]),
    said("m3", [{"type": "tool_result", "id": "c1", "name": "weather", "output": "sun"}], "system"),
    said("m4", [{"type": "text", "text": "Sunny."}, {"type": "text", "text": "[5]"}]),
    said("m5", '{"not": "a list of blocks"}', "user"),
]


@pytest.mark.parametrize("encoding", ["text", "json"])
def test_own_memory_and_agentscope(
    agentscope: AgentScope, run: Callable[..., Result], tmp_path: Path, encoding: str
) -> None:
    path, agents = tmp_path / "friday_memory.db", tmp_path / "agents.db"
    own = f"sqlite:///{path}?layout=table&table=messages&columns={MAPPING}"
    own += f"&content_encoding={encoding}"
    agentscope.write(own, [{**ABOUT, "messages": SAID}])
    written = read(agentscope, own)
    assert [one["content"] for one in written] == [message["content"] for message, _ in SAID]

    assert run("migrate", own, agents).exit_code == 0
    moved = read(agentscope, f"sqlite:///{agents}")
    assert [(one["role"], blocks(one)) for one in moved] == [
        (one["role"], blocks(one)) for one in written
    ]
    assert run("delete", own, "--role", "user", "-y").exit_code == 0
    assert read(agentscope, own) == [one for one in written if one["role"] != "user"]
    assert run("undo", "--store", own, "-y").exit_code == 0
    assert read(agentscope, own) == written

    assert run("erase", own, "--user", "", "--session", "kyoto", "--yes").exit_code == 0
    assert run("migrate", agents, own).exit_code == 0
    assert [blocks(one) for one in read(agentscope, own)] == [blocks(one) for one in written]
    say, _ = said("m6", "And now?", "user")
    [prompt, *_] = agentscope.reply(own, {**ABOUT, "say": say})["prompts"]
    assert "And now?" in str(prompt[-1])
    assert "sun" in str(prompt)


def read(agentscope: AgentScope, place: str) -> list[dict[str, Any]]:
    """Return what the class gives, without the ids and times that it makes anew."""
    [found] = agentscope.read(place, [ABOUT])
    return [{name: one[name] for name in ("name", "role", "content")} for one in found["messages"]]


def blocks(message: dict[str, Any]) -> Any:
    """Return the content of a message as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
