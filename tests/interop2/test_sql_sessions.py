"""Sessions that AgentScope 2 wrote are memories, and those that memctl wrote are sessions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.summarizers.server import ModelServer
from tests.support.agentscope2 import AgentScope2
from tests.support.backends import SQL_PLACES
from tests.support.cli import fails
from tests.support.servers.pool import Servers

Run = Callable[..., Result]

ADA = {"user": "ada", "session": "trip", "agent": "friday"}


def text(id: str, role: str, said: str) -> dict[str, Any]:
    """Return a message that says something."""
    block = {"type": "text", "text": said, "id": f"{id}b"}
    return {"id": id, "name": role, "role": role, "content": [block]}


def tool(id: str, call: str) -> dict[str, Any]:
    """Return a message with a call and its result, and a word of the model."""
    content = [
        {"type": "tool_call", "id": call, "name": "search", "input": '{"q": "é"}'},
        {"type": "tool_result", "id": call, "name": "search", "output": f"found by {call}"},
        {"type": "text", "text": f"That was {call}."},
    ]
    return {"id": id, "name": "Friday", "role": "assistant", "content": content}


MESSAGES = [
    text("m0", "user", "Where to?"),
    tool("m1", "call1"),
    text("m2", "user", "And then? 😀"),
    tool("m3", "call2"),
    text("m4", "user", "Thanks."),
]
IN_CONTEXT = ["m2", "m3", "m4"]
SHORTER = tool("m3", "call2")
SHORTER["content"][1]["output"] = "cut"


@pytest.fixture(params=SQL_PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty database of each kind."""
    return SQL_PLACES[request.param](tmp_path, servers)


@pytest.fixture
def written(place: str, agentscope2: AgentScope2) -> str:
    """A database in which AgentScope 2 has a session."""
    about = {"messages": MESSAGES, "context": IN_CONTEXT, "summary": "They plan a trip."}
    agentscope2("write", place, **ADA, **about)
    return place


def done(run: Run, *command: str) -> str:
    """Return what a command prints that must not fail."""
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def told(run: Run, *command: str) -> Any:
    """Return the report of a command."""
    return json.loads(done(run, *command, "--json"))


def values(log: list[dict[str, Any]]) -> list[str]:
    """Return what messages say, without the times and ids that AgentScope makes up."""
    return [json.dumps([one["id"], one["role"], blocks(one)]) for one in log]


def blocks(message: dict[str, Any]) -> list[Any]:
    return [
        {key: block.get(key) for key in ("type", "text", "input", "output", "name")}
        for block in message["content"]
    ]


Replies = Callable[..., list[str]]


@pytest.fixture
def reply(agentscope2: AgentScope2, model: ModelServer) -> Replies:
    """The request to a model for a reply: every text, call and result, in order."""

    def sent(place: str, about: dict[str, Any], say: str) -> list[str]:
        model.requests.clear()
        assert agentscope2("reply", place, **about, say=say, model=model.url) == "So be it."
        [prompt] = model.requests
        found = []
        for message in prompt.body["messages"]:
            content = message.get("content") or []
            content = [{"text": content}] if isinstance(content, str) else content
            found += [block["text"] for block in content]
            found += [call["id"] for call in message.get("tool_calls", [])]
        return [one for one in found if "system-reminder" not in one][1:]

    return sent


def test_sessions_are_read(written: str, run: Run) -> None:
    report = told(run, "inspect", written)
    [memory] = report["memories"]
    assert (memory["user"], memory["session"]) == ("ada", "trip")
    assert (memory["messages"], memory["marks"]) == (5, {"compressed": 2})
    assert memory["summary"] is True


def test_session_is_archived_and_goes_on_elsewhere(
    written: str,
    run: Run,
    agentscope2: AgentScope2,
    reply: Replies,
    tmp_path: Path,
    servers: Servers,
) -> None:
    archive = str(tmp_path / "a.ndjson")
    done(run, "migrate", written, archive)
    before = agentscope2("read", written, **ADA)
    for number, (kind, make) in enumerate(SQL_PLACES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = make(folder, servers)
        mark = "&" if "?" in target else "?"
        done(run, "migrate", archive, f"{target}{mark}layout=agentscope2")
        agentscope2("migrate", target)
        after = agentscope2("read", target, **ADA)
        assert after["log"] == before["log"], kind
        for name in ("updated_at", "created_at"):  # MySQL keeps whole seconds
            assert after["session"].pop(name)[:17] == before["session"][name][:17]
        kept = {name: one for name, one in before["session"].items() if name in after["session"]}
        assert after["session"] == kept, kind
        assert after["sessions"] == ["trip"]
        done(run, "verify", archive, target)
        assert reply(target, ADA, "Go on!") == [
            *("They plan a trip.", "And then? 😀"),
            *("call2", "found by call2", "That was call2.", "Thanks.", "Go on!"),
        ]
        report = told(run, "inspect", target)
        assert report["memories"][0]["messages"] == 7
        assert report["memories"][0]["marks"] == {"compressed": 2}


def test_changes_are_seen_and_undone(
    written: str, run: Run, agentscope2: AgentScope2, reply: Replies
) -> None:
    before = agentscope2("read", written, **ADA)
    done(run, "delete", written, "--id", "m1", "--id", "m2", "--yes")
    after = agentscope2("read", written, **ADA)
    assert [one["id"] for one in after["log"]] == ["m0", "m3", "m4"]
    assert [one["id"] for one in after["session"]["state"]["context"]] == ["m3", "m4"]
    assert reply(written, ADA, "So?")[0] == "They plan a trip."
    done(run, "undo", "--store", written, "--yes")
    again = agentscope2("read", written, **ADA)
    ids = {one["id"] for one in before["log"]}
    # In MySQL, what came within the same second may stand between them.
    assert [one for one in again["log"] if one["id"] in ids] == before["log"]
    context = again["session"]["state"]["context"]
    assert context[:3] == before["session"]["state"]["context"]
    assert len(again["log"]) == 7


def test_compression_moves_messages_out_of_the_context(
    written: str, run: Run, agentscope2: AgentScope2, reply: Replies
) -> None:
    before = agentscope2("read", written, **ADA)
    done(run, "compress", written, "--keep-recent", "1")
    after = agentscope2("read", written, **ADA)
    assert after["log"] == before["log"]
    assert [one["id"] for one in after["session"]["state"]["context"]] == ["m4"]
    assert after["session"]["state"]["summary"] != before["session"]["state"]["summary"]
    assert reply(written, ADA, "So?")[-2:] == ["Thanks.", "So?"]
    done(run, "undo", "--store", written, "--yes")
    again = agentscope2("read", written, **ADA)
    assert again["session"]["state"]["context"][:3] == before["session"]["state"]["context"]
    assert again["session"]["state"]["summary"] == before["session"]["state"]["summary"]


def test_context_that_differs_from_the_log_survives(
    place: str, run: Run, agentscope2: AgentScope2
) -> None:
    about = {"messages": MESSAGES, "context": IN_CONTEXT, "variants": [SHORTER]}
    agentscope2("write", place, **ADA, **about)
    before = agentscope2("read", place, **ADA)["session"]["state"]["context"]
    assert before[1]["content"][1]["output"] == "cut"
    done(run, "delete", place, "--id", "m3", "--yes")
    done(run, "undo", "--store", place, "--yes")
    done(run, "mark", "add", place, "compressed", "--id", "m3")
    found = agentscope2("read", place, **ADA)["session"]["state"]["context"]
    assert [one["id"] for one in found] == ["m2", "m4"]
    done(run, "undo", "--store", place, "--yes")
    assert agentscope2("read", place, **ADA)["session"]["state"]["context"] == before


def waiting(id: str, state: str) -> dict[str, Any]:
    """Return a message with a call in a state."""
    call = {"type": "tool_call", "id": f"{id}c", "name": "pay", "input": "{}", "state": state}
    return {"id": id, "name": "friday", "role": "assistant", "content": [call]}


def test_a_call_that_waits_is_never_repaired(
    place: str, run: Run, agentscope2: AgentScope2, tmp_path: Path
) -> None:
    """The agent takes the confirmation after a repair, and after a copy to 1.x and back."""
    old = datetime.now() - timedelta(days=2)
    for state in ("asking", "submitted", "allowed"):
        about = {"user": "ada", "session": state, "agent": "friday"}
        messages = [text(f"{state}-1", "user", "Pay 200."), waiting(f"{state}-2", state)]
        for minutes, message in enumerate(messages):
            message["created_at"] = (old + timedelta(minutes=minutes)).isoformat()
        ids = [one["id"] for one in messages]
        agentscope2("write", place, **about, messages=messages, context=ids)
    asks = {"user": "ada", "session": "asking", "agent": "friday"}
    found = json.loads(run("doctor", place, "--json").stdout)["findings"]
    shown = [(one["code"], one["session"]) for one in found if one["user"] == "ada"]
    assert shown == [
        ("tool-call-without-result", "allowed"),
        ("waiting-call", "asking"),
        ("waiting-call", "submitted"),
    ]
    other, back = f"{tmp_path}/old.db", f"sqlite:///{tmp_path}/back.db?layout=agentscope2"
    fails(run("migrate", place, other), 9, "calls that wait", "pay 2")
    assert run("migrate", place, other, "--lossy").exit_code == 0
    done(run, "migrate", other, f"{back}&agent=friday")
    assert agentscope2("confirm", back, **asks) is True
    repaired = told(run, "doctor", place, "--repair", "--yes")["repaired"]
    assert [(one["code"], one["session"]) for one in repaired] == [
        ("tool-call-without-result", "allowed")
    ]
    assert agentscope2("confirm", place, **asks) is True


def test_memories_of_1x_become_sessions_of_an_agent(
    place: str, run: Run, agentscope2: AgentScope2, reply: Replies, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    content = [{"type": "text", "text": "Hi 😀"}]
    message = {"id": "x", "name": "Ada", "role": "user", "content": content, "metadata": {}}
    message["timestamp"] = "2025-03-01 12:00:00.000"
    state.write_text(json.dumps({"_compressed_summary": "Before.", "content": [[message, []]]}))
    mark = "&" if "?" in place else "?"
    target = f"{place}{mark}layout=agentscope2&agent=helper"
    done(run, "migrate", str(state), target, "--user", "ada", "--session", "trip")
    about = {"user": "ada", "session": "trip", "agent": "helper"}
    found = agentscope2("read", place, **about)
    assert found["agent"] == "helper"
    assert found["sessions"] == ["trip"]
    assert reply(place, about, "And?") == ["Before.", "Hi 😀", "And?"]
