"""The tables of LangChain.js in PostgreSQL, which n8n has as its chat memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stores.test_tables import ask
from tests.support.cli import fails, report

# dist/stores/message/postgres.js of @langchain/community 1.1, which stored these messages
TABLE = (
    "CREATE TABLE n8n_chat_histories (id SERIAL PRIMARY KEY, session_id VARCHAR(255) NOT NULL, "
    "message JSONB NOT NULL)"
)
EMPTY: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}}
CALL = {"id": "t1", "name": "look", "args": {"q": "moon"}}
MESSAGES = [
    {"name": "ada", "type": "human", "content": "how far is the moon?", **EMPTY},
    {"type": "ai", "content": "", "tool_calls": [CALL], "invalid_tool_calls": [], **EMPTY},
    {"type": "tool", "content": "384400 km", "tool_call_id": "t1", **EMPTY},
    {"type": "ai", "content": "384,400 km", "tool_calls": [], "invalid_tool_calls": [], **EMPTY},
]
ROWS = "SELECT id, message FROM n8n_chat_histories WHERE session_id = 's1' ORDER BY id"


@pytest.fixture
def database(postgresql_url: str) -> str:
    """The URL of a database with a conversation."""
    rows = ", ".join(f"('s1', '{json.dumps(one)}')" for one in MESSAGES)
    ask(postgresql_url, TABLE)
    ask(postgresql_url, f"INSERT INTO n8n_chat_histories (session_id, message) VALUES {rows}")
    return postgresql_url


@pytest.fixture
def history(run: Any, database: str) -> str:
    """The URL of its table, with the mapping that detect proposes."""
    [found] = report(run("stores", "detect", database, "--json"))["tables"]
    assert (found["layout"], found["dialect"]) == ("table", "langchain-js")
    columns = ",".join(f"{role}:{name}" for role, name in found["columns"].items())
    return f"{database}?layout=table&table={found['table']}&columns={columns}&dialect=langchain-js"


@pytest.mark.slow
def test_messages_are_read_with_their_calls(run: Any, history: str) -> None:
    shown = run("inspect", history, "--messages").stdout
    assert "#1 ada (user)\n   how far is the moon?" in shown
    assert '→ look  {"q": "moon"}' in shown
    assert "9 characters  384400 km" in shown
    assert run("doctor", history).exit_code == 0


@pytest.mark.slow
def test_copy_to_agentscope_and_back_is_exact(
    run: Any, history: str, database: str, tmp_path: Path
) -> None:
    before = ask(database, ROWS)
    copy = tmp_path / "m.db"
    assert run("migrate", history, copy).exit_code == 0
    assert run("verify", history, copy).exit_code == 0
    ask(database, "DELETE FROM n8n_chat_histories")
    assert run("migrate", copy, history).exit_code == 0
    assert [_value(row) for row in ask(database, ROWS)] == [_value(row) for row in before]


@pytest.mark.slow
def test_new_messages_have_the_form_of_langchain_js(
    run: Any, history: str, database: str, tmp_path: Path
) -> None:
    chat = tmp_path / "c.jsonl"
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    chat.write_text(json.dumps({"messages": messages, "memctl": {"session": "s2"}}))
    assert run("migrate", chat, history).exit_code == 0
    found = [_value(row) for row in ask(database, ROWS.replace("'s1'", "'s2'"))]
    assert [(one["type"], one["content"]) for one in found] == [("human", "hello"), ("ai", "hi")]
    assert all(isinstance(one["additional_kwargs"], dict) and "data" not in one for one in found)


@pytest.mark.slow
def test_undo_of_a_deletion_restores_rows(run: Any, history: str, database: str) -> None:
    before = ask(database, ROWS)
    done = report(run("delete", history, "--last", "1", "--yes", "--json"))["run"]
    assert ask(database, ROWS) == before[:3]
    assert run("undo", done, "--store", history).exit_code == 0
    assert ask(database, ROWS) == before


def test_they_are_no_messages_of_langchain_for_python(run: Any, database: str) -> None:
    """LangChain for Python stores the fields under ``data``, and fails to load other messages."""
    place = f"{database}?layout=langchain&table=n8n_chat_histories"
    fails(run("inspect", place, "--messages"), 8, "is no message of LangChain: it has no content")
    found = report(run("doctor", place, "--json"), 6)["findings"]
    assert [(one["code"], one["repairable"]) for one in found] == [("damaged-row", False)] * 4


def _value(row: Any) -> dict[str, Any]:
    message = row[1]
    return json.loads(message) if isinstance(message, str) else dict(message)
