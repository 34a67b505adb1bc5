"""Sessions of the real AgentScope 2.x, read and carried by memctl, and memories that become such.

A model on loopback records what real agents of both versions send it after a copy.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.summarizers.server import ModelServer
from tests.support.agentscope import AgentScope
from tests.support.agentscope2 import AgentScope2
from tests.support.cli import Run, report
from tests.support.processes import start
from tests.support.servers.pool import Servers

PLACES: dict[str, Callable[[Path, Servers], str]] = {
    "sqlite": lambda folder, _: f"sqlite:///{folder}/new.db?layout=agentscope2",
    "postgresql": lambda _, servers: f"{servers.postgresql.fresh()}?layout=agentscope2",
    "mysql": lambda _, servers: f"{servers.mariadb.fresh()}?layout=agentscope2",
    "redis": lambda _, servers: f"{servers.redis.fresh()}?layout=agentscope2",
}
TIME = "2026-01-01T10:00:00"
ALICE: dict[str, Any] = {"user": "alice", "agent": "friday", "session": "kyoto trip: *"}
SUMMARY = "Alice plans a trip to Kyoto."


def block(id: str, **fields: Any) -> dict[str, Any]:
    """Return a block with what AgentScope keeps of each."""
    return {"id": id, "created_at": TIME, "finished_at": TIME} | fields


def message(number: int) -> dict[str, Any]:
    """Return a message of a session: questions, and replies that call a tool."""
    id = f"m{number:03} : *"
    said = {"id": id, "created_at": TIME, "finished_at": TIME, "metadata": {"number": number}}
    if number % 2:
        text = block(f"{id}-t", type="text", text=f"question {number} \U0001f600")
        return {**said, "name": "Alice", "role": "user", "content": [text]}
    call = block(f"call-{number}", type="tool_call", name="find", input='{"q": "Kyoto"}')
    result = block(f"call-{number}", type="tool_result", name="find", output="found")
    content = [
        block(f"{id}-a", type="thinking", thinking="I look.", signature="abc"),
        call | {"state": "finished"},
        result | {"state": "success"},
        block(f"{id}-b", type="text", text=f"answer {number}"),
        block(f"{id}-c", type="hint", hint="Be brief."),
    ]
    usage = {"input_tokens": 10, "output_tokens": 5}
    more = {"usage": usage, "finished_reason": "completed", "structured_output": {"a": 1}}
    return {**said, **more, "name": "Friday", "role": "assistant", "content": content}


MESSAGES = [message(number) for number in range(1, 121)]
RECENT = [one["id"] for one in MESSAGES[60:]]


@pytest.fixture
def session(agentscope2: AgentScope2, tmp_path: Path, servers: Servers) -> Callable[[str], str]:
    """A place of that kind where AgentScope has stored a session."""

    def make(kind: str) -> str:
        place = PLACES[kind](tmp_path, servers)
        agentscope2("write", place, **ALICE, summary=SUMMARY, messages=MESSAGES, context=RECENT)
        return place

    return make


@pytest.mark.parametrize("kind", PLACES)
def test_sessions_of_agentscope_are_seen_and_carried(
    run: Run,
    agentscope2: AgentScope2,
    session: Callable[[str], str],
    servers: Servers,
    tmp_path: Path,
    kind: str,
) -> None:
    place = session(kind)
    plain = place.replace("?layout=agentscope2", "")
    [found] = report(run("inspect", plain, "--json"))["memories"]
    assert (found["user"], found["session"]) == ("alice", ALICE["session"])
    assert (found["messages"], found["marks"]) == (120, {"compressed": 60})
    assert found["summary"]
    (tmp_path / "other").mkdir()
    targets = [
        tmp_path / "a.ndjson",
        *(make(tmp_path / "other", servers) for make in PLACES.values()),
    ]
    for target in targets:
        assert run("migrate", place, target).exit_code == 0
        assert run("verify", place, target).exit_code == 0
    before = agentscope2("list", place, user="alice")
    for target in targets[1:]:
        assert agentscope2("list", str(target), user="alice") == before
    done = report(run("delete", place, "--mark", "compressed", "--yes", "--json"))["run"]
    [shorter] = agentscope2("list", place, user="alice")
    assert shorter["messages"] == shorter["context"] == before[0]["context"]
    assert run("undo", done, "--store", place).exit_code == 0
    assert agentscope2("list", place, user="alice") == before


@pytest.mark.parametrize("kind", PLACES)
def test_a_session_goes_to_1_x_and_back(
    run: Run,
    agentscope2: AgentScope2,
    session: Callable[[str], str],
    servers: Servers,
    tmp_path: Path,
    kind: str,
) -> None:
    place = session(kind)
    old = f"sqlite:///{tmp_path}/old.db?state={tmp_path}/states"
    (tmp_path / "other").mkdir()
    back = PLACES[kind](tmp_path / "other", servers)
    assert run("migrate", place, old).exit_code == 0
    assert run("migrate", old, back).exit_code == 0
    assert run("verify", place, back).exit_code == 0
    assert agentscope2("list", back, user="alice") == agentscope2("list", place, user="alice")


@pytest.mark.parametrize("kind", PLACES)
def test_messages_without_a_time_load_and_stay_so(
    run: Run, agentscope2: AgentScope2, servers: Servers, tmp_path: Path, kind: str
) -> None:
    place, chat, back = PLACES[kind](tmp_path, servers), tmp_path / "c.jsonl", tmp_path / "b.jsonl"
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    chat.write_text(json.dumps({"messages": said, "memctl": {"session": "s", "user": "alice"}}))
    assert run("migrate", chat, place).exit_code == 0
    [found] = agentscope2("list", place, user="alice")
    assert [one["created_at"] for one in found["messages"]] == ["", ""]
    assert [one["finished_at"] for one in found["messages"]] == ["", ""]  # they have ended
    plan = report(run("delete", place, "--until", "2999-01-01", "--dry-run", "--json"))
    assert (plan["messages"]["selected"], plan["untimed"]) == (0, 2)
    assert run("migrate", place, back).exit_code == 0
    [line] = [json.loads(one) for one in back.read_text().splitlines()]
    assert "time" not in json.dumps([one.get("memctl", {}) for one in line["messages"]])


def memory_1(messages: list[tuple[dict[str, Any], list[str]]]) -> dict[str, Any]:
    """Return a memory for the worker of 1.x."""
    return {"user": "alice", "session": "trip", "summary": SUMMARY, "messages": messages}


def messages_1(count: int) -> list[tuple[dict[str, Any], list[str]]]:
    """Return exchanges with a tool call each; the first half is compressed."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        use = {"type": "tool_use", "id": f"call{number}", "name": "find", "input": {"q": number}}
        result = {"type": "tool_result", "id": f"call{number}", "name": "find", "output": "found"}
        text = {"type": "text", "text": f"answer {number}"}
        for role, content in (
            ("user", f"question {number}"),
            ("assistant", [use]),
            ("system", [result]),
            ("assistant", [text]),
        ):
            one = {"id": f"{len(found)}", "name": role, "role": role, "content": content}
            time = f"2025-01-01 10:{number:02}:00.000"
            found.append({**one, "metadata": {}, "timestamp": time})
    half = len(found) // 2
    return [(one, ["compressed"] if at < half else []) for at, one in enumerate(found)]


def sent(prompt: list[dict[str, Any]]) -> list[str]:
    """Return what a model was sent, role and text, without instructions and reminders."""
    found = []
    for one in prompt:
        content = one.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        calls = [call["function"]["name"] for call in one.get("tool_calls") or ()]
        if one["role"] != "system":
            found.append(f"{one['role']}: {content or calls}")
    return found


@pytest.mark.parametrize("kind", PLACES)
def test_agents_go_on_on_both_sides(
    run: Run,
    agentscope: AgentScope,
    agentscope2: AgentScope2,
    model: ModelServer,
    servers: Servers,
    tmp_path: Path,
    kind: str,
) -> None:
    old, new = str(tmp_path / "sessions"), PLACES[kind](tmp_path, servers)
    agentscope.write(old, [memory_1(messages_1(6))], nested=True)
    assert run("migrate", old, new).exit_code == 0
    about = {"user": "alice", "agent": "default", "session": "trip"}
    assert agentscope2("reply", new, **about, say="Go on.", model=model.url) == "So be it."
    [request] = model.requests
    prompt = sent(request.body["messages"])
    said = [f"user: question {number}" for number in range(3, 6)]
    assert [one for one in prompt if one.startswith("user: question")] == said
    assert any(SUMMARY in one for one in prompt)
    assert sum(one == "tool: found" for one in prompt) == 3
    assert any(one.endswith("Go on.") for one in prompt)

    back = str(tmp_path / "back")
    assert run("migrate", new, back).exit_code == 0
    [seen] = agentscope.read(back, [{"user": "alice", "session": "trip", "marks": ["compressed"]}])
    assert seen["size"] == 26
    assert seen["summary"] == SUMMARY
    assert len(seen["marked"]["compressed"]) == 12
    say = {"id": "z", "name": "Alice", "role": "user", "content": "And now?", "metadata": {}}
    say |= {"timestamp": "2026-01-01 10:00:00.000"}
    asked = agentscope.reply(back, {"user": "alice", "session": "trip", "say": say})
    again = json.dumps(asked["prompts"][0])
    assert "So be it." in again
    assert "And now?" in again


def grown_beyond(run: Run, store: str, count: int) -> int:
    """Wait until a store holds more messages than these; return how many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = run("inspect", store, "--json")
        if found.exit_code == 0:
            messages: int = json.loads(found.stdout)["totals"]["messages"]
            if messages > count:
                return messages
        time.sleep(0.2)
    raise AssertionError(f"{store} still holds {count} messages")


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_live_memory_of_1_x_is_followed(
    run: Run,
    agentscope: AgentScope,
    agentscope2: AgentScope2,
    servers: Servers,
    tmp_path: Path,
    kind: str,
) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", PLACES[kind](tmp_path, servers)
    about = {"user": "alice", "session": "trip"}
    agentscope.write(old, [{**about, "summary": "", "messages": messages_1(1)}])
    with agentscope.talking(old, [about], tmp_path / "enough") as talk:
        process = start("migrate", old, new, "--follow", "--interval", "0.2", "--lossy", "--json")
        first = grown_beyond(run, new, 0)  # the first copy
        grown_beyond(run, new, first)  # what the agent has said since
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert json.loads(output)["verified"] is True
    [found] = agentscope2("list", new, user="alice")
    assert len(found["messages"]) == 3 + 2 * talk["exchanges"]
    assert run("verify", old, new).exit_code == 0
