"""The messages that a framework reads: shown, counted, selected, searched, and copied.

The events are those of google-adk 2.13; ``tests/interop_frameworks`` compares with the library.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from memctl.json import jsonio
from memctl.model import MemoryKey, StoredMessage
from memctl.testing import samples
from tests.support.adk import compaction, event
from tests.support.cli import add, contents, fails, fill, report

KEY = MemoryKey("ada", "trip")
CARD = "My card is 4000-1111."

TOLD = [
    event(1, "user", "My seat is 12A.", 1),
    event(2, "clerk", "Noted.", 1),
    event(3, "user", CARD, 2),
    event(4, "clerk", "Noted 4000-1111.", 2),
]
TAKEN_BACK = [
    event(5, "user", rewind_before_invocation_id="turn-2"),
    event(6, "user", "Which seat?", 3),
    event(7, "clerk", "12A.", 3),
]
READ = ["My seat is 12A.", "Noted.", "Which seat?", "12A."]
TO = ("memory", "langchain", "openai-agents", "llamaindex", "agno")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the database of an agent whose user has told a number."""
    path = f"sqlite:///{tmp_path}/adk.db?layout=adk&app=shop"
    asyncio.run(fill(path, {KEY: TOLD}))
    return path


@pytest.fixture
def rewound(path: str) -> str:
    """Return the same database, after the user took the number back."""
    add(path, KEY, TAKEN_BACK, len(TOLD))
    return path


def texts(run: Any, place: object, *options: str) -> list[str]:
    """Return the texts that ``context`` shows."""
    done = run("context", place, "--format", "csv", *options)
    rows = csv.DictReader(io.StringIO(done.stdout))
    return [row["text"] for row in rows]


def test_live_inspect_counts_what_is_not_read(run: Any, rewound: str) -> None:
    found = report(run("inspect", rewound, "--json"))
    assert found["totals"]["unread"] == {"rewound": 2, "not-for-memory": 1}
    assert found["memories"][0]["unread"] == {"rewound": 2, "not-for-memory": 1}
    assert found["totals"]["roles"] == {"user": 3, "assistant": 3, "system": 1}
    assert "not read  rewound 2  not-for-memory 1" in run("inspect", rewound).stdout
    rows = report(run("inspect", rewound, "--messages", "--json"))["messages"]
    wanted = [None, None, "rewound", "rewound", "not-for-memory", None, None]
    assert [row["unread"] for row in rows] == wanted
    shown = run("inspect", rewound, "--messages").stdout
    assert shown.count("[not read: rewound]") == 2


def test_live_context_shows_what_adk_sends(run: Any, rewound: str) -> None:
    assert texts(run, rewound) == READ
    found = report(run("context", rewound, "--json"))
    assert (found["left_out"], found["unread"]) == (3, {"rewound": 2, "not-for-memory": 1})
    assert [one["unread"] for one in found["messages"]] == [None] * 4
    shown = run("context", rewound)
    assert "not sent: 2 rewound, 1 not-for-memory: show them with --all" in shown.stdout
    everything = report(run("context", rewound, "--all", "--json"))["messages"]
    assert [one["unread"] for one in everything][2:5] == ["rewound", "rewound", "not-for-memory"]


def test_live_selects(run: Any, rewound: str, tmp_path: Path) -> None:
    ids = {
        option: [one["id"] for one in report(run(*words, option, "--json"))["messages"]]
        for words in [("inspect", rewound, "--messages")]
        for option in ("--live", "--not-live")
    }
    assert ids == {"--live": ["e1", "e2", "e6", "e7"], "--not-live": ["e3", "e4", "e5"]}
    last = report(run("inspect", rewound, "--messages", "--not-live", "--last", "1", "--json"))
    assert [one["id"] for one in last["messages"]] == ["e5"]
    page = tmp_path / "a.md"
    run("export", rewound, "-o", page, "--live")
    assert CARD not in page.read_text()
    run("export", rewound, "-o", page, "--force")
    assert page.read_text().count("`not read: rewound`") == 2
    assert run("delete", rewound, "--not-live", "--role", "user", "--yes").exit_code == 0
    assert [one.id for one in contents(rewound)[KEY]] == ["e1", "e2", "e4", "e5", "e6", "e7"]
    assert run("undo", "--yes").exit_code == 0
    assert [one.id for one in contents(rewound)[KEY]] == [f"e{at}" for at in range(1, 8)]


def test_live_delete_keeps_a_marker_without_which_messages_would_come_back(
    run: Any, rewound: str, tmp_path: Path
) -> None:
    done = run("delete", rewound, "--role", "system", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "1 marker will stay: the messages that they take back are not selected" in done.stderr
    assert texts(run, rewound) == READ
    policies = tmp_path / "policies.toml"
    policies.write_text(
        '[[retention]]\nname = "system"\nstore = "adk"\nselect = { role = "system" }\n'
        f'action = "delete"\narchive = "{tmp_path}/old-{{date}}.ndjson"\n'
        f'[stores.adk]\nurl = "{rewound}"\n'
    )
    kept = run("--config", policies, "retain", "--yes")
    assert kept.exit_code == 0, kept.stderr
    assert texts(run, rewound) == READ
    ids = ("--id", "e3", "--id", "e4", "--id", "e5")
    done = run("delete", rewound, *ids, "--yes")
    assert (done.exit_code, "will stay" in done.stderr) == (0, False)
    assert [one.id for one in contents(rewound)[KEY]] == ["e1", "e2", "e6", "e7"]


def test_live_delete_warns_of_messages_that_are_read_again(run: Any, path: str) -> None:
    add(path, KEY, [compaction(5, 3, "Of seats."), event(6, "clerk", "Noted.", 3)], len(TOLD))
    done = run("delete", path, "--id", "e5", "--dry-run")
    assert "agents will read 3 messages again, since a summary is selected" in done.stderr
    done = run("delete", path, "--id", "e1", "--id", "e2", "--id", "e3", "--id", "e5", "--yes")
    assert (done.exit_code, "again" in done.stderr) == (0, False)
    assert texts(run, path) == ["Noted 4000-1111.", "Noted."]


def test_live_search_finds_what_is_not_read_and_says_so(run: Any, path: str) -> None:
    found = report(run("search", path, "4000", "--json"))["hits"]
    assert {one["id"]: one["unread"] for one in found} == {"e3": None, "e4": None}
    add(path, KEY, TAKEN_BACK, len(TOLD))
    found = report(run("search", path, "4000", "--json"))["hits"]
    assert {one["id"]: one["unread"] for one in found} == {"e3": "rewound", "e4": "rewound"}
    assert report(run("search", path, "4000", "--live", "--json"))["hits"] == []
    assert "not read: rewound" in run("search", path, "4000").stdout


@pytest.mark.parametrize("layout", TO)
def test_live_copy_has_what_is_read_and_the_way_back_all(
    run: Any, rewound: str, tmp_path: Path, layout: str
) -> None:
    copy = f"sqlite:///{tmp_path}/copy.db?layout={layout}"
    copy += "" if layout in ("memory", "agno") else "&owner=ada"
    lossy = ("--lossy",) if layout == "openai-agents" else ()
    done = run("migrate", rewound, copy, "--user", "ada", *lossy)
    assert done.exit_code == 0, done.stderr
    assert "do not read 3 messages of the copied memories (2 rewound, 1 not-for-" in done.stderr
    assert ("notes keep them" in done.stderr) is (not lossy)
    assert texts(run, copy) == READ
    if lossy:
        return
    back = f"sqlite:///{tmp_path}/back.db?layout=adk&app=shop"
    assert run("migrate", copy, back).exit_code == 0
    ids = [one.id for found in contents(back).values() for one in found]
    assert ids == [f"e{at}" for at in range(1, 8)]
    assert texts(run, back) == READ


def test_live_rewind_after_a_copy_takes_the_messages_out_of_the_copy(
    run: Any, path: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy.db")
    assert run("migrate", path, copy).exit_code == 0
    assert CARD in texts(run, copy)
    add(path, KEY, TAKEN_BACK, len(TOLD))
    done = run("migrate", path, copy)
    assert done.exit_code == 0, done.stderr
    assert texts(run, copy) == READ
    assert run("verify", path, copy).exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert CARD in texts(run, copy)


def test_live_all_messages(run: Any, rewound: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    done = run("migrate", rewound, copy, "--all-messages")
    assert done.exit_code == 0, done.stderr
    assert "do not read" not in done.stderr
    assert texts(run, copy) == [*READ[:2], CARD, "Noted 4000-1111.", *READ[2:]]


def test_live_part_of_a_memory(run: Any, rewound: str, tmp_path: Path) -> None:
    """An event that is not selected takes selected events back."""
    copy = str(tmp_path / "copy.db")
    assert run("migrate", rewound, copy, "--role", "user").exit_code == 0
    assert texts(run, copy) == ["My seat is 12A.", "Which seat?"]


def test_live_memory_of_which_nothing_is_read(run: Any, path: str, tmp_path: Path) -> None:
    add(path, KEY, [event(5, "user", rewind_before_invocation_id="turn-1")], len(TOLD))
    copy = str(tmp_path / "copy.db")
    assert run("migrate", path, copy).exit_code == 0
    [found] = contents(copy).values()
    value = jsonio.loads(found[0].message)
    assert (value["role"], value["content"]) == ("system", "[not read]")
    assert run("verify", path, copy).exit_code == 0
    assert texts(run, path) == []


def test_live_summary_of_a_compaction(run: Any, path: str, tmp_path: Path) -> None:
    """ADK sends the summary before what it has left of the compacted part of the session."""
    add(path, KEY, [compaction(5, 3, "They spoke of seats.")], len(TOLD))
    assert texts(run, path) == ["They spoke of seats.", "Noted 4000-1111."]
    found = report(run("search", path, "seats", "--json"))["hits"]
    assert [(one["role"], one["id"]) for one in found if one["unread"] is None] == [
        ("assistant", "e5")
    ]
    copy = str(tmp_path / "copy.db")
    done = run("migrate", path, copy)
    assert done.exit_code == 0, done.stderr
    assert "no place for summaries that all agents get: the summary in 1 memory is" in done.stderr
    assert texts(run, copy) == ["They spoke of seats.", "Noted 4000-1111."]
    assert run("verify", path, copy).exit_code == 0


@pytest.mark.parametrize("version", ["", "?layout=agentscope2"])
def test_live_summary_of_a_compaction_becomes_that_of_the_target(
    run: Any, path: str, tmp_path: Path, version: str
) -> None:
    """A later summary replaces it, a rewind takes it back, and the way back has all events."""
    copy = f"{tmp_path}/sessions/" if not version else f"sqlite:///{tmp_path}/copy.db{version}"

    def context(place: str) -> list[tuple[bool, str]]:
        found = csv.DictReader(io.StringIO(run("context", place, "--format", "csv").stdout))
        return [(one["summary"] == "true", one["text"]) for one in found]

    said = [event(at, "clerk", f"text {at}", at) for at in (6, 7, 9)]
    add(path, KEY, [compaction(5, 3, "Of seats."), *said[:2]], len(TOLD))
    wanted = [(True, "Of seats."), (False, "Noted 4000-1111."), (False, "text 6")]
    for _ in range(2):
        done = run("migrate", path, copy)
        assert done.exit_code == 0, done.stderr
        assert context(copy) == [*wanted, (False, "text 7")]
        assert run("verify", path, copy).exit_code == 0
    add(path, KEY, [compaction(8, 6, "Of seats and cards."), said[2]], len(TOLD) + 3)
    assert run("migrate", path, copy).exit_code == 0
    wanted = [(True, "Of seats and cards."), (False, "text 7"), (False, "text 9")]
    assert context(copy) == wanted
    back = f"sqlite:///{tmp_path}/back.db?layout=adk&app=shop"
    assert run("migrate", copy, back).exit_code == 0
    assert run("verify", path, back).exit_code == 0
    assert texts(run, back) == texts(run, path)
    add(path, KEY, [event(10, "user", rewind_before_invocation_id="turn-1")], len(TOLD) + 5)
    add(path, KEY, [event(11, "user", "Hello.", 11)], len(TOLD) + 6)
    assert run("migrate", path, copy).exit_code == 0
    assert context(copy) == [(False, "Hello.")]
    assert run("verify", path, copy).exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert context(copy) == wanted


def test_live_summary_of_a_compaction_that_became_part_of_another(
    run: Any, path: str, tmp_path: Path
) -> None:
    """An agent of AgentScope goes on and compresses; agents of ADK then read the same."""
    copy, back = f"{tmp_path}/sessions/", f"sqlite:///{tmp_path}/back.db?layout=adk&app=shop"
    add(path, KEY, [compaction(5, 3, "Of seats."), event(6, "clerk", "12A.", 6)], len(TOLD))
    assert run("migrate", path, copy).exit_code == 0
    words = ("--summarizer", "extractive", "--keep-last", "1", "--yes")
    assert run("compress", copy, *words).exit_code == 0
    assert run("migrate", copy, back).exit_code == 0
    assert texts(run, back) == texts(run, copy)
    assert len(texts(run, back)) == 2
    assert CARD not in texts(run, back, "--all")


def test_live_replies_between_the_results_of_a_call(run: Any, path: str, tmp_path: Path) -> None:
    """ADK sends the last result of a long-running call, without the replies before it."""

    def part(number: int, author: str, **value: Any) -> StoredMessage:
        document = jsonio.loads(event(number, author, "x", 9).message)
        document["content"]["content"]["parts"] = [value]
        return StoredMessage(f"e{number}", jsonio.dumps(document))

    def result(number: int, text: str) -> StoredMessage:
        response = {"id": "c", "name": "book", "response": {"result": text}}
        return part(number, "clerk", function_response=response)

    call = part(5, "clerk", function_call={"id": "c", "name": "book", "args": {}})
    told = [call, result(6, "Started."), event(7, "clerk", "Wait.", 9), result(8, "Booked.")]
    add(path, KEY, [*told, event(9, "clerk", "Done.", 9)], len(TOLD))
    wanted = ["[result of book] Booked.", "Done."]
    assert [text for text in texts(run, path) if text][-2:] == wanted
    found = report(run("context", path, "--json"))
    assert found["unread"] == {"unmatched": 2}
    copy = str(tmp_path / "copy.db")
    assert run("migrate", path, copy).exit_code == 0
    assert [text for text in texts(run, copy) if text][-2:] == wanted
    assert "Wait." not in texts(run, copy)
    assert run("verify", path, copy).exit_code == 0


def test_live_doctor_says_nothing_of_calls_that_were_taken_back(run: Any, path: str) -> None:
    call = event(5, "clerk", "x", 4)
    value = jsonio.loads(call.message)
    part = {"function_call": {"id": "c1", "name": "pay", "args": {}}}
    value["content"]["content"]["parts"] = [part]
    add(path, KEY, [call._replace(message=jsonio.dumps(value))], 4)
    assert run("doctor", path).exit_code == 6
    add(path, KEY, [event(6, "user", rewind_before_invocation_id="turn-4")], 5)
    assert run("doctor", path).exit_code == 0


def test_live_summary_of_agentscope_becomes_the_first_message(run: Any, tmp_path: Path) -> None:
    states = f"{tmp_path}/sessions/"
    entries = samples.entries(4)
    entries = [one._replace(marks=("compressed",)) for one in entries[:2]] + entries[2:]
    asyncio.run(fill(states, {KEY: entries}, summary="They met."))
    chats = f"sqlite:///{tmp_path}/chats.db?layout=langchain&owner=ada"
    done = run("migrate", states, chats)
    assert done.exit_code == 0, done.stderr
    assert "do not read 2 messages of the copied memories (2 compacted)" in done.stderr
    assert "the first message of 1 memory is the summary" in done.stderr
    [found] = contents(chats).values()
    assert len(found) == 3
    assert jsonio.loads(found[0].message)["content"]["data"]["content"] == "They met."
    assert run("verify", states, chats).exit_code == 0
    back = f"{tmp_path}/back/"
    assert run("migrate", chats, back).exit_code == 0
    assert run("verify", states, back).exit_code == 0
    context = report(run("context", back, "--json"))
    assert [one["summary"] for one in context["messages"]] == [True, False, False]


FLAGGED = """
CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT,
    created_at REAL, active INTEGER NOT NULL DEFAULT 1);
INSERT INTO messages (session_id, role, content, created_at, active) VALUES
    ('trip', 'user', 'My seat is 12A.', 1772000001, 1),
    ('trip', 'user', 'My card is 4000-1111.', 1772000002, 0),
    ('trip', 'user', 'Which seat?', 1772000003, 1);
"""
COLUMNS = "session:session_id,role:role,content:content,time:created_at,order:id"


def test_live_flag_of_a_table(run: Any, tmp_path: Path) -> None:
    """A program marks rows instead of deleting them: a condition says which it reads."""
    place = tmp_path / "chats.db"
    with closing(sqlite3.connect(place)) as database:
        database.executescript(FLAGGED)
    [found] = report(run("stores", "detect", place, "--json"))["tables"]
    assert found["live"] == "active = 1"
    assert 'live = "active = 1"' in found["toml"].splitlines()
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live=active%20%3D%201"
    assert texts(run, url) == ["My seat is 12A.", "Which seat?"]
    assert report(run("inspect", url, "--json"))["totals"]["unread"] == {"deleted": 1}
    archive, copy = tmp_path / "all.ndjson", tmp_path / "agents.db"
    assert run("export", url, "-o", archive).exit_code == 0
    assert run("migrate", archive, copy, "--lossy").exit_code == 0
    assert texts(run, copy) == ["My seat is 12A.", "Which seat?"]
    deleted = run("delete", url, "--not-live", "--yes")
    assert "reads the rows with active = 1, and marks others: memctl deletes rows" in deleted.stderr
    with closing(sqlite3.connect(place)) as database:
        rows = database.execute("SELECT id, active FROM messages").fetchall()
        assert rows == [(1, 1), (3, 1)]
        assert run("undo", "--yes").exit_code == 0
        database.execute("DELETE FROM messages WHERE id <> 2")
        database.commit()
    assert texts(run, url) == []


def test_live_summary_of_a_table(run: Any, tmp_path: Path) -> None:
    """A program keeps its summaries among its messages: a condition says which rows they are."""
    place, states = tmp_path / "chats.db", f"{tmp_path}/sessions/"
    made = FLAGGED.replace("active INTEGER", "kind TEXT DEFAULT 'message', active INTEGER")
    more = "('trip', 'user', 'They spoke of seats.', 1772000002.5, 1);"
    with closing(sqlite3.connect(place)) as database:
        database.executescript(made.replace("12A.', 1772000001, 1", "12A.', 1772000001, 0"))
        database.execute(
            "INSERT INTO messages (session_id, role, content, created_at, active) VALUES" + more
        )
        database.execute("UPDATE messages SET kind = 'summary' WHERE id = 4")
        database.execute("UPDATE messages SET id = 5 WHERE id = 3")
        database.commit()
    [found] = report(run("stores", "detect", place, "--json"))["tables"]
    assert found["summary"] == "kind = 'summary'"
    assert "summary = \"kind = 'summary'\"" in found["toml"].splitlines()
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}"
    url += "&live=active%20%3D%201&summary=kind%20%3D%20%27summary%27&content_encoding=text"
    assert texts(run, url) == ["They spoke of seats.", "Which seat?"]
    archive = tmp_path / "all.ndjson"
    assert run("export", url, "-o", archive).exit_code == 0
    for source in (url, archive):
        assert run("migrate", source, states, "--lossy").exit_code == 0
        found = report(run("context", states, "--json"))["messages"]
        assert [one["summary"] for one in found] == [True, False]
        assert texts(run, states) == ["They spoke of seats.", "Which seat?"]
    with closing(sqlite3.connect(place)) as database:
        database.execute("DELETE FROM messages")
        database.commit()
    assert run("migrate", states, url, "--lossy").exit_code == 0
    with closing(sqlite3.connect(place)) as database:
        query = "SELECT content, kind FROM messages WHERE active ORDER BY id"
        assert database.execute(query).fetchall() == [
            ("They spoke of seats.", "summary"),
            ("Which seat?", "message"),
        ]


@pytest.mark.parametrize("written", ["active", "active > 1", "content = 'x'", "active = x"])
def test_live_condition_that_memctl_does_not_know(run: Any, tmp_path: Path, written: str) -> None:
    place = tmp_path / "chats.db"
    with closing(sqlite3.connect(place)) as database:
        database.executescript(FLAGGED)
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live={quote(written)}"
    fails(run("inspect", url), 2, "is no condition of a further column", "active = 1")
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live=gone%20is%20null"
    fails(run("inspect", url), 8, "has no column 'gone'")


def test_live_messages_of_another_store_are_read_in_a_table(run: Any, tmp_path: Path) -> None:
    place, agents = tmp_path / "chats.db", tmp_path / "agents.db"
    with closing(sqlite3.connect(place)) as database:
        database.executescript(FLAGGED.replace("NOT NULL DEFAULT 1", "").partition("INSERT")[0])
    asyncio.run(fill(str(agents), {MemoryKey("", "trip"): samples.entries(3)}))
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live=active%20%3D%201"
    url += "&content_encoding=text"
    assert run("migrate", agents, url, "--lossy").exit_code == 0
    with closing(sqlite3.connect(place)) as database:
        assert database.execute("SELECT DISTINCT active FROM messages").fetchall() == [(1,)]
    assert len(texts(run, url)) == 3


def test_live_summary_that_agno_may_not_send(run: Any, tmp_path: Path) -> None:
    states, agno = f"{tmp_path}/sessions/", f"sqlite:///{tmp_path}/agno.db?layout=agno"
    asyncio.run(fill(states, {KEY: samples.entries(2)}, summary="They met."))
    done = run("migrate", states, agno)
    assert done.exit_code == 0, done.stderr
    assert "only with add_session_summary_to_context=True (1 memory)" in done.stderr


def test_live_flag_without_a_value_stays_one(run: Any, tmp_path: Path) -> None:
    """NULL is not 1: such a row is not read, not after an undo, and not after a way back."""
    place, agents = tmp_path / "chats.db", tmp_path / "agents.db"
    made = FLAGGED.replace("NOT NULL DEFAULT 1", "DEFAULT 1").replace("1772000002, 0", "2, NULL")
    with closing(sqlite3.connect(place)) as database:
        database.executescript(made)
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live=active%20%3D%201"
    url += "&content_encoding=text"
    assert run("migrate", url, agents, "--lossy").exit_code == 0
    assert run("delete", url, "--all", "--yes").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    for _ in range(2):
        assert texts(run, url) == ["My seat is 12A.", "Which seat?"]
        with closing(sqlite3.connect(place)) as database:
            query = "SELECT active FROM messages ORDER BY id"
            assert database.execute(query).fetchall() == [(1,), (None,), (1,)]
            database.execute("DELETE FROM messages")
            database.commit()
        assert run("migrate", agents, url, "--lossy").exit_code == 0


def test_live_calls_alone_are_sent_by_programs_that_do_not_look(run: Any, tmp_path: Path) -> None:
    """Only ADK leaves out a call without a result."""
    place = tmp_path / "chats.db"
    call = json.dumps([{"type": "tool_use", "id": "c", "name": "pay", "input": {}}])
    with closing(sqlite3.connect(place)) as database:
        database.executescript(FLAGGED)
        row = ("trip", "assistant", call, 1772000009)
        names = "(session_id, role, content, created_at)"
        database.execute(f"INSERT INTO messages {names} VALUES (?, ?, ?, ?)", row)
        database.commit()
    url = f"sqlite:///{place}?layout=table&table=messages&columns={COLUMNS}&live=active%20%3D%201"
    assert len(texts(run, url)) == 3


def test_live_undo_of_a_copy_of_all_messages(run: Any, path: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    add(path, KEY, TAKEN_BACK[:2], len(TOLD))
    assert run("migrate", path, copy, "--all-messages").exit_code == 0
    before = contents(copy)
    add(path, KEY, TAKEN_BACK[2:], len(TOLD) + 2)
    assert run("migrate", path, copy, "--all-messages").exit_code == 0
    assert CARD in texts(run, copy)
    assert run("undo", "--yes").exit_code == 0
    assert contents(copy) == before
