"""Values that SQLite takes in any column: tables of other frameworks and of AgentScope 2.x."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from memctl.testing.samples import Style, sample
from tests.support.backends import new_place
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import held, put
from tests.support.servers.pool import Servers

COMMANDS = [
    ("inspect", "--json"),
    ("inspect", "--messages"),
    ("doctor", "--format", "csv"),
    ("export", "--as", "markdown"),
    ("mark", "list"),
]


@pytest.fixture
def make(tmp_path: Path, servers: Servers) -> Iterator[Callable[[str], Place]]:
    """A store of two sessions of three messages each."""

    def filled(name: str) -> Place:
        place = new_place(name, tmp_path, servers)
        samples.use(place.backend.style)
        put(place, [sample(key, samples.entries(3)) for key in place.keys(4)[::3]])
        return place

    yield filled
    samples.use(Style())


def execute(place: Place, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(place.location.path)) as database, database:
        database.execute(sql, values)


def rows(place: Place, table: str) -> list[Any]:
    with closing(sqlite3.connect(place.location.path)) as database:
        return sorted(database.execute(f'SELECT * FROM "{table}"'), key=repr)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("sessions", "id"),
        ("sessions", "user_id"),
        ("sessions", "created_at"),
        ("messages", "msg_id"),
        ("messages", "created_at"),
    ],
)
def test_bytes_in_a_column_of_texts_are_damage(
    run: Run, make: Callable[[str], Place], table: str, column: str, command: tuple[str, ...]
) -> None:
    place = make("sqlite-agentscope2")
    first = f"SELECT rowid FROM {table} ORDER BY rowid LIMIT 1"
    sql = f"UPDATE {table} SET {column} = x'ff00' WHERE rowid = ({first})"
    execute(place, sql)
    words = [*command[:2], place.text] if command[0] == "mark" else [command[0], place.text]
    result = run(*words, *command[len(words) - 1 :])
    assert result.exit_code in (6, 7), (result.stdout, result.stderr)
    assert "a text" in (said := result.stderr + result.stdout) or "an id and a time" in said


@pytest.mark.parametrize("time", ["9999-99-99 99:99:99", "", 17, None])
def test_time_that_is_none_is_damage(
    run: Run, make: Callable[[str], Place], time: str | int | None
) -> None:
    """memctl could not restore such a time."""
    place = make("sqlite-agentscope2")
    first = "SELECT rowid FROM messages ORDER BY rowid LIMIT 1"
    if time is None:
        execute(place, "CREATE TABLE loose AS SELECT * FROM messages")
        execute(place, "DROP TABLE messages")
        columns = "session_id, msg_id, created_at, payload, PRIMARY KEY (session_id, msg_id)"
        execute(place, f"CREATE TABLE messages ({columns})")
        execute(place, "INSERT INTO messages SELECT * FROM loose")
        execute(place, "DROP TABLE loose")
    execute(place, f"UPDATE messages SET created_at = ? WHERE rowid = ({first})", time)
    before = rows(place, "messages")
    fails(run("inspect", place.text, "--messages"), 7, "an id and a time")
    result = run("delete", place.text, "--all", "--yes", "--json")
    done = json.loads(result.stdout)
    assert (result.exit_code, done["memories"]["written"]) == (7, 1)
    report(run("undo", "--yes", "--json"))
    assert rows(place, "messages") == before


@pytest.mark.slow
def test_nothing_is_written_behind_a_time_that_is_none(
    run: Run, make: Callable[[str], Place], tmp_path: Path
) -> None:
    place, archive = make("sqlite-adk"), str(tmp_path / "all.ndjson")
    report(run("export", place.text, "-o", archive, "--json"))
    report(run("delete", place.text, "--all", "--keep-last", "2", "--yes", "--json"))
    last = "SELECT rowid FROM events ORDER BY timestamp DESC LIMIT 1"
    execute(place, f"UPDATE events SET timestamp = 'zzz' WHERE rowid = ({last})")
    before = rows(place, "events")
    result = run("import", archive, place.text, "--on-conflict", "append", "--json")
    done = json.loads(result.stdout)
    assert result.exit_code == 7
    [failure] = done["failures"]
    assert (failure["code"], "'zzz' as its time" in failure["message"]) == ("refused", True)
    assert len(rows(place, "events")) == len(before) + 1  # the other memory is whole
    report(run("undo", "--yes", "--json"))
    assert rows(place, "events") == before


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["eda0bd", "ff"], ids=["half a pair", "no UTF-8"])
@pytest.mark.parametrize(
    ("name", "table", "column"),
    [
        ("sqlite", "message", "msg"),
        ("sqlite-agentscope2", "messages", "payload"),
        ("sqlite-agentscope2", "sessions", "payload"),
        ("sqlite-table", "chat log", "body"),
        ("sqlite-adk", "events", "event_data"),
        ("sqlite-agno", "agno_runs", "run_data"),
    ],
)
def test_text_that_sqlite_does_not_decode_is_damage(
    run: Run, make: Callable[[str], Place], name: str, table: str, column: str, bad: str
) -> None:
    """AgentScope fails to read the row, and memctl could not write it again."""
    place = make(name)
    start = f"substr({column}, 1, instr({column}, 'message 0') - 1)"
    end = f"substr({column}, instr({column}, 'message 0'))"
    text = f"CAST(CAST({start} AS BLOB) || x'{bad}' || CAST({end} AS BLOB) AS TEXT)"
    found = f"SELECT MIN(rowid) FROM \"{table}\" WHERE instr({column}, 'message 0') > 0"
    execute(place, f'UPDATE "{table}" SET {column} = {text} WHERE rowid = ({found})')
    with pytest.raises(sqlite3.OperationalError, match="Could not decode"):
        rows(place, table)
    fails(run("inspect", place.text, "--messages"), 7, "is damaged and left out")
    checked = report(run("doctor", place.text, "--json"), 6)
    codes = {one["code"] for one in checked["findings"]}
    assert codes & {"damaged-row", "damaged-state"}
    done = json.loads(run("delete", place.text, "--all", "--yes", "--json").stdout)
    assert (done["memories"]["written"], done["memories"]["failed"]) == (1, 1)
    report(run("undo", "--yes", "--json"))
    fails(run("inspect", place.text, "--messages"), 7, "is damaged and left out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "column"),
    [
        ("sqlite-table", "chat log", "chat"),
        ("sqlite-table", "chat log", "who"),
        ("sqlite-agno", "agno_sessions", "session_id"),
        ("sqlite-agno", "agno_sessions", "user_id"),
    ],
)
def test_memory_named_by_bytes_is_damaged(
    run: Run, make: Callable[[str], Place], name: str, table: str, column: str
) -> None:
    """No condition on its name finds its rows: they stay, and the others are done."""
    place = make(name)
    first = f'SELECT MIN(rowid) FROM "{table}"'
    execute(place, f"UPDATE \"{table}\" SET {column} = x'6f6464' WHERE rowid = ({first})")
    before = rows(place, table)
    fails(run("inspect", place.text), 7, "a value that is not a text")
    planned = run("delete", place.text, "--all", "--yes", "--dry-run", "--json")
    done = run("delete", place.text, "--all", "--yes", "--json")
    assert (planned.exit_code, done.exit_code) == (7, 7)
    first, second = json.loads(planned.stdout), json.loads(done.stdout)
    assert (first["memories"], first["messages"]) == (second["memories"], second["messages"])
    assert second["memories"]["failed"] == 1
    assert any(b"odd" in one for one in rows(place, table))
    report(run("undo", "--yes", "--json"))
    assert rows(place, table) == before


@pytest.mark.parametrize(
    ("name", "table", "column"),
    [("sqlite-table", "chat log", "name"), ("sqlite-agno", "agno_runs", "user_id")],
)
def test_text_beside_a_message_that_is_not_utf8_is_damage(
    run: Run, make: Callable[[str], Place], name: str, table: str, column: str
) -> None:
    """Undo could not write it again."""
    place = make(name)
    first = f'SELECT MIN(rowid) FROM "{table}"'
    bad = "CAST(x'ff' AS TEXT)"
    execute(place, f'UPDATE "{table}" SET {column} = {bad} WHERE rowid = ({first})')
    done = run("delete", place.text, "--all", "--yes", "--json")
    fails(done, 7, "is not UTF-8")
    assert json.loads(done.stdout)["memories"]["written"] == 1
    assert run("undo", "--yes").exit_code == 0


@pytest.mark.parametrize("column", ["status", "run_type", "agent_id", "parent_run_id", "user_id"])
def test_bytes_beside_the_messages_of_a_run_come_back(
    run: Run, make: Callable[[str], Place], column: str
) -> None:
    place = make("sqlite-agno")
    first = "SELECT MIN(rowid) FROM agno_runs"
    execute(place, "UPDATE agno_runs SET run_data = json_set(run_data, '$.model', 'm')")
    execute(place, f"UPDATE agno_runs SET {column} = x'ff00' WHERE rowid = ({first})")

    def runs() -> list[Any]:
        """The rows by value: JSON may come back with its keys in another order."""
        return [
            [json.loads(one) if str(one).startswith("{") else one for one in row]
            for row in rows(place, "agno_runs")
        ]

    before = runs()
    assert run("doctor", place.text).exit_code in (0, 6)
    report(run("delete", place.text, "--all", "--yes", "--json"))
    assert runs() != before
    report(run("undo", "--yes", "--json"))
    assert runs() == before


@pytest.mark.parametrize("state", ["{nonsense", ""])
def test_state_that_is_not_json_is_damage(
    run: Run, make: Callable[[str], Place], state: str
) -> None:
    place = make("sqlite-adk")
    execute(place, "UPDATE user_states SET state = ? WHERE user_id = 'user0'", state)
    fails(run("inspect", place.text), 7, "its state in user_states is not JSON")
    found = report(run("doctor", place.text, "--json"), 6)
    assert [one["code"] for one in found["findings"]] == ["damaged-row"]


@pytest.mark.slow
def test_event_whose_row_has_another_id_is_damage(run: Run, make: Callable[[str], Place]) -> None:
    """Two such rows may have one id between them, which names no place."""
    place = make("sqlite-adk")
    first = "SELECT rowid FROM events ORDER BY rowid LIMIT 1"
    execute(place, f"UPDATE events SET id = 'm' WHERE rowid = ({first})")
    before = rows(place, "events")
    fails(run("delete", place.text, "--all", "--yes"), 7, "the content of the row m, ")
    report(run("undo", "--yes", "--json"))
    assert rows(place, "events") == before
    [found] = report(run("doctor", place.text, "--json"), 6)["findings"]
    assert (found["code"], found["count"]) == ("damaged-row", 1)


@pytest.mark.slow
def test_session_without_its_rows_gets_none_by_a_deletion(
    run: Run, make: Callable[[str], Place]
) -> None:
    """Nor by its undo: the store is as it was."""
    place = make("sqlite-adk")
    execute(place, "DELETE FROM user_states WHERE user_id = 'user0'")
    execute(place, "DELETE FROM sessions WHERE user_id = 'user0'")
    before = [rows(place, table) for table in ("user_states", "sessions", "events")]
    report(run("delete", place.text, "--all", "--yes", "--json"))
    assert [rows(place, table) for table in ("user_states", "sessions")] == before[:2]
    report(run("undo", "--yes", "--json"))
    assert [rows(place, table) for table in ("user_states", "sessions", "events")] == before


SESSIONS_OF = {
    "sqlite-adk": ("app_states", "user_states", "sessions", "events"),
    "sqlite-agno": ("agno_sessions", "agno_runs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2], ids=["empty", "messages"])
@pytest.mark.parametrize("name", SESSIONS_OF)
def test_undo_removes_the_rows_of_sessions_that_a_copy_made(
    run: Run, make: Callable[[str], Place], tmp_path: Path, name: str, count: int
) -> None:
    place, archive = make(name), str(tmp_path / "new.ndjson")
    before = {table: rows(place, table) for table in SESSIONS_OF[name]}
    user = next(iter(held(place))).user
    new = [MemoryKey(user, "one"), MemoryKey(user, "two")]
    if name == "sqlite-adk":
        there = next(iter(held(place))).session  # of another user
        new += [MemoryKey("zed", there), MemoryKey("zed", "three")]
    samples.use(Style())
    asyncio.run(fill(archive, {key: samples.entries(count) for key in new}))
    made = report(run("import", archive, place.text, "--lossy", "--json"))
    assert made["memories"]["written"] == len(new)
    after = held(place)
    undone = report(run("undo", "--yes", "--json"))
    assert {table: rows(place, table) for table in before} == before
    if not count:
        return  # the undo of an undo makes no empty session
    again = report(run("undo", undone["run"], "--yes", "--json"))
    assert held(place) == after
    report(run("undo", again["run"], "--yes", "--json"))
    assert {table: rows(place, table) for table in before} == before


@pytest.mark.slow
def test_undo_keeps_the_row_of_a_session_whose_state_an_agent_changed(
    run: Run, make: Callable[[str], Place], tmp_path: Path
) -> None:
    place, archive = make("sqlite-adk"), str(tmp_path / "new.ndjson")
    samples.use(Style())
    asyncio.run(fill(archive, {MemoryKey("zed", "three"): samples.entries(1)}))
    report(run("import", archive, place.text, "--lossy", "--json"))
    execute(place, """UPDATE sessions SET state = '{"a": 1}' WHERE user_id = 'zed'""")
    events = len(rows(place, "events"))
    report(run("undo", "--yes", "--json"))
    assert len(rows(place, "events")) == events - 1
    assert [row for row in rows(place, "sessions") if "zed" in row]
    assert [row for row in rows(place, "user_states") if "zed" in row]


@pytest.mark.slow
@pytest.mark.parametrize("conflict", ["append", "replace"])
@pytest.mark.parametrize("table", ["app_states", "user_states", "sessions"])
def test_undo_removes_the_row_that_messages_had_done_without(
    run: Run, make: Callable[[str], Place], tmp_path: Path, table: str, conflict: str
) -> None:
    place, source = make("sqlite-adk"), tmp_path / "source.db"
    shutil.copy(place.location.path, source)
    execute(place, "DELETE FROM events WHERE rowid = (SELECT MAX(rowid) FROM events)")
    execute(place, f"DELETE FROM {table}")
    before = rows(place, "events")
    origin = place.text.replace(str(place.location.path), str(source))
    done = report(run("migrate", origin, place.text, "--on-conflict", conflict, "--yes", "--json"))
    after, made = rows(place, "events"), len(rows(place, table))
    assert made
    for events, number in ((before, 0), (after, made), (before, 0)):
        done = report(run("undo", done["run"], "--yes", "--json"))
        assert rows(place, "events") == events
        assert len(rows(place, table)) == number


def test_copy_to_a_store_with_nothing_but_damage_can_be_undone(run: Run, tmp_path: Path) -> None:
    """Damage is something: the copy is recorded, as into any store that is not empty."""
    path, archive = tmp_path / "there.db", tmp_path / "new.ndjson"
    url = f"sqlite:///{path}?layout=langchain"
    asyncio.run(fill(str(archive), {MemoryKey("", "new"): samples.entries(2)}))
    report(run("import", archive, url, "--lossy", "--json"))
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE message_store SET session_id = 'old', message = '{'")
        database.commit()
        before = database.execute("SELECT * FROM message_store").fetchall()
        done = report(run("import", archive, url, "--lossy", "--json"))
        assert database.execute("SELECT * FROM message_store").fetchall() != before
        report(run("undo", done["run"], "--yes", "--json"))
        assert database.execute("SELECT * FROM message_store").fetchall() == before


@pytest.mark.slow
@pytest.mark.parametrize("id", [None, 0.5, "other"])
def test_message_with_another_id_than_its_row_keeps_both_in_an_archive(
    run: Run, make: Callable[[str], Place], tmp_path: Path, id: Any
) -> None:
    """So that undo finds it; AgentScope 2.x writes none."""
    source, archive = make("sqlite-agentscope2"), tmp_path / "a.ndjson"
    samples.use(Style())
    asyncio.run(fill(str(archive), {MemoryKey("ada", "s"): samples.entries(2)}))
    for session, msg_id, _, text, *_ in rows(source, "messages"):
        payload = {name: value for name, value in json.loads(text).items() if name != "id"}
        payload |= {} if id is None else {"id": id}
        sql = "UPDATE messages SET payload = ? WHERE session_id = ? AND msg_id = ?"
        execute(source, sql, json.dumps(payload), session, msg_id)
    before = contents(str(archive))
    done = report(run("migrate", source.text, archive, "--json"))
    assert done["memories"]["written"] == 2
    after = contents(str(archive))
    for expected in (before, after, before):
        done = report(run("undo", done["run"], "--yes", "--json"))
        assert contents(str(archive)) == expected
    target = f"sqlite:///{tmp_path}/b.db?layout=agentscope2"
    report(run("migrate", source.text, archive, "--json"))
    report(run("migrate", archive, target, "--user", "user0", "--user", "user1", "--json"))
    found = [
        {key: [(one.id, json.loads(one.message)) for one in some] for key, some in both.items()}
        for both in (contents(target), contents(source.text))
    ]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True], ids=["nothing", "another"])
def test_undo_restores_the_application_that_a_run_found(
    run: Run, make: Callable[[str], Place], there: bool
) -> None:
    """Its messages may be all gone, and those of another one have come."""
    place = make("sqlite-adk")
    path = str(place.location.path)
    before = {table: rows(place, table) for table in ("app_states", "sessions", "events")}
    [app] = {row[1] for row in before["events"]}
    done = report(run("delete", path, "--all", "--yes", "--json"))
    assert rows(place, "events") == []
    if there:
        other = ["other" if value == app else value for value in before["events"][0]]
        execute(place, f"INSERT INTO events VALUES ({', '.join('?' * len(other))})", *other)
    report(run("undo", done["run"], "--yes", "--json"))
    execute(place, "DELETE FROM events WHERE app_name = 'other'")
    assert {table: rows(place, table) for table in before} == before


def test_store_whose_application_nobody_names_is_not_written(
    run: Run, make: Callable[[str], Place]
) -> None:
    place = make("sqlite-adk")
    for table in ("app_states", "user_states", "sessions", "events"):
        execute(place, f"DELETE FROM {table}")
    result = run("delete", f"{place.location.path}", "--all", "--yes")
    fails(result, 2, "holds no application")


def test_bytes_in_columns_of_texts_come_back_as_bytes(
    run: Run, make: Callable[[str], Place]
) -> None:
    place = make("sqlite-table")
    for column, value in (("uid", ""), ("name", "Ada"), ("body", "Hi"), ("about", "{}")):
        one = "SELECT MIN(nr) FROM 'chat log'"
        execute(place, f"UPDATE 'chat log' SET {column} = ? WHERE nr = ({one})", value.encode())
    before = rows(place, "chat log")
    assert b"Hi" in before[0]
    report(run("delete", place.text, "--all", "--yes", "--json"))
    assert rows(place, "chat log") == []
    report(run("undo", "--yes", "--json"))
    assert rows(place, "chat log") == before


LLAMAINDEX = """
CREATE TABLE llama_index_memory (
    id INTEGER PRIMARY KEY, "key" VARCHAR(255) NOT NULL, timestamp BIGINT NOT NULL,
    role VARCHAR(255) NOT NULL, status VARCHAR(255) NOT NULL, data JSON NOT NULL
)
"""


@pytest.mark.parametrize("column", ["role", "status"])
def test_row_of_a_table_without_a_usual_column_comes_back(
    tmp_path: Path, run: Run, column: str
) -> None:
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(LLAMAINDEX.replace(f" {column} ", f" my_{column} "))
        data = {"role": "user", "blocks": [{"block_type": "text", "text": "message"}]}
        row = (1, "s", 10**13, "user", "active", json.dumps(data))
        database.execute("INSERT INTO llama_index_memory VALUES (?, ?, ?, ?, ?, ?)", row)
    url = f"sqlite:///{path}?layout=llamaindex"
    assert run("delete", url, "--all", "--yes").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT * FROM llama_index_memory").fetchall() == [row]


@pytest.mark.slow
@pytest.mark.parametrize("odd", [b"\0\0", "soon", 1.5, -1])
def test_row_whose_place_is_an_odd_value_comes_back(tmp_path: Path, run: Run, odd: Any) -> None:
    """LlamaIndex orders messages by a time and an id; SQLite orders values of every type."""
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(LLAMAINDEX)
        for id in range(1, 5):
            data = {"role": "user", "blocks": [{"block_type": "text", "text": f"message {id}"}]}
            row = (id, "s", odd if id == 3 else 10**13, "user", "active", json.dumps(data))
            database.execute("INSERT INTO llama_index_memory VALUES (?, ?, ?, ?, ?, ?)", row)

    def held() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT * FROM llama_index_memory ORDER BY id").fetchall()

    before = held()
    url = f"sqlite:///{path}?layout=llamaindex"
    for count in (1, 2, 3):
        assert report(run("delete", url, "--last", count, "--yes", "--json"))["run"]
        assert len(held()) == 4 - count
        assert run("undo", "--yes").exit_code == 0
        assert held() == before
