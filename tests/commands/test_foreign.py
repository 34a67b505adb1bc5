"""Formats that memctl recognizes and does not read: every command names them, and the way out."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import Result

from memctl.layouts import foreign
from tests.support.cli import fails

Run = Callable[..., Result]
TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
TIME = "2026-03-01T10:00:00.000Z"
_TEXT = [{"type": "text", "text": "hello"}]

DOCUMENTS: dict[str, Any] = {
    "an export of ChatGPT": [
        {"title": "a folder"},
        {"title": "Trees", "mapping": {"r": {"id": "r", "message": None}}, "current_node": "r"},
    ],
    "an export of claude.ai": [
        {"uuid": "k1", "name": "Trees", "chat_messages": [{"sender": "human", "text": "hello"}]}
    ],
    "an export of Open WebUI": [
        {"id": "w1", "chat": {"history": {"currentId": "b", "messages": {}}, "messages": TALK}}
    ],
    "an export of LibreChat": {
        "conversationId": "c",
        "messages": [{"messageId": "m", "sender": "User", "text": "hi", "isCreatedByUser": True}],
    },
    "a conversation of LM Studio": {"name": "Trees", "messages": [{"versions": TALK}]},
    "a session of Gemini CLI": {
        "sessionId": "s",
        "projectHash": "p",
        "messages": [{"id": "1", "type": "user", "content": "hello"}],
    },
    "a session that OpenCode exports or imports": {
        "info": {"id": "ses_1"},
        "messages": [{"info": {"role": "user"}, "parts": [{"type": "text", "text": "hello"}]}],
    },
    "sessions that Hermes imports": [
        {"id": "s", "source": "cli", "started_at": 1.0, "messages": TALK}
    ],
    "a session of Continue": {"history": [{"message": TALK[0], "contextItems": []}]},
    "a chat of GitHub Copilot": {"responderUsername": "GitHub Copilot", "requests": []},
    "a SimpleChatStore of LlamaIndex": {
        "store": {"ada": [{"role": "user", "blocks": [{"block_type": "text", "text": "hello"}]}]},
        "class_name": "SimpleChatStore",
    },
    "an agent file of Letta (.af)": {
        "agents": [{"id": "agent-0", "messages": [{"role": "user", "content": _TEXT}]}],
        "blocks": [],
    },
    "a chat history of Semantic Kernel": {
        "messages": [{"role": "user", "items": [{"content_type": "text", "text": "hello"}]}]
    },
    "the state of an AutoGen agent": {
        "type": "AssistantAgentState",
        "llm_context": {"messages": [{"content": "hello", "source": "user"}]},
    },
    "a chat of the Vercel AI SDK": [{"id": "1", "role": "user", "parts": _TEXT}],
    "messages of Pydantic AI": [
        {"parts": [{"part_kind": "user-prompt", "content": "hello"}], "kind": "request"}
    ],
    "messages of Haystack": [{"role": "user", "meta": {}, "name": None, "content": _TEXT}],
    "the messages of LangChain": [{"type": "human", "data": {"content": "hello"}}],
    "runs or a dataset of LangSmith": [{"inputs": {"messages": TALK}, "outputs": {}}],
    "ShareGPT conversations": [{"conversations": [{"from": "human", "value": "hello"}]}],
    "a dataset of prompts and answers": [{"instruction": "a tree", "input": "", "output": "oak"}],
    "a JSON document with one conversation": {"messages": TALK},
    "a JSON document with a list of conversations": [{"messages": TALK}],
    "a JSON document with a list of messages": TALK,
    "a JSON document with a list of AgentScope's messages": [
        {"name": "ada", "role": "user", "content": "hello", "timestamp": "2026-03-01 10:00:00.000"}
    ],
    "a file of a session of AgentScope Java": {
        "memory": {"messages": [{"role": "USER", "content": _TEXT}]}
    },
}
LINES: dict[str, list[Any]] = {
    "a transcript of Claude Code": [
        {"type": "summary", "summary": "Trees", "leafUuid": "u1"},
        {"type": "user", "uuid": "u1", "sessionId": "s", "message": TALK[0], "timestamp": TIME},
    ],
    "a transcript of Codex": [
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "x1", "cwd": "/srv"}},
        {"timestamp": TIME, "type": "response_item", "payload": {"type": "message"}},
    ],
    "ShareGPT conversations": [{"conversations": [{"from": "human", "value": "hello"}]}],
    "a dataset of Gemini": [{"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}],
    "a batch of OpenAI requests": [{"custom_id": "1", "body": {"messages": TALK}}],
    "runs or a dataset of LangSmith": [{"inputs": {"messages": TALK}, "outputs": {}}],
    "a dataset of prompts and answers": [{"prompt": "a tree", "completion": "oak"}],
    "a chat of the Vercel AI SDK": [{"messages": [{"role": "user", "parts": _TEXT}]}],
    "a chat history of Semantic Kernel": [{"messages": [{"role": "user", "items": []}]}],
    "a file of a session of AgentScope Java": [{"role": "USER", "name": "ada", "content": _TEXT}],
    "one message of AgentScope a line": [
        {"name": "ada", "role": "user", "content": "hello", "timestamp": "2026-03-01 10:00:00.000"}
    ],
    "one message a line": TALK,
}


def _refused(run: Run, store: str, name: str, tmp_path: Path) -> None:
    """Every command that opens a store ends with exit code 8, and the name of the format."""
    target = tmp_path / "copy.db"
    for words in (
        ("inspect", store),
        ("doctor", store),
        ("export", store, "-o", tmp_path / "out.ndjson"),
        ("migrate", store, target),
        ("delete", store, "--all", "--yes"),
    ):
        fails(run(*words), 8, f"holds {name}", "which memctl does not read", "hint:")
    assert not (tmp_path / "out.ndjson").exists()


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("extension", ["json", "af"])
def test_foreign_documents_are_named(run: Run, tmp_path: Path, name: str, extension: str) -> None:
    path = tmp_path / f"export.{extension}"
    path.write_text(json.dumps(DOCUMENTS[name]))
    before = path.read_bytes()
    _refused(run, str(path), name, tmp_path)
    path.write_text(json.dumps(DOCUMENTS[name], indent=2))
    fails(run("inspect", path), 8, f"holds {name}")
    path.write_bytes(before)


def test_foreign_configuration_of_mem0_is_a_store_under_another_name(
    run: Run, tmp_path: Path
) -> None:
    for name, written in (("mem0.json", "mem0:{}"), ("my mem0.json", "'mem0:{}'")):
        path = tmp_path / name
        path.write_text(json.dumps({"vector_store": {"provider": "qdrant", "config": {}}}))
        hint = f"memctl inspect {written.format(path)}"
        for words in (("inspect", path), ("search", path, "tea"), ("delete", path, "--all", "-y")):
            fails(run(*words), 8, "holds a configuration of mem0", hint)


@pytest.mark.parametrize("name", LINES)
def test_foreign_lines_are_named(run: Run, tmp_path: Path, filled: str, name: str) -> None:
    text = "".join(json.dumps(line) + "\n" for line in LINES[name])
    for file in ("chats.jsonl", "chats.json", "chats.ndjson", "chats"):
        path = tmp_path / file
        path.write_text(text * (2 if file == "chats.json" else 1))
        fails(run("inspect", path), 8, f"holds {name}")
    path = tmp_path / "chats.jsonl"
    _refused(run, str(path), name, tmp_path)
    fails(run("migrate", filled, path), 8, f"holds {name}")
    assert path.read_text() == text


def test_foreign_formats_are_known_by_their_beginning(run: Run, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hello " * foreign.BEGINNING}]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": talk}))
    assert run("inspect", path).exit_code == 0
    path.write_text(json.dumps(talk[0]) + "\n")
    fails(run("inspect", path), 8, "holds one message a line")
    document = tmp_path / "chats.json"
    document.write_text(json.dumps([{"chat_messages": talk}]))
    fails(run("inspect", document), 8, "holds an export of claude.ai")


def test_conversations_under_another_extension_are_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(f"{json.dumps({'messages': TALK})}\n" * 2)
    fails(run("inspect", path), 8, "OpenAI chat messages without the extension .jsonl")


def test_foreign_file_is_no_target(run: Run, tmp_path: Path, filled: str) -> None:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps({"messages": TALK}))
    before = path.read_bytes()
    copy = ("migrate", filled, path, "--user", "user0", "--session", "session0")
    fails(run(*copy), 8, "holds a JSON document with one conversation")
    assert path.read_bytes() == before


# agents/context/scroll/history.py of qwenpaw 2.2.2
QWENPAW = (
    "conversation_history (seq INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, "
    "agent_id TEXT, kind TEXT NOT NULL, role TEXT, name TEXT, content TEXT, tool_call_id TEXT, "
    "tool_input TEXT, tool_state TEXT, headline TEXT, blocks TEXT, metadata TEXT, created_at TEXT, "
    "dedup_key TEXT)"
)
TABLES = {
    "the history of mem0": [
        "history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, new_memory TEXT, "
        "event TEXT, created_at DATETIME, updated_at DATETIME, is_deleted INTEGER)"
    ],
    # mem0ai 3.3.1 of npm
    "the facts of mem0's TypeScript library": [
        "vectors (id TEXT PRIMARY KEY, vector BLOB NOT NULL, payload TEXT NOT NULL)",
        "memory_migrations (id INTEGER PRIMARY KEY AUTOINCREMENT, user_id TEXT NOT NULL UNIQUE)",
    ],
    "the history of mem0's TypeScript library": [
        "memory_history (id INTEGER PRIMARY KEY AUTOINCREMENT, memory_id TEXT NOT NULL, "
        "previous_value TEXT, new_value TEXT, action TEXT NOT NULL, created_at TEXT)",
        "messages (id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, content TEXT, name TEXT, "
        "created_at TEXT)",
    ],
    "the history of QwenPaw": [QWENPAW],
    "the collections of Chroma": [
        "collections (id TEXT PRIMARY KEY, name TEXT NOT NULL, dimension INTEGER)",
        "embedding_metadata (id INTEGER, key TEXT NOT NULL, string_value TEXT, int_value INTEGER)",
    ],
    "the long-term store of LangGraph": [
        "store (prefix TEXT, key TEXT, value TEXT, created_at TIMESTAMP, updated_at TIMESTAMP, "
        "expires_at TIMESTAMP, ttl_minutes REAL, PRIMARY KEY (prefix, key))",
        "store_migrations (v INTEGER PRIMARY KEY)",
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_foreign_tables_are_named(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "agents.db"
    with closing(sqlite3.connect(path)) as database, database:
        for table in TABLES[name]:
            database.execute(f"CREATE TABLE {table}")
    _refused(run, str(path), name, tmp_path)
    fails(run("stores", "detect", path), 8, name)


def test_foreign_folder_of_vectors_leads_to_the_configuration(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "qdrant"
    (folder / "collection" / "mem0").mkdir(parents=True)
    (folder / "meta.json").write_text('{"collections": {"mem0": {}}, "aliases": {}}')
    fails(run("inspect", folder), 8, "the collections of Qdrant", "mem0:CONFIG.json")


@pytest.mark.parametrize("key", ["kyoto", "|v2|acme|shop|~none|hist|kyoto"])
def test_foreign_keys_of_agent_framework_are_named(
    run: Run, client: redis.Redis, redis_url: str, key: str
) -> None:
    """The keys are those of RedisHistoryProvider of agent-framework-redis 1.0."""
    name = f"chat_messages{key}" if key.startswith("|") else f"chat_messages:{key}"
    client.rpush(name, json.dumps({"type": "message", "role": "user", "contents": []}))
    fails(run("inspect", redis_url), 8, "messages of Microsoft Agent Framework", "get_messages()")


def _turn(id: str, parent: str | None, role: str, text: str) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    message = {"id": id, "author": {"role": role}, "content": content}
    return {"id": id, "message": message, "parent": parent}


_FORK = [_turn("a", "r", "user", "hello"), _turn("b", "a", "assistant", "hi")]
_ROOT = {"id": "r", "message": None, "parent": None}
SAMPLES: dict[str, list[Any]] = {
    "lines.jsonl": TALK,
    "array.json": [TALK],
    "sharegpt.jsonl": [
        {
            "id": "a1",
            "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}],
        }
    ],
    "conversations.json": [
        [
            {"title": "a folder"},
            {
                "title": "Trees",
                "mapping": {
                    **{"r": _ROOT, "x": _turn("x", "a", "assistant", "an older answer")},
                    **{one["id"]: one for one in _FORK},
                },
                "current_node": "b",
            },
        ]
    ],
    "claude.json": [
        [
            {
                "uuid": "k1",
                "chat_messages": [
                    {"sender": "human", "text": "hello"},
                    {"sender": "assistant", "text": "hi"},
                ],
            }
        ]
    ],
    "openwebui.json": [[{"id": "w", "user_id": "", "chat": {"history": {}, "messages": TALK}}]],
    "claude-code.jsonl": [
        {"type": "summary", "summary": "Trees", "leafUuid": "u1"},
        {"uuid": "u1", "sessionId": "s", "isSidechain": False, "message": TALK[0]},
        {"uuid": "u2", "sessionId": "s", "isSidechain": True, "message": TALK[0]},
        {
            **{"uuid": "u3", "sessionId": "s", "isSidechain": False},
            "message": {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
        },
    ],
    "codex.jsonl": [
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "x1"}},
        *(
            {
                **{"timestamp": TIME, "type": "response_item"},
                "payload": {
                    **{"type": "message", "role": one["role"]},
                    "content": [{"type": "text", "text": one["content"]}],
                },
            }
            for one in TALK
        ),
    ],
    "chat_store.json": [
        {
            "store": {
                "ada": [
                    {
                        "role": one["role"],
                        "blocks": [{"block_type": "text", "text": one["content"]}],
                    }
                    for one in TALK
                ]
            },
            "class_name": "SimpleChatStore",
        }
    ],
    "memo.af": [
        {
            "agents": [
                {
                    "name": "memo",
                    "messages": [
                        {"role": one["role"], "content": [{"type": "text", "text": one["content"]}]}
                        for one in TALK
                    ],
                }
            ],
            "blocks": [],
        }
    ],
    "sk.json": [
        {"messages": [{"role": one["role"], "items": [{"text": one["content"]}]} for one in TALK]}
    ],
    "autogen.json": [
        {
            "llm_context": {
                "messages": [
                    {"content": "hello", "source": "user", "type": "UserMessage"},
                    {"content": "hi", "source": "a", "type": "AssistantMessage"},
                ]
            }
        }
    ],
}
"""The documents, or lines, of a file of each format, whose texts are those of TALK."""
PAGE = Path(__file__).parents[2] / "docs" / "stores" / "other-formats.md"
COMMANDS = {line.split()[-3]: line for line in PAGE.read_text().splitlines() if line[:3] == "jq "}


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("file", SAMPLES)
def test_command_of_the_documentation_converts(run: Run, tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.write_text("".join(json.dumps(value) + "\n" for value in SAMPLES[file]))
    fails(run("inspect", path), 8, "which memctl does not read")
    subprocess.run(["sh", "-c", COMMANDS[file]], cwd=tmp_path, check=True)
    shown = run("inspect", tmp_path / "chats.jsonl", "--messages", "--format", "ndjson")
    assert shown.exit_code == 0, shown.stderr
    messages = [json.loads(line)["message"]["content"] for line in shown.stdout.splitlines()]
    assert [(one["role"], one["content"]) for one in messages] == [
        (one["role"], one["content"]) for one in TALK
    ]


def test_command_of_the_documentation_converts_the_history_of_qwenpaw(
    run: Run, tmp_path: Path
) -> None:
    [line] = [line for line in PAGE.read_text().splitlines() if line[:8] == "sqlite3 "]
    with closing(sqlite3.connect(tmp_path / "history.db")) as database, database:
        database.execute(f"CREATE TABLE {QWENPAW}")
        for kind, role, content in (
            *(("context_msg", "user", "hello"), ("model_turn", "assistant", "")),
            *(("tool_result", "assistant", "Hotel Nord"), ("model_turn", "assistant", "hi")),
        ):
            sql = "INSERT INTO conversation_history (session_id, kind, role, content)"
            database.execute(f"{sql} VALUES ('console:ada', ?, ?, ?)", (kind, role, content))
        rows = database.execute(line.split('"')[1]).fetchall()
    (tmp_path / "chats.jsonl").write_text("".join(f"{text}\n" for (text,) in rows))
    shown = run("inspect", tmp_path / "chats.jsonl", "--messages", "--format", "ndjson")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [one["message"]["content"]["content"] for one in found] == ["hello", "hi"]
    assert {one["session"] for one in found} == {"console:ada"}


def test_commands_of_the_documentation_are_tested() -> None:
    assert COMMANDS.keys() == SAMPLES.keys()
