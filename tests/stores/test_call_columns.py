"""Tables with columns for calls of tools, as programs on OpenAI's API make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.stores.test_tables import ask, dump, execute, url
from tests.support.cli import contents, fails, report

TABLE = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, "
    "role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, "
    "timestamp REAL NOT NULL, finish_reason TEXT)"
)
COLUMNS = "session:session_id,role:role,content:content,time:timestamp,order:id"
NAMED = f"{COLUMNS},calls:tool_calls,call_id:tool_call_id,call_name:tool_name"
CALLS = (
    '[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\\"path\\": \\"/\\"}"}}]'
)
ROWS = [
    (1, "s1", "user", "list the files", None, None, None, 1767225600.5, None),
    (2, "s1", "assistant", None, None, CALLS, None, 1767225601.5, "tool_calls"),
    (3, "s1", "tool", "a b", "c1", None, "ls", 1767225602.5, None),
    (4, "s1", "assistant", "two files: a and b", None, None, None, 1767225603.5, "stop"),
]
KEY = MemoryKey("", "s1")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """The database of an agent that called a tool."""
    path = tmp_path / "agent.db"
    execute(path, TABLE)
    execute(path, f"INSERT INTO messages VALUES ({', '.join('?' * 9)})", ROWS)
    return path


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


def test_detect_proposes_the_columns_of_calls(run: Any, agent: Path) -> None:
    [found] = report(run("stores", "detect", str(agent), "--json"))["tables"]
    assert found["columns"] | {"calls": "tool_calls", "call_id": "tool_call_id"} == found["columns"]
    assert found["columns"]["call_name"] == "tool_name"
    assert "calls = tool_calls: calls of tools in JSON" in found["reasons"]


def test_a_call_and_its_result_are_read(run: Any, agent: Path, tmp_path: Path) -> None:
    there = str(tmp_path / "there.db")
    assert report(run("doctor", url(agent, NAMED), "--json"))["findings"] == []
    assert run("migrate", url(agent, NAMED), there).exit_code == 0
    [asked, call, result, answer] = [json.loads(one.message) for one in contents(there)[KEY]]
    assert (asked["role"], asked["content"]) == ("user", "list the files")
    block = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "/"}}
    assert (call["role"], call["content"]) == ("assistant", [block])
    output = {"type": "tool_result", "id": "c1", "name": "ls", "output": "a b"}
    assert (result["role"], result["content"]) == ("system", [output])
    assert (answer["role"], answer["content"]) == ("assistant", text("two files: a and b"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["agentscope2", "langchain", "llamaindex", "agno", "adk&app=a"])
def test_calls_go_to_any_framework_and_back(
    run: Any, agent: Path, tmp_path: Path, layout: str
) -> None:
    there, back = f"sqlite:///{tmp_path}/there.db?layout={layout}", tmp_path / "back.db"
    execute(back, TABLE)
    assert run("migrate", url(agent, NAMED), there).exit_code == 0
    assert report(run("doctor", there, "--json"))["findings"] == []
    target = url(back, NAMED, more="&content_encoding=text")
    assert run("migrate", there, target).exit_code == 0
    assert [row[:-1] for row in dump(back)] == [row[:-1] for row in again(ROWS)]
    assert [row[-1] for row in dump(back)] == [row[-1] for row in ROWS]


def again(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with JSON as memctl writes it."""
    return [
        (*row[:5], json.dumps(json.loads(row[5])) if row[5] else None, *row[6:]) for row in rows
    ]


def test_calls_of_agentscope_are_written_to_their_columns(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    execute(path, TABLE)
    source = tmp_path / "s.jsonl"
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}
    said = [
        {"role": "assistant", "content": "let me see", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
    ]
    source.write_text(json.dumps({"messages": said}))
    target = url(path, NAMED, more="&content_encoding=text")
    assert run("migrate", str(source), target, "--lossy").exit_code == 0
    [said_row, (_, _, role, content, id, *_)] = dump(path)
    calls = said_row[5]
    assert json.loads(calls) == [call]
    assert (role, content, id) == ("tool", "a b", "c1")


def test_delete_and_undo_leave_the_columns_byte_for_byte(run: Any, agent: Path) -> None:
    for columns in NAMED, COLUMNS:
        before = dump(agent)
        place = url(agent, columns)
        assert run("delete", place, "--all", "-y").exit_code == 0
        assert dump(agent) == []
        assert run("undo", "--store", place, "-y").exit_code == 0
        assert dump(agent) == before == ROWS


def test_undo_of_a_repair_where_the_database_fills_a_column(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    execute(path, TABLE.replace("finish_reason TEXT", "finish_reason TEXT DEFAULT 'none'"))
    execute(path, f"INSERT INTO messages VALUES ({', '.join('?' * 9)})", ROWS[:2])
    assert run("doctor", url(path, NAMED), "--repair", "-y").exit_code == 0
    [*_, answer] = dump(path)
    assert (answer[2], answer[4], answer[-1]) == ("tool", "c1", "none")
    assert run("undo", "--store", url(path, NAMED), "-y").exit_code == 0
    assert dump(path) == ROWS[:2]


def test_with_tool_pairs_takes_the_result_of_a_call(run: Any, agent: Path) -> None:
    place = url(agent, NAMED)
    [_, call, *_] = contents(place)[KEY]
    assert run("delete", place, "--id", call.id, "--with-tool-pairs", "-y").exit_code == 0
    assert [row[0] for row in dump(agent)] == [1, 4]


def test_calls_that_the_mapping_does_not_name_are_a_loss(
    run: Any, agent: Path, tmp_path: Path
) -> None:
    there = str(tmp_path / "there.db")
    result = run("migrate", url(agent, COLUMNS), there)
    fails(result, 9, "1 memory affected: ''/'s1'", "calls and call_id")
    assert 'add calls = "tool_calls" to the columns' in result.stderr
    assert run("migrate", url(agent, COLUMNS), there, "--session", "other").exit_code == 4
    assert run("migrate", url(agent, COLUMNS), str(tmp_path / "a.ndjson")).exit_code == 0
    assert run("migrate", url(agent, COLUMNS), there, "--lossy").exit_code == 0


OLD = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, chat TEXT, role TEXT, name TEXT, content TEXT, "
    "function_call TEXT)"
)


def test_functions_of_the_api_before_tools_are_calls(run: Any, tmp_path: Path) -> None:
    """They have no ids: a result has the name of its function."""
    path, there = tmp_path / "old.db", str(tmp_path / "there.db")
    execute(path, OLD)
    rows = [
        ("user", None, "how warm is it?", None),
        ("assistant", None, None, '{"name": "weather", "arguments": "{\\"at\\": \\"Oslo\\"}"}'),
        ("function", "weather", "3 degrees", None),
        ("assistant", None, "It is cold.", None),
    ]
    insert = (
        "INSERT INTO messages (chat, role, name, content, function_call) VALUES ('s1', ?, ?, ?, ?)"
    )
    execute(path, insert, rows)
    [found] = report(run("stores", "detect", str(path), "--json"))["tables"]
    assert found["columns"]["calls"] == "function_call"
    place = url(path, ",".join(f"{role}:{name}" for role, name in found["columns"].items()))
    assert report(run("doctor", place, "--json"))["findings"] == []
    assert run("migrate", place, there).exit_code == 0
    [_, call, result, _] = [json.loads(one.message)["content"] for one in contents(there)[KEY]]
    assert call == [
        {"type": "tool_use", "id": "weather", "name": "weather", "input": {"at": "Oslo"}}
    ]
    assert result == [
        {"type": "tool_result", "id": "weather", "name": "weather", "output": "3 degrees"}
    ]


@pytest.mark.slow
def test_calls_that_are_no_json_are_not_lost(run: Any, agent: Path, tmp_path: Path) -> None:
    execute(agent, "UPDATE messages SET tool_calls = 'ls(/' WHERE id = 2")
    place, there = url(agent, NAMED), str(tmp_path / "there.db")
    fails(run("migrate", place, there), 9, "contents that its framework does not know")
    assert run("migrate", place, there, "--lossy").exit_code == 0
    assert "ls(/" not in run("inspect", there, "--messages").stdout  # a note has it
    assert run("verify", place, there).exit_code == 0
    run("doctor", place, "--repair", "-y")  # the result, whose call memctl cannot see
    assert [row[5] for row in dump(agent) if row[0] == 2] == ["ls(/"]


TYPED = {
    "postgresql": ("SERIAL PRIMARY KEY", "TEXT", "JSONB"),
    "mysql": ("INTEGER PRIMARY KEY AUTO_INCREMENT", "VARCHAR(80)", "JSON"),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", TYPED)
def test_columns_of_json_hold_calls(
    run: Any, request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    place = request.getfixturevalue(f"{engine}_url")
    key, plain, of_json = TYPED[engine]
    ask(
        place,
        f"CREATE TABLE chats (nr {key}, chat {plain}, role {plain}, body {plain}, "
        f"tool_calls {of_json}, tool_call_id {plain})",
        f"INSERT INTO chats (chat, role, tool_calls) VALUES ('s1', 'assistant', '{CALLS}')"
        if engine == "postgresql"
        else "INSERT INTO chats (chat, role, tool_calls) VALUES "
        f"('s1', 'assistant', '{CALLS.replace(chr(92), chr(92) * 2)}')",
        "INSERT INTO chats (chat, role, body, tool_call_id) VALUES ('s1', 'tool', 'a b', 'c1')",
    )
    [found] = report(run("stores", "detect", place, "--json"))["tables"]
    assert found["columns"]["calls"] == "tool_calls"
    store = f"{place}{'&' if '?' in place else '?'}layout=table&table=chats&columns="
    store += ",".join(f"{role}:{name}" for role, name in found["columns"].items())
    before = ask(place, "SELECT * FROM chats ORDER BY nr")
    assert run("migrate", store, str(tmp_path / "there.db")).exit_code == 0
    [call, result] = [
        json.loads(one.message)["content"][0] for one in contents(str(tmp_path / "there.db"))[KEY]
    ]
    assert (call["name"], call["input"], result["output"]) == ("ls", {"path": "/"}, "a b")
    assert run("delete", store, "--all", "-y").exit_code == 0
    assert run("undo", "--store", store, "-y").exit_code == 0
    assert ask(place, "SELECT * FROM chats ORDER BY nr") == before


def test_a_row_with_calls_that_the_mapping_does_not_name_is_not_empty(
    run: Any, agent: Path
) -> None:
    place = url(agent, COLUMNS)
    codes = [one["code"] for one in report(run("doctor", place, "--json"))["findings"]]
    assert "empty-assistant-message" not in codes
    run("doctor", place, "--repair", "-y")
    assert dump(agent) == ROWS
