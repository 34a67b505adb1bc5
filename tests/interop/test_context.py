"""``memctl context`` shows what AgentScope's memory hands out, and its agent sends to its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.model import MemoryKey
from tests.interop.test_migrate import PLACES
from tests.support import sent as prompts
from tests.support.adk import COMPACTED
from tests.support.agentscope import AgentScope
from tests.support.cli import fill
from tests.support.histories import said
from tests.support.servers.pool import Servers

Run = Callable[..., Result]

WITH_STATES: dict[str, Callable[[Path, Servers], str]] = {
    "sqlite": lambda folder, servers: f"{PLACES['sqlite'](folder, servers)}?state={folder}/states",
    "postgresql": lambda folder, servers: (
        f"{PLACES['postgresql'](folder, servers)}?state={folder}/states"
    ),
    "redis": lambda _, servers: f"{servers.redis.fresh()}?prefix=app:&state=redis",
    "redis_session": PLACES["redis_session"],
    "json_session": PLACES["json_session"],
}
SUMMARY = "<system-info>They spoke of Kyoto. 😀</system-info>"
FIELDS = dict.fromkeys(
    (
        *("task_overview", "current_state", "important_discoveries"),
        *("next_steps", "context_to_preserve"),
    ),
    "A trip.",
)
NEVER = {"threshold": 10**9, "keep_recent": 1, "summary": {}}
"""Compression that is enabled and has nothing to do yet."""


def memory(mark: str) -> dict[str, Any]:
    """Six messages with the mark, three without it, and a summary."""
    kinds: list[tuple[str, tuple[str, ...]]] = [("user", (mark,)), ("assistant", (mark, "x"))] * 3
    kinds += [("user", ()), ("assistant", ("x",)), ("user", ("hint",))]
    messages = [
        said(f"m{number}", f"message {number} 京都", role, marks)
        for number, (role, marks) in enumerate(kinds)
    ]
    return {"user": "alice", "session": "s1", "summary": SUMMARY, "messages": messages}


def sent(run: Run, place: str, *options: str) -> list[dict[str, Any]]:
    """Return the messages that the model is sent, according to memctl."""
    named = ("--user", "alice", "--session", "s1", "--json")
    done = run("context", place, *named, *options)
    assert done.exit_code == 0, done.output
    return [row["message"] for row in json.loads(done.stdout)["messages"]]


@pytest.mark.parametrize("kind", WITH_STATES)
def test_context_it_is_what_the_model_is_sent(
    agentscope: AgentScope, run: Run, servers: Servers, tmp_path: Path, kind: str
) -> None:
    place = WITH_STATES[kind](tmp_path, servers)
    # What an agent calls compressed in Redis, on the Python that these tests run with.
    mark = "_MemoryMark.COMPRESSED" if kind == "redis" else "compressed"
    agentscope.write(place, [memory(mark)])
    about = {"user": "alice", "session": "s1"}
    [seen] = agentscope.read(place, [{**about, "marks": [mark]}])
    summary, *messages = sent(run, place)
    assert summary == {"name": "user", "role": "user", "content": seen["summary"]}
    left = set(seen["excluded"][mark])
    assert messages == [one for one in seen["messages"] if one["id"] in left]
    assert sent(run, place, "--all")[1:] == seen["messages"]
    for options, compression in (((), NEVER), (("--all",), None)):
        say, _ = said(f"new{options}", "And now?", "user")
        expected = [*sent(run, place, *options), say]
        asked = {**about, "say": say, "compression": compression}
        [prompt, *_] = agentscope.reply(place, asked)["prompts"]
        assert texts(prompt[1:]) == texts(expected)


def spoken(id: str, role: str, *content: dict[str, Any]) -> list[Any]:
    """Return a message without marks."""
    return [said(id, "", role)[0] | {"content": list(content)}, []]


CALL = {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "京都"}}
RESULT = {"type": "tool_result", "id": "c1", "name": "search", "output": "temples"}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
TALK = [
    spoken("a1", "user", {"type": "text", "text": "Where to?"}),
    spoken("a2", "assistant", {"type": "text", "text": "Let me look."}, CALL),
    spoken("a3", "system", RESULT),
    spoken("a4", "assistant", {"type": "text", "text": "To Kyoto."}),
    spoken("a5", "user", {"type": "text", "text": "Here?"}, {"type": "image", "source": SOURCE}),
    spoken("a6", "assistant", CALL | {"id": "c2"}),
    spoken("a7", "system", RESULT | {"id": "c2"}),
]


@pytest.mark.parametrize("kept", [1, 3, 9])
@pytest.mark.parametrize("kind", WITH_STATES)
def test_context_after_an_agent_has_compressed_its_memory(
    agentscope: AgentScope, run: Run, servers: Servers, tmp_path: Path, kind: str, kept: int
) -> None:
    """The agent marks messages and writes the summary; calls, results and images are the same."""
    place = WITH_STATES[kind](tmp_path, servers)
    agentscope.write(place, [{"user": "alice", "session": "s1", "messages": TALK}])
    compression = {"threshold": 3, "keep_recent": kept, "summary": FIELDS}
    about = {"user": "alice", "session": "s1", "compression": compression}
    agentscope.compress(place, [about])
    shown = prompts.shown(sent(run, place), AGENTSCOPE1)
    assert len(shown) == {1: 3, 3: 5, 9: 1}[kept]
    say, _ = said("new", "And now?", "user")
    asked = about | {"say": say, "compression": NEVER}
    [prompt] = agentscope.reply(place, asked)["prompts"]
    assert prompts.chat(prompt) == [*shown, ("user", [("text", "And now?")])]


def test_context_of_a_copy_of_a_session_that_adk_had_compacted(
    agentscope: AgentScope, run: Run, tmp_path: Path
) -> None:
    """The agent gets ADK's summary as its own, and compacted events do not come back."""
    place = f"{tmp_path}/sessions/"
    adk = f"sqlite:///{tmp_path}/adk.db?layout=adk&app=shop"
    asyncio.run(fill(adk, {MemoryKey("alice", "s1"): COMPACTED}))
    done = run("migrate", adk, place)
    assert done.exit_code == 0, done.output
    about = {"user": "alice", "session": "s1"}
    [seen] = agentscope.read(place, [about | {"marks": ["compressed"]}])
    assert seen["summary"] == "They spoke of a card."
    say, _ = said("new", "And now?", "user")
    [prompt] = agentscope.reply(place, about | {"say": say, "compression": NEVER})["prompts"]
    asked = ["They spoke of a card.", "Which seat?", "And now?"]
    assert texts(prompt[1:]) == [("user", text) for text in asked]


def texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return roles and texts of messages, as AgentScope keeps them or as a model gets them."""
    return [
        (one["role"], content if isinstance(content, str) else content[0]["text"])
        for one in messages
        for content in [one["content"]]
    ]
