"""The databases of Google ADK: the tables of each of its services, and what a change leaves.

The tables are those that google-adk 2.13 makes; the library is in ``tests/interop_frameworks``.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.support.cli import contents, fails, report

SERVICE = """
CREATE TABLE app_states (app_name TEXT PRIMARY KEY, state TEXT NOT NULL, update_time REAL NOT NULL);
CREATE TABLE user_states (
    app_name TEXT NOT NULL, user_id TEXT NOT NULL, state TEXT NOT NULL, update_time REAL NOT NULL,
    PRIMARY KEY (app_name, user_id)
);
CREATE TABLE sessions (
    app_name TEXT NOT NULL, user_id TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
    create_time REAL NOT NULL, update_time REAL NOT NULL, PRIMARY KEY (app_name, user_id, id)
);
CREATE TABLE events (
    id TEXT NOT NULL, app_name TEXT NOT NULL, user_id TEXT NOT NULL, session_id TEXT NOT NULL,
    invocation_id TEXT NOT NULL, timestamp REAL NOT NULL, event_data TEXT NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, id),
    FOREIGN KEY (app_name, user_id, session_id) REFERENCES sessions(app_name, user_id, id)
        ON DELETE CASCADE
);
"""
"""The tables of ``SqliteSessionService``."""
START = 1_700_000_000.1234567


def execute(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(sql, values).fetchall()


def dump(path: Path) -> list[str]:
    """Return all that is in a database, as SQL, whatever the order of the rows."""
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.iterdump())


def event(id: str, text: str, time: float) -> str:
    """Return an event as ``model_dump_json`` of pydantic writes it."""
    value = {
        "content": {"parts": [{"text": text}], "role": "user"},
        "invocation_id": "i1",
        "author": "user",
        "actions": {"state_delta": {}},
        "id": id,
        "timestamp": time,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "adk.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SERVICE)
        row = ("weather", "ada", "kyoto", '{"n": 1}', START, START)
        database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)
        # Of one time are the second and the third, whose ids are in the other order.
        for id, text, time in (
            ("c", "会话 😀", 0),
            ("b", "two", 1),
            ("a", "three", 1),
            ("d", "4", 2),
        ):
            at = START + time
            row = (id, "weather", "ada", "kyoto", "i1", at, event(id, text, at))
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return path


def test_adk_gets_its_times_as_the_columns_have_them(run: Any, path: Path, tmp_path: Path) -> None:
    """A text in a column of ``SqliteSessionService`` breaks all sessions of the user."""
    source = tmp_path / "s.jsonl"
    about = {"memctl": {"session": "osaka", "user": "bob"}}
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    source.write_text(json.dumps({"messages": said} | about))
    assert run("migrate", source, path).exit_code == 0
    for table, columns in {
        "app_states": ["update_time"],
        "user_states": ["update_time"],
        "sessions": ["create_time", "update_time"],
        "events": ["timestamp"],
    }.items():
        for column in columns:
            types = execute(path, f"SELECT DISTINCT typeof({column}) FROM {table}")
            assert types == [("real",)], (table, column)
    [first, second] = execute(path, "SELECT timestamp FROM events WHERE user_id = 'bob'")
    assert first < second


def test_adk_reads_events_of_one_time_in_the_order_in_which_they_came(path: Path) -> None:
    [found] = contents(str(path)).values()
    assert [one.id for one in found] == ["c", "b", "a", "d"]


@pytest.mark.parametrize("chosen", [["--all"], ["--id", "c"], ["--id", "d"], ["--id", "b"]])
def test_adk_undo_leaves_every_byte_as_it_was(run: Any, path: Path, chosen: list[str]) -> None:
    before = dump(path)
    assert run("delete", path, *chosen, "--yes").exit_code == 0
    assert dump(path) != before
    assert run("undo", "--store", str(path), "-y").exit_code == 0
    assert dump(path) == before


@pytest.mark.parametrize("target", ["copy.db", "copy.db?layout=langchain&owner=ada"])
def test_adk_moves_a_late_result_behind_its_call(
    run: Any, path: Path, tmp_path: Path, target: str
) -> None:
    """A tool that runs long returns nothing at first, and the conversation goes on."""

    def say(id: str, author: str, part: dict[str, Any], **more: Any) -> None:
        at = START + ord(id)
        value = json.loads(event(id, "", at)) | {"author": author} | more
        value["content"] = {"parts": [part], "role": "user" if author == "user" else "model"}
        row = (id, "weather", "ada", "kyoto", "i1", at, json.dumps(value))
        execute(path, "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    place = f"sqlite:///{tmp_path}/{target}"
    names = {"id": "c1", "name": "book"}
    say("e", "clerk", {"function_call": {**names, "args": {}}}, long_running_tool_ids=["c1"])
    say("f", "clerk", {"text": "I have asked."})
    say("g", "user", {"text": "Fine."})
    assert run("migrate", path, place, "--lossy").exit_code == 0
    say("h", "user", {"function_response": {**names, "response": {"result": "booked"}}})
    say("i", "clerk", {"text": "Done."})
    done = report(run("migrate", path, place, "--json"))
    assert (done["verified"], done["failures"]) == (True, [])
    assert run("verify", path, place).exit_code == 0
    found = report(run("doctor", place, "--json"))["findings"]
    assert [one for one in found if one["severity"] != "notice"] == []
    [copied] = contents(place).values()
    ids = [one.id for one in copied]
    assert ids[4:] == ["e", "h", "f", "g", "i"]
    back = f"sqlite:///{tmp_path}/back.db?layout=adk&app=weather"
    assert run("migrate", place, back).exit_code == 0
    assert run("verify", path, back).exit_code == 0
    assert [one.id for one in contents(back).popitem()[1]][4:] == ["e", "f", "g", "h", "i"]


def test_adk_keeps_the_order_where_another_row_has_got_the_place(run: Any, path: Path) -> None:
    """A number of a row is given again when the last row is deleted."""
    execute(path, "DELETE FROM events WHERE id = 'd'")
    assert run("delete", path, "--id", "a", "-y").exit_code == 0
    at = START + 5
    row = ("e", "weather", "ada", "osaka", "i1", at, event("e", "elsewhere", at))
    execute(path, "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
    assert run("undo", "--store", str(path), "-y").exit_code == 0
    found = contents(str(path))
    assert [one.id for one in found[MemoryKey("ada", "kyoto")]] == ["c", "b", "a"]
    assert [one.id for one in found[MemoryKey("ada", "osaka")]] == ["e"]


OLD = """
CREATE TABLE sessions (
    app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL, id VARCHAR(128) NOT NULL,
    state TEXT NOT NULL, create_time DATETIME NOT NULL, update_time DATETIME NOT NULL,
    PRIMARY KEY (app_name, user_id, id)
);
CREATE TABLE events (
    id VARCHAR(128) NOT NULL, app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL,
    session_id VARCHAR(128) NOT NULL, invocation_id VARCHAR(256) NOT NULL,
    author VARCHAR(256) NOT NULL, actions BLOB NOT NULL, long_running_tool_ids_json TEXT,
    branch VARCHAR(256), timestamp DATETIME NOT NULL, content TEXT, partial BOOLEAN,
    PRIMARY KEY (id, app_name, user_id, session_id)
);
"""
"""The tables of ``DatabaseSessionService`` before schema 1."""


@pytest.mark.parametrize("layout", ["", "?layout=adk&app=weather"])
def test_adk_names_its_old_schema(run: Any, tmp_path: Path, layout: str) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(OLD)
    place = f"sqlite:///{path}{layout}" if layout else str(path)
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    for words in (
        ("inspect", place),
        ("doctor", place),
        ("export", place),
        ("delete", place, "--role", "user", "-y"),
        *([("migrate", source, place)] if layout else []),
    ):
        fails(run(*words), 8, "google-adk up to 1.21", "adk migrate session")
    if not layout:
        fails(run("stores", "detect", place), 8, "adk migrate session")


@pytest.mark.slow
def test_adk_gets_the_user_of_sessions_without_users_from_the_source(
    run: Any, path: Path, tmp_path: Path
) -> None:
    """``owner=`` at the target had no effect: ADK found no session of the user."""
    langchain = tmp_path / "chats.db"
    done = run("migrate", path, f"sqlite:///{langchain}?layout=langchain&owner=ada", "--lossy")
    assert done.exit_code == 0
    assert "notes in their first messages keep it" in (told := " ".join(done.stderr.split()))
    assert "(1 memory, such as 'ada'/'kyoto')" in told
    shop = tmp_path / "shop.db"
    target = f"sqlite:///{shop}?layout=adk&app=shop"
    fails(run("migrate", langchain, f"{target}&owner=ada"), 2, "write owner= at the source")
    assert not shop.exists()
    back = run("migrate", f"sqlite:///{langchain}?owner=ada", target)
    assert (back.exit_code, "notes" in back.stderr) == (0, False)
    assert set(execute(shop, "SELECT user_id FROM sessions")) == {("ada",)}
    plain = tmp_path / "plain.db"
    fails(run("migrate", langchain, f"sqlite:///{plain}?owner=ada"), 2, "owner= at the source")
    assert not plain.exists()
