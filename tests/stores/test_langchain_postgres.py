"""The table of langchain-postgres: of any name, with JSONB, UUIDs and a time of the database."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.stores.test_tables import ask
from tests.support.cli import contents, report

SESSION, OTHER = (f"00000000-0000-0000-0000-00000000000{number}" for number in (7, 9))
# langchain_postgres/chat_message_histories.py of langchain-postgres 0.0.19
TABLE = (
    "CREATE TABLE chat_history (id SERIAL PRIMARY KEY, session_id UUID NOT NULL, "
    "message JSONB NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT NOW())"
)
INDEX = "CREATE INDEX idx_chat_history_session_id ON chat_history (session_id)"
CALL = {"id": "t1", "name": "look", "args": {"q": "moon"}, "type": "tool_call"}
MESSAGES = [
    {"type": "human", "data": {"content": "how far is the moon?", "type": "human"}},
    {"type": "ai", "data": {"content": "", "type": "ai", "tool_calls": [CALL]}},
    {"type": "tool", "data": {"content": "384400 km", "type": "tool", "tool_call_id": "t1"}},
    {"type": "ai", "data": {"content": "384,400 km", "type": "ai"}},
]
ROWS = "SELECT * FROM chat_history ORDER BY id"


@pytest.fixture
def history(postgresql_url: str) -> str:
    """The URL of a table as the class fills it."""
    rows = ", ".join(f"('{SESSION}', '{json.dumps(one)}')" for one in MESSAGES)
    ask(postgresql_url, TABLE, INDEX)
    ask(postgresql_url, f"INSERT INTO chat_history (session_id, message) VALUES {rows}")
    return f"{postgresql_url}?layout=langchain&table=chat_history"


def database(history: str) -> str:
    return history.partition("?")[0]


def chat(path: Path, session: str) -> str:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    path.write_text(json.dumps({"messages": messages, "memctl": {"session": session}}))
    return str(path)


def test_detect_knows_it_by_its_contents(run: Any, history: str) -> None:
    [found] = report(run("stores", "detect", database(history), "--json"))["tables"]
    assert found["layout"] == "langchain"
    assert "time = created_at" in found["reasons"]
    [alias] = tomllib.loads(found["toml"])["stores"].values()
    assert alias["table"] == "chat_history"


def test_detect_tells_texts_in_such_columns_apart(run: Any, postgresql_url: str) -> None:
    ask(postgresql_url, TABLE.replace("JSONB", "TEXT"))
    ask(postgresql_url, f"INSERT INTO chat_history (session_id, message) VALUES ('{SESSION}', 'x')")
    [found] = report(run("stores", "detect", postgresql_url, "--json"))["tables"]
    assert found["layout"] == "table"
    assert found["columns"]["time"] == "created_at"


@pytest.mark.slow
def test_a_table_with_more_columns_is_mapped(run: Any, history: str, tmp_path: Path) -> None:
    """As the class invites its users to extend it; what the database fills is no difference."""
    ask(database(history), "ALTER TABLE chat_history ADD COLUMN tenant TEXT DEFAULT 'acme'")
    [found] = report(run("stores", "detect", database(history), "--json"))["tables"]
    assert (found["layout"], found["dialect"]) == ("table", "langchain")
    assert tomllib.loads(found["toml"])["stores"].popitem()[1]["dialect"] == "langchain"
    columns = ",".join(f"{role}:{name}" for role, name in found["columns"].items())
    place = f"{database(history)}?layout=table&table=chat_history&dialect=langchain"
    place += f"&columns={columns}"
    source = chat(tmp_path / "s.jsonl", OTHER)
    assert run("migrate", source, place).exit_code == 0
    assert run("verify", source, place, "--session", OTHER).exit_code == 0
    assert [row[4] for row in ask(database(history), ROWS)] == ["acme"] * 6
    ask(database(history), "UPDATE chat_history SET tenant = NULL WHERE id < 3")
    before = ask(database(history), ROWS)
    assert run("delete", place, "--all", "-y").exit_code == 0
    assert run("undo", "--store", place, "-y").exit_code == 0
    assert ask(database(history), ROWS) == before


@pytest.mark.slow
def test_messages_are_langchains_and_have_the_time_of_their_row(
    run: Any, history: str, tmp_path: Path
) -> None:
    there = str(tmp_path / "lc.db")
    assert run("migrate", history, there).exit_code == 0
    [first, call, result, _] = [
        json.loads(one.message) for one in contents(there)[MemoryKey("", SESSION)]
    ]
    assert first["content"] == "how far is the moon?"
    assert first["timestamp"][:3] == "202"
    assert call["content"][0]["input"] == {"q": "moon"}
    assert result["content"][0]["output"] == "384400 km"
    for place in (history, there):
        plan = report(run("delete", place, "--older-than", "90d", "--dry-run", "--json"))
        assert plan["messages"]["selected"] == 0
        assert "untimed" not in plan


@pytest.mark.slow
def test_a_copy_into_it_is_the_same_and_has_no_time_on_the_way_back(
    run: Any, history: str, tmp_path: Path
) -> None:
    """The database gives each row a time, and a note says that the message has none."""
    source = chat(tmp_path / "s.jsonl", OTHER)
    assert run("migrate", source, history).exit_code == 0
    assert run("verify", source, history, "--session", OTHER).exit_code == 0
    again = report(run("migrate", source, history, "--json"))
    assert again["memories"]["unchanged"] == 1
    rows = ask(database(history), ROWS)[-2:]
    assert {row[3].year for row in rows} != {1970}
    plan = report(
        run("delete", history, "--session", OTHER, "--until", "2999-01-01", "-n", "--json")
    )
    assert (plan["messages"]["selected"], plan["untimed"]) == (0, 2)
    back = tmp_path / "back.jsonl"
    assert run("migrate", history, str(back), "--session", OTHER).exit_code == 0
    assert "time" not in back.read_text()


@pytest.mark.slow
def test_undo_restores_the_rows_with_their_times(run: Any, history: str, tmp_path: Path) -> None:
    assert run("migrate", chat(tmp_path / "s.jsonl", OTHER), history).exit_code == 0
    before = ask(database(history), ROWS)
    assert run("delete", history, "--all", "-y").exit_code == 0
    assert ask(database(history), ROWS) == []
    assert run("undo", "--store", history, "-y").exit_code == 0
    assert ask(database(history), ROWS) == before


@pytest.mark.parametrize("name", ["kyoto", SESSION.upper().replace("0", "A"), "7"])
def test_a_name_that_is_no_uuid_is_refused(
    run: Any, history: str, tmp_path: Path, name: str
) -> None:
    """Also another spelling, which PostgreSQL would change."""
    result = run("migrate", chat(tmp_path / "s.jsonl", name), history, "--json")
    [failure] = report(result, 7)["failures"]
    assert failure["code"] == "bad-name"
    assert "UUID" in failure["message"]
    assert len(ask(database(history), ROWS)) == len(MESSAGES)


def test_a_new_table_is_not_that_of_the_class_for_postgresql(
    run: Any, postgresql_url: str, tmp_path: Path
) -> None:
    source = tmp_path / "s.jsonl"
    said = {"messages": [{"role": "user", "content": "x"}], "memctl": {"session": SESSION}}
    source.write_text(json.dumps(said))
    place = f"{postgresql_url}?layout=langchain"
    done = run("import", source, f"{place}&table=chat_history")
    assert done.exit_code == 0, done.stderr
    assert "for PostgresChatMessageHistory, create it with create_tables" in done.stderr
    assert "PostgresChatMessageHistory" not in run("import", source, place).stderr
