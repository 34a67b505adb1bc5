"""Files between AgentScope and memctl: state_dicts, and memories inside the states of sessions."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import Result

from tests.interop.test_migrate import asked, memories
from tests.support.agentscope import AgentScope
from tests.support.servers.pool import Servers

Run = Callable[..., Result]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Return the URL of a SQLite database that may be made."""
    return f"sqlite:///{tmp_path}/m.db"


def test_files_exported_state_dict_loads(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str
) -> None:
    written = memories(3)
    agentscope.write(database, written)
    expected = agentscope.read(database, asked(written))
    for one, before in zip(written, expected, strict=True):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        result = run(
            *("export", database, "--user", one["user"], "--session", one["session"], "--lossy"),
            *("-o", path),
        )
        assert result.exit_code == 0, result.output
        assert agentscope.read(str(path), asked([one])) == [before]


def test_files_state_dict_is_imported(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str
) -> None:
    [written] = memories(1)
    path = str(tmp_path / "state.json")
    agentscope.write(path, [written])
    names = ["--user", written["user"], "--session", written["session"]]
    result = run("import", path, database, *names)
    assert result.exit_code == 0, result.output
    assert agentscope.read(database, asked([written])) == agentscope.read(path, asked([written]))


@pytest.mark.parametrize("shape", ["bare messages", "no summary"])
def test_files_state_dict_of_an_older_version_is_imported(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str, shape: str
) -> None:
    """Up to 1.0.11 there were no marks, up to 1.0.15 no summary; 1.0.21 still loads both."""
    [written] = memories(1)
    path = tmp_path / "state.json"
    pairs = written["messages"]
    content = [message for message, _ in pairs] if shape == "bare messages" else pairs
    path.write_text(json.dumps({"content": content}))
    expected = agentscope.read(str(path), asked([written]))
    path.write_text(json.dumps({"content": content}))
    names = ["--user", written["user"], "--session", written["session"]]
    result = run("import", path, database, *names)
    assert result.exit_code == 0, result.output
    assert agentscope.read(database, asked([written])) == expected


def test_files_exported_folder_loads(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str
) -> None:
    written = memories(4)
    folder = tmp_path / "sessions"
    agentscope.write(database, written)
    result = run("export", database, "--as", "session-dir", "-o", folder, "--lossy")
    assert result.exit_code == 0, result.output
    expected = agentscope.read(database, asked(written))
    assert agentscope.read(str(folder), asked(written)) == expected


def test_files_memory_inside_an_agent(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str
) -> None:
    """It is found by its shape, and what is around it stays when it gets more messages."""
    written = memories(4)
    folder = tmp_path / "sessions"
    agentscope.write(str(folder), written, nested=True)
    before = agentscope.read(str(folder), asked(written), nested=True)
    result = run("import", folder, database)
    assert result.exit_code == 0, result.output
    assert agentscope.read(database, asked(written)) == before

    message = {**written[0]["messages"][0][0], "id": "one more"}
    agentscope.write(database, [{**one, "messages": [(message, ["hint"])]} for one in written])
    result = run("migrate", database, folder, "--lossy")
    assert result.exit_code == 0, result.output
    after = agentscope.read(database, asked(written))
    assert agentscope.read(str(folder), asked(written), nested=True) == after
    for path in folder.iterdir():
        state = json.loads(path.read_text())
        assert state["agent"]["name"] == "Friday"
        assert set(state) == {"agent"}


@pytest.mark.parametrize("between", ["session", "memory", "archive"])
def test_files_memory_keeps_its_path_on_the_way_through_other_stores(
    agentscope: AgentScope, run: Run, tmp_path: Path, servers: Servers, between: str
) -> None:
    written = memories(3)
    folder, restored = tmp_path / "sessions", tmp_path / "restored"
    agentscope.write(str(folder), written, nested="alone")
    expected = agentscope.read(str(folder), asked(written), nested="alone")
    stores = {
        "session": f"{servers.redis.fresh()}?layout=session",
        "memory": servers.redis.fresh(),
        "archive": str(tmp_path / "a.ndjson"),
    }
    # RedisMemory has no place for a path.
    path = ["--path", "agent.memory", "--lossy"] if between == "memory" else []
    assert run("migrate", folder, stores[between], "--lossy").exit_code == 0
    result = run("migrate", stores[between], restored, *path)
    assert result.exit_code == 0, result.stderr
    assert ("not their summary" in result.stderr) is (between == "memory")
    found = agentscope.read(str(restored), asked(written), nested="alone")
    summary = {"summary": ""} if between == "memory" else {}
    assert found == [one | summary for one in expected]
    assert run("verify", folder, restored).exit_code == (6 if between == "memory" else 0)


@pytest.mark.parametrize("kind", ["sql", "redis", "file"])
def test_messages_without_a_time_load(
    agentscope: AgentScope, run: Run, tmp_path: Path, database: str, redis_url: str, kind: str
) -> None:
    """AgentScope shows the moment of loading as their time, and memctl none."""
    place = {"sql": database, "redis": redis_url, "file": str(tmp_path / "state.json")}[kind]
    chat = tmp_path / "chat.jsonl"
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    chat.write_text(json.dumps({"messages": said, "memctl": {"session": "s", "user": "u"}}))
    assert run("migrate", chat, place).exit_code == 0
    selected = run("delete", place, "--older-than", "0s", "--dry-run", "--json")
    found = json.loads(selected.stdout)
    assert (found["messages"]["selected"], found["untimed"]) == (0, 2)
    [memory] = agentscope.read(place, [{"user": "u", "session": "s", "marks": []}])
    assert [one["role"] for one in memory["messages"]] == ["user", "assistant"]
    now = datetime.now().isoformat(" ")[:10]
    assert all(one["timestamp"].startswith(now) for one in memory["messages"])
