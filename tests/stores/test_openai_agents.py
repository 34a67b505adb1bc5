"""The sessions of the OpenAI Agents SDK that are more than a list of items.

The tables are those that openai-agents 0.24 makes; the library is in ``tests/interop_frameworks``.
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

BRANCHES = """
CREATE TABLE agent_sessions (
    session_id TEXT PRIMARY KEY,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE agent_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);
CREATE TABLE message_structure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    message_type TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    user_turn_number INTEGER,
    branch_turn_number INTEGER,
    tool_name TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    FOREIGN KEY (message_id) REFERENCES agent_messages(id) ON DELETE CASCADE
);
CREATE TABLE turn_usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    user_turn_number INTEGER NOT NULL,
    requests INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    total_tokens INTEGER DEFAULT 0,
    input_tokens_details JSON,
    output_tokens_details JSON,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    UNIQUE(session_id, branch_id, user_turn_number)
);
CREATE TABLE branch_reservations (
    session_id TEXT NOT NULL, branch_id TEXT NOT NULL, PRIMARY KEY (session_id, branch_id)
);
CREATE TABLE session_clear_generations (
    session_id TEXT PRIMARY KEY, generation INTEGER NOT NULL DEFAULT 0
);
"""
TRIP, HILLS = MemoryKey("", "trip"), MemoryKey("", "trip", "hills")
TIME = "2026-11-25 14:09:50"


def execute(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(sql, values).fetchall()


def dump(path: Path) -> list[str]:
    """Return all that is in a database, but for the counters of ids that SQLite keeps."""
    with closing(sqlite3.connect(path)) as database:
        return [line for line in database.iterdump() if "sqlite_sequence" not in line]


def said(path: Path) -> dict[MemoryKey, list[Any]]:
    """Return what the items of each branch say: a content, or a type."""
    return {
        key: [item.get("content") or item["type"] for item in map(_item, found)]
        for key, found in contents(str(path)).items()
    }


def _item(entry: Any) -> Any:
    return json.loads(entry.message)["content"]


def structure(path: Path, branch: str = "main", session: str = "trip") -> list[Any]:
    """Return what the SDK keeps of each item of a branch besides the item."""
    return execute(
        path,
        "SELECT message_type, user_turn_number, branch_turn_number, tool_name "
        "FROM message_structure WHERE session_id = ? AND branch_id = ? ORDER BY sequence_number",
        *(session, branch),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session with two branches, which share its first turn, and the usage of each turn."""
    path = tmp_path / "branches.db"
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
    items = [
        {"role": "user", "content": "plan a trip"},
        {"role": "assistant", "content": "to where?"},
        {"role": "user", "content": "to the sea"},
        call,
        result,
        {"role": "assistant", "content": "a week at the coast"},
        {"role": "user", "content": "to the hills"},
        {"role": "assistant", "content": "a week in a hut"},
    ]
    turns = {"main": [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]}
    turns["hills"] = [(1, 1), (2, 1), (7, 2), (8, 2)]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(BRANCHES)
        database.execute("INSERT INTO agent_sessions VALUES ('trip', ?, ?)", (TIME, TIME))
        for item in items:
            row = ("trip", json.dumps(item), TIME)
            names = "session_id, message_data, created_at"
            database.execute(f"INSERT INTO agent_messages ({names}) VALUES (?, ?, ?)", row)
        number = 0
        for branch, places in turns.items():
            database.execute("INSERT INTO branch_reservations VALUES ('trip', ?)", (branch,))
            for message, turn in places:
                number += 1
                item = items[message - 1]
                kind, tool = item.get("role") or item["type"], item.get("name")
                row = (number, "trip", message, branch, kind, number, turn, turn, tool, TIME)
                places_of = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO message_structure VALUES ({places_of})", row)
            for turn in 1, 2:
                row = ("trip", branch, turn, 1, 10 * turn, TIME)
                names = (
                    "session_id, branch_id, user_turn_number, requests, total_tokens, created_at"
                )
                sql = f"INSERT INTO turn_usage ({names}) VALUES (?, ?, ?, ?, ?, ?)"
                database.execute(sql, row)
        database.execute("INSERT INTO session_clear_generations VALUES ('trip', 0)")
    return path


MAIN = ["plan a trip", "to where?", "to the sea", "function_call", "function_call_output"]
MAIN.append("a week at the coast")
OTHER = ["plan a trip", "to where?", "to the hills", "a week in a hut"]


@pytest.mark.slow
def test_branches_are_the_memory_and_its_parts(run: Any, path: Path) -> None:
    found = report(run("inspect", path, "--json"))
    assert found["store"]["kind"] == "sqlite-openai-branches"
    assert said(path) == {TRIP: MAIN, HILLS: OTHER}
    assert run("doctor", path).exit_code == 0
    assert "hills" in run("inspect", path).stdout
    alone = report(run("inspect", path, "--path", "hills", "--json"))
    assert alone["totals"]["messages"] == len(OTHER)
    plain = f"sqlite:///{path}?layout=openai-agents"
    fails(run("inspect", plain), 2, "branches", "?layout=openai-branches")
    proposed = report(run("stores", "detect", path, "--json"))
    assert proposed["tables"][0]["layout"] == "openai-branches"


@pytest.mark.slow
def test_a_copy_has_the_rows_that_make_it_visible(run: Any, path: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    place = f"sqlite:///{there}?layout=openai-branches"
    assert run("migrate", path, place).exit_code == 0
    assert run("verify", path, there).exit_code == 0
    for branch in "main", "hills":
        assert structure(there, branch) == structure(path, branch)
    before = dump(there)
    source = tmp_path / "s.jsonl"
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    source.write_text(json.dumps({"messages": items, "memctl": {"session": "new"}}))
    assert run("migrate", source, there, "--lossy").exit_code == 0
    assert structure(there, session="new") == [("user", 1, 1, None), ("assistant", 1, 1, None)]
    assert run("undo", "--store", str(there), "-y").exit_code == 0
    assert dump(there) == before


@pytest.mark.slow
def test_a_branch_goes_to_a_store_without_parts(run: Any, path: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    fails(run("migrate", path, there), 2, "--path hills")
    for name, wanted in (("hills", OTHER), ("main", MAIN)):
        target = f"sqlite:///{tmp_path}/{name}.db?layout=openai-agents"
        assert run("migrate", path, target, "--path", name).exit_code == 0
        assert said(tmp_path / f"{name}.db") == {TRIP: wanted}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "main", "hills"),
    [
        (["--match", "sea"], [*MAIN[:2], *MAIN[3:]], OTHER),
        (["--match", "plan"], MAIN[1:], OTHER[1:]),
        (["--path", "main", "--match", "plan"], MAIN[1:], OTHER),
        (["--path", "hills", "--newest", "2"], MAIN, OTHER[:2]),
        (["--path", "main", "--role", "user"], [MAIN[1], *MAIN[3:]], OTHER),
        (["--all"], [], []),
    ],
)
def test_a_deletion_is_one_in_its_branch(
    run: Any, path: Path, chosen: list[str], main: list[str], hills: list[str]
) -> None:
    """An item that another branch shares stays there; undo restores every row."""
    before = dump(path)
    if "--newest" in chosen:
        ids = [one.id for one in contents(str(path))[HILLS]][2:]
        chosen = ["--path", "hills", *(word for id in ids for word in ("--id", id))]
    assert run("delete", path, *chosen, "--yes").exit_code == 0
    left = {key: found for key, found in ((TRIP, main), (HILLS, hills)) if found}
    assert said(path) == left
    rows = {message for (message,) in execute(path, "SELECT message_id FROM message_structure")}
    assert {id for (id,) in execute(path, "SELECT id FROM agent_messages")} == rows
    for branch, turn in execute(path, "SELECT branch_id, user_turn_number FROM turn_usage"):
        assert turn in [one[1] for one in structure(path, branch)]
    assert run("undo", "--store", str(path), "-y").exit_code == 0
    assert dump(path) == before


@pytest.mark.slow
def test_turns_go_on_where_the_branch_ends(run: Any, path: Path, tmp_path: Path) -> None:
    kept, before = tmp_path / "kept.ndjson", dump(path)
    assert run("export", path, "-o", kept).exit_code == 0
    assert run("delete", path, "--match", "hut", "-y").exit_code == 0
    assert run("delete", path, "--match", "coast", "-y").exit_code == 0
    assert run("migrate", kept, path).exit_code == 0
    assert said(path) == {TRIP: MAIN, HILLS: OTHER}
    assert structure(path)[-1] == ("assistant", 2, 2, None)
    sql = "SELECT sequence_number FROM message_structure"
    numbers = [number for (number,) in execute(path, sql)]
    assert len(set(numbers)) == len(numbers)
    assert run("undo", "--store", str(path), "-y").exit_code == 0
    for _ in range(2):
        assert run("undo", "--store", str(path), "-y").exit_code == 0
    assert dump(path) == before


@pytest.mark.slow
def test_a_repair_is_seen_in_its_branch(run: Any, path: Path) -> None:
    result = next(at for at, text in enumerate(MAIN) if text == "function_call_output")
    [entry] = [contents(str(path))[TRIP][result]]
    assert run("delete", path, "--id", entry.id, "-y").exit_code == 0
    assert run("doctor", path, "--repair", "-y").exit_code == 0
    assert said(path) == {TRIP: MAIN, HILLS: OTHER}
    assert structure(path)[4] == ("function_call_output", 2, 2, None)


def test_erase_takes_every_row_of_the_session(run: Any, path: Path) -> None:
    for table in "agent_sessions", "branch_reservations", "session_clear_generations":
        columns = "session_id" if table != "branch_reservations" else "session_id, branch_id"
        values = "'other'" if table != "branch_reservations" else "'other', 'main'"
        execute(path, f"INSERT INTO {table} ({columns}) VALUES ({values})")
    erased = run("erase", path, "--user", "", "--session", "trip", "--yes")
    assert erased.exit_code == 0
    assert "8 messages" in erased.stdout
    assert [line for line in dump(path) if "trip" in line or "hut" in line] == []
    assert execute(path, "SELECT session_id FROM agent_sessions") == [("other",)]
    # After clear_session, its name is in two tables alone.
    assert run("erase", path, "--user", "", "--session", "other", "--yes").exit_code == 0
    assert [line for line in dump(path) if "other" in line] == []


@pytest.mark.slow
def test_a_session_of_another_class_is_one_memory(run: Any, path: Path) -> None:
    """Those of ``SQLiteSession`` have no rows that AdvancedSQLiteSession could see."""
    execute(path, "INSERT INTO agent_sessions (session_id) VALUES ('plain')")
    for number in range(3):
        data = json.dumps({"role": "user", "content": f"text {number}"})
        row = ("plain", data)
        execute(path, "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", *row)
    plain = MemoryKey("", "plain")
    assert said(path)[plain] == ["text 0", "text 1", "text 2"]
    checked = run("doctor", path)
    assert "outside-branches" in checked.stdout
    before = dump(path)
    assert run("delete", path, "--match", "text 1", "-y").exit_code == 0
    assert said(path)[plain] == ["text 0", "text 2"]
    assert run("undo", "--store", str(path), "-y").exit_code == 0
    assert dump(path) == before


ENVELOPE = {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "gAAAAABsecret"}
"""An item as ``EncryptedSession`` stores it."""


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    """A session of two items, of which the second is encrypted."""
    path = tmp_path / "encrypted.db"
    tables = BRANCHES.partition("CREATE TABLE message_structure")[0]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(tables)
        database.execute("INSERT INTO agent_sessions (session_id) VALUES ('s')")
        for item in {"role": "user", "content": "Hi"}, ENVELOPE:
            row = ("s", json.dumps(item))
            database.execute(
                "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", row
            )
    return path


@pytest.mark.slow
def test_an_encrypted_item_is_nobodys_text(run: Any, encrypted: Path) -> None:
    for words in (
        ("inspect", encrypted, "--messages"),
        ("context", encrypted),
        ("export", encrypted, "--as", "markdown"),
    ):
        shown = run(*words)
        assert shown.exit_code == 0
        assert "encrypted item" in shown.stdout
        assert "gAAAAA" not in shown.stdout
    assert "gAAAAA" not in run("search", encrypted, "gAAAAABsecret").stdout
    assert "assistant" not in run("inspect", encrypted).stdout
    checked = report(run("doctor", encrypted, "--json"))
    assert [(one["code"], one["count"]) for one in checked["findings"]] == [
        ("encrypted-message", 1)
    ]


@pytest.mark.parametrize("layout", ["openai-agents", "openai-branches", "redis"])
def test_an_encrypted_item_is_copied_as_it_is(
    run: Any, encrypted: Path, tmp_path: Path, redis_url: str, layout: str
) -> None:
    there = f"sqlite:///{tmp_path}/there.db?layout={layout}"
    there = f"{redis_url}?layout=openai-agents" if layout == "redis" else there
    if layout == "redis":  # whose lists keep no times
        execute(encrypted, "UPDATE agent_messages SET created_at = NULL")
    assert run("migrate", encrypted, there).exit_code == 0
    [found] = contents(there).values()
    assert [_item(one) for one in found] == [{"role": "user", "content": "Hi"}, ENVELOPE]
    fails(run("migrate", there, tmp_path / "lost.db"), 9, "encrypted")


@pytest.mark.parametrize("target", ["a.db", "a.jsonl", "lc.db"])
def test_an_encrypted_item_is_a_loss_elsewhere(
    run: Any, encrypted: Path, tmp_path: Path, target: str
) -> None:
    there = str(tmp_path / target)
    place = f"sqlite:///{there}?layout=langchain" if target == "lc.db" else there
    fails(run("migrate", encrypted, place), 9, "encrypted", "--lossy")
    assert not Path(there).exists()
    assert run("migrate", encrypted, place, "--lossy").exit_code == 0
    shown = run("inspect", place, "--messages").stdout
    assert ("Hi" in shown, "gAAAAA" in shown) == (True, False)


@pytest.mark.slow
def test_equal_items_and_marks_go_to_agentscope_and_back(run: Any, tmp_path: Path) -> None:
    """Equal items have equal ids; a mark has no place in an item."""
    source, agents = tmp_path / "s.jsonl", tmp_path / "agents.db"
    first, back = (f"sqlite:///{tmp_path}/{name}.db?layout=openai-agents" for name in "ab")
    refusal = {"type": "refusal", "refusal": "no"}
    items = [
        {"role": "user", "content": "yes"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [refusal]},
        {"role": "user", "content": "yes"},
    ]
    source.write_text(json.dumps({"messages": items[::2], "memctl": {"session": "new"}}))
    assert run("import", source, first, "--lossy").exit_code == 0
    row = "INSERT INTO agent_messages (session_id, message_data) VALUES ('new', ?)"
    execute(tmp_path / "a.db", "DELETE FROM agent_messages")
    for item in items:
        execute(tmp_path / "a.db", row, json.dumps(item))
    assert run("migrate", first, agents).exit_code == 0
    assert run("migrate", agents, back).exit_code == 0
    stored = execute(tmp_path / "b.db", "SELECT message_data FROM agent_messages ORDER BY id")
    assert [json.loads(data) for (data,) in stored] == items
    assert run("mark", "add", agents, "keep", "--role", "assistant").exit_code == 0
    third = f"sqlite:///{tmp_path}/c.db?layout=openai-agents"
    fails(run("migrate", agents, third), 9, "details of messages", "marks")


def test_what_an_item_has_no_place_for_is_named(run: Any, tmp_path: Path) -> None:
    path, target = tmp_path / "chats.db", f"sqlite:///{tmp_path}/items.db?layout=openai-agents"
    call = {"name": "look", "args": {}, "id": "1", "type": "tool_call"}
    result = {"content": "bad", "tool_call_id": "1", "status": "error", "artifact": [1]}
    execute(path, "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id, message)")
    for kind, data in (
        ("human", {"content": "hi"}),
        ("ai", {"content": "I look", "tool_calls": [call], "usage_metadata": {"input_tokens": 4}}),
        ("tool", result),
    ):
        text = json.dumps({"type": kind, "data": data | {"type": kind}})
        execute(path, "INSERT INTO message_store VALUES (NULL, 'kyoto', ?)", text)
    fails(run("migrate", path, target), 9, "ids, names, marks, or other fields that its format")
    assert run("migrate", path, target, "--lossy").exit_code == 0
    done = run("verify", path, target)
    assert done.exit_code == 0
    assert "3 and 4 messages" in done.stdout, "each store has its own count"
    assert "some details of messages of" in done.stderr
    assert "(1 memory affected)" in done.stderr
