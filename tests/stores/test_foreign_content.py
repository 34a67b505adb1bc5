"""Roles, documents and contents that a framework has and another one does not know."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import contents, fails, report
from tests.support.servers.pool import Servers

SPRING = (
    "CREATE TABLE spring_ai_chat_memory (sequence_id INTEGER PRIMARY KEY, "
    "conversation_id VARCHAR(36) NOT NULL, content TEXT NOT NULL, type VARCHAR(10) NOT NULL "
    "CHECK (type IN ('USER', 'ASSISTANT', 'SYSTEM', 'TOOL')), \"timestamp\" TIMESTAMP NOT NULL)"
)
"""The columns of Spring AI's schema for SQLite."""
COLUMNS = "session:conversation_id,role:type,content:content,time:timestamp,order:sequence_id"


def execute(path: Path, sql: str, rows: Sequence[Any] = ((),)) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        found = [database.execute(sql, row).fetchall() for row in rows]
    return found[0]


@pytest.fixture
def spring(tmp_path: Path) -> Path:
    """A table of Spring AI's chat memory."""
    path = tmp_path / "spring.db"
    execute(path, SPRING)
    said = [("SYSTEM", "Be brief."), ("USER", "My seat is 12A."), ("ASSISTANT", "Noted.")]
    rows = [(number, "kyoto", text, role) for number, (role, text) in enumerate(said)]
    sql = "INSERT INTO spring_ai_chat_memory VALUES (?, ?, ?, ?, '2026-03-01 10:00:00')"
    execute(path, sql, rows)
    return path


def url(path: Path) -> str:
    return f"sqlite:///{path}?layout=table&table=spring_ai_chat_memory&columns={COLUMNS}"


def roles(run: Any, place: str) -> dict[str, int]:
    found: dict[str, int] = report(run("inspect", place, "--json"))["totals"]["roles"]
    return found


@pytest.mark.parametrize("target", ["agents.db", "chats.db?layout=langchain", "back"])
def test_roles_in_capitals_are_roles(run: Any, spring: Path, tmp_path: Path, target: str) -> None:
    """Spring AI reads what memctl writes into its table: roles in capitals."""
    wanted = {"user": 1, "assistant": 1, "system": 1}
    assert roles(run, url(spring)) == wanted
    if target != "back":
        place = f"sqlite:///{tmp_path}/{target}"
        assert run("migrate", url(spring), place).exit_code == 0
        assert roles(run, place) == wanted
        return
    agents = tmp_path / "agents.db"
    assert run("migrate", url(spring), agents).exit_code == 0
    assert run("delete", url(spring), "--role", "user", "--yes").exit_code == 0
    assert roles(run, url(spring)) == {"assistant": 1, "system": 1}
    assert run("undo", "--store", url(spring), "--yes").exit_code == 0
    execute(spring, "INSERT INTO spring_ai_chat_memory VALUES (9, 'oslo', 'Hi', 'USER', '2026')")
    execute(spring, "DELETE FROM spring_ai_chat_memory WHERE conversation_id = 'kyoto'")
    assert run("migrate", agents, url(spring), "--lossy").exit_code == 0
    found = execute(spring, "SELECT type FROM spring_ai_chat_memory ORDER BY sequence_id")
    assert found == [("USER",), ("SYSTEM",), ("USER",), ("ASSISTANT",)]


def test_a_role_that_nobody_knows_is_named(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE own (id INTEGER PRIMARY KEY, chat TEXT, who TEXT, said TEXT)")
    execute(path, "INSERT INTO own VALUES (1, 'a', 'user', 'Hi'), (2, 'a', 'critic', 'Too fast.')")
    place = f"sqlite:///{path}?layout=table&table=own&columns=session:chat,role:who,content:said"
    [found] = report(run("doctor", place, "--json"))["findings"]
    assert (found["code"], found["count"]) == ("unknown-role", 1)
    assert found["message"].endswith("the first has the role 'critic'")
    target = tmp_path / "agents.db"
    fails(run("migrate", place, target), 9, "roles that memctl does not know: critic 1")
    assert run("migrate", place, target, "--lossy").exit_code == 0
    assert roles(run, str(target)) == {"user": 2}
    [messages] = contents(str(target)).values()
    assert [json.loads(one.message)["name"] for one in messages] == ["user", "critic"]
    assert run("verify", place, target).exit_code == 0


FOREIGN = ['{"role": "user", "content": "hi"}', '{"foo": 1}']


@pytest.mark.parametrize("kind", ["sqlite", "redis", "files"])
def test_documents_of_another_program_are_damage(
    run: Any, tmp_path: Path, servers: Servers, kind: str
) -> None:
    """LangChain fails on them; they are never the words of an assistant."""
    if kind == "sqlite":
        place = f"sqlite:///{tmp_path}/messages.db"
        execute(
            tmp_path / "messages.db",
            "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)",
        )
        sql = "INSERT INTO message_store (session_id, message) VALUES ('s', ?)"
        execute(tmp_path / "messages.db", sql, [(one,) for one in FOREIGN])
    elif kind == "redis":
        base = servers.redis.fresh()
        servers.redis.client(base).rpush("message_store:s", *FOREIGN)
        place = f"{base}?layout=langchain"
    else:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "s.json").write_text(f"[{', '.join(FOREIGN)}]")
        place = f"langchain:{tmp_path}/files"
    said = "is no message of LangChain: it has no type"
    fails(run("inspect", place, "--messages"), 8, said)
    fails(run("migrate", place, tmp_path / "agents.db"), 8, said)
    found = report(run("doctor", place, "--json"), 6)["findings"]
    assert {one["repairable"] for one in found} == {False}
    assert not any("AgentScope" in one["meaning"] + one["remedy"] for one in found)


ITEMS = [
    {"role": "user", "content": "Draw a cat."},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "Y2lwaGVy"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "cat"}},
    {"type": "image_generation_call", "id": "ig_1", "result": "aGk" * 9000, "status": "completed"},
    {"role": "assistant", "content": "Here.", "id": "m1", "type": "message"},
]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A session of the OpenAI Agents SDK with tools that OpenAI runs."""
    path = tmp_path / "items.db"
    execute(path, "CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY)")
    execute(
        path,
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, "
        "message_data TEXT, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
    )
    execute(path, "INSERT INTO agent_sessions VALUES ('s')")
    sql = "INSERT INTO agent_messages (session_id, message_data) VALUES ('s', ?)"
    execute(path, sql, [(json.dumps(one),) for one in ITEMS])
    return path


def test_items_of_openai_are_words_that_are_named(run: Any, items: Path, tmp_path: Path) -> None:
    target = tmp_path / "agents.db"
    assert roles(run, str(items)) == {"user": 1, "compaction": 1, "assistant": 3}
    fails(run("migrate", items, target), 9, "compaction 1, web_search_call 1")
    fails(run("export", items, "-o", tmp_path / "a.jsonl"), 9, "compaction 1", "image 1")
    done = run("migrate", items, target, "--lossy")
    assert (done.exit_code, "a word takes their places" in done.stderr) == (0, True)
    [messages] = contents(str(target)).values()
    said = [json.loads(one.message)["content"] for one in messages]
    texts = [[block.get("text") for block in one] for one in said if isinstance(one, list)]
    assert texts == [["[web_search_call]"], [None], ["Here."]]
    assert [one for one in said if isinstance(one, str)] == ["Draw a cat.", "[compaction]"]
    back = f"sqlite:///{tmp_path}/back.db?layout=openai-agents"
    assert run("migrate", target, back).exit_code == 0
    assert run("verify", items, back).exit_code == 0


def test_a_picture_that_a_model_made_is_offloaded(run: Any, items: Path, tmp_path: Path) -> None:
    before = execute(items, "SELECT message_data FROM agent_messages")
    folder = tmp_path / "blobs"
    assert run("offload", items, "--to", folder, "--larger", "20KB", "--yes").exit_code == 0
    after = [
        json.loads(one) for (one,) in execute(items, "SELECT message_data FROM agent_messages")
    ]
    assert after[3]["role"] == "assistant"
    assert "result" not in after[3]
    assert run("rehydrate", items, "--from", folder).exit_code == 0
    assert execute(items, "SELECT message_data FROM agent_messages") == before
