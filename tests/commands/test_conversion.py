"""Memories that go from a store of one dialect to one of another, and back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from memctl.engines.sql import executor
from memctl.json import jsonio
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from tests.support.backends import OF_AGENTSCOPE2, new_place, params
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.hostile import memories
from tests.support.places import append, held, put
from tests.support.servers.pool import Servers

KEY = MemoryKey("ada", "trip")


@pytest.fixture
def archive(tmp_path: Path, servers: Servers) -> Place:
    """An archive of AgentScope 1.x with nothing in it."""
    return new_place("archive", tmp_path, servers)


def message(id: str, role: str, content: Any, *marks: str) -> StoredMessage:
    """Return a message as AgentScope 1.x stores it."""
    value = {"id": id, "name": role, "role": role, "content": content}
    value |= {"metadata": {}, "timestamp": "2025-01-01 10:00:00.000"}
    return StoredMessage(id, json.dumps(value).encode(), marks)


def call(id: str, *calls: str) -> StoredMessage:
    """Return a message that calls tools."""
    blocks = [{"type": "tool_use", "id": one, "name": "f", "input": {"q": one}} for one in calls]
    return message(id, "assistant", blocks)


def result(id: str, call: str) -> StoredMessage:
    """Return a message with the result of a call."""
    block = {"type": "tool_result", "id": call, "name": "f", "output": "done"}
    return message(id, "system", [block])


def own_table(path: Path, order: str) -> str:
    """Make a table that is ordered by these columns; return its URL."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE chats (nr INTEGER PRIMARY KEY, at TEXT, chat TEXT, body TEXT, about TEXT)"
        )
    columns = f"session:chat,content:body,time:at,metadata:about,order:{order}"
    return f"sqlite:///{path}?layout=table&table=chats&columns={columns}&content_encoding=text"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["llamaindex", "table", "langchain", "agno", "adk"])
def test_messages_out_of_the_order_of_their_times_come_back(
    run: Run, archive: Place, tmp_path: Path, layout: str
) -> None:
    """A table that orders messages by their times gives some another time."""
    key = KEY if layout in ("agno", "adk") else MemoryKey("", "trip")
    put(archive, [sample(key, [samples.entry(f"m{at}", at) for at in (0, 5, 2, 1, 9)])])
    place, back = f"sqlite:///{tmp_path}/x.db?layout={layout}", f"{tmp_path}/back.db"
    if layout == "table":
        place = own_table(tmp_path / "x.db", "at;nr")
    elif layout == "adk":
        place += "&app=a"
    for command in (
        ("migrate", archive.text, place),
        ("verify", archive.text, place),
        ("migrate", place, back),
        ("verify", archive.text, back),
    ):
        done = run(*command)
        assert done.exit_code == 0, (command, done.stderr)
    for source, target in (archive.text, place), (place, back):
        again = report(run("migrate", source, target, "--json"))
        assert again["messages"]["written"] == 0


def test_times_out_of_order_are_a_loss_where_no_note_keeps_them(run: Run, tmp_path: Path) -> None:
    """The OpenAI Agents SDK orders messages by their times, and memctl makes ids of these."""
    place, times = f"sqlite:///{tmp_path}/x.db?layout=openai-agents", (0, 50, 20, 10, 90, 30)
    said = [samples.entry(f"m{at}", 60 * at) for at in times]
    key = MemoryKey("", "trip")
    for number in (5, 6):
        source = tmp_path / f"{number}.db"
        asyncio.run(fill(str(source), {key: said[:number]}))
        fails(run("migrate", source, place), 9, "orders messages by their times")
        done = report(run("migrate", source, place, "--lossy", "--json"))
        assert [one["kind"] for one in done["losses"]] == ["details", "times"]
        assert done["messages"]["written"] == (5 if number == 5 else 1)
        assert done["verified"]
    again = report(run("migrate", source, place, "--lossy", "--json"))
    assert again["messages"]["written"] == 0
    assert report(run("undo", "--store", place, "--yes", "--json"))["messages"]["deleted"] == 1
    assert len(contents(place)[key]) == 5


def test_times_out_of_order_are_a_loss_within_a_dialect(run: Run, tmp_path: Path) -> None:
    """Between tables without notes, of which the first has an order of its own."""
    columns = "session:chat,role:role,content:body,time:at,order:"
    places = []
    for name, order in (("a", "nr"), ("b", "at;nr")):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            made = "(nr INTEGER PRIMARY KEY, at TEXT, chat TEXT, role TEXT, body TEXT)"
            database.execute(f"CREATE TABLE chats {made}")
        url = f"sqlite:///{tmp_path / name}?layout=table&table=chats&content_encoding=text"
        places.append(f"{url}&columns={columns}{order}")
    with closing(sqlite3.connect(tmp_path / "a")) as database, database:
        for at in (50, 20, 40):
            row = (f"2026-11-20T10:00:{at}+00:00", "trip", "user", f"at {at}")
            database.execute("INSERT INTO chats (at, chat, role, body) VALUES (?, ?, ?, ?)", row)
    fails(run("migrate", *places), 9, "orders messages by their times")
    for written in (3, 0):
        done = report(run("migrate", *places, "--lossy", "--json"))
        assert done["messages"]["written"] == written
    assert report(run("verify", *places, "--json"))["differences"] == []
    assert report(run("undo", "--store", places[1], "--yes", "--json"))["messages"]["deleted"] == 3
    assert contents(places[1]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["agentscope2", "langchain", "adk", "openai"])
def test_numbers_that_json_lacks_come_back_out_of_notes(
    run: Run, archive: Place, tmp_path: Path, layout: str
) -> None:
    """A note is a JSON text inside of a string of the new message."""
    key = KEY if layout in ("agentscope2", "adk") else MemoryKey("", "trip")
    value = {**json.loads(message("m", "user", "Hi").message), "score": [float("nan"), 1.5]}
    said = StoredMessage("m", jsonio.dumps(value))
    put(archive, [sample(key, [said])])
    place = f"sqlite:///{tmp_path}/x.db?layout={layout}"
    if layout == "openai":
        place = f"{tmp_path}/x.jsonl"
    elif layout == "adk":
        place += "&app=a"
    back = f"{tmp_path}/back.db"
    assert run("migrate", archive.text, place).exit_code == 0
    assert run("migrate", place, back).exit_code == 0
    [(_, [found])] = contents(back).items()
    assert jsonio.canonical(found.message) == jsonio.canonical(said.message)


def test_a_time_that_an_application_changes_is_a_difference(
    run: Run, archive: Place, tmp_path: Path
) -> None:
    """Notes leave out the time only if the table orders messages by their times."""
    put(archive, [sample(MemoryKey("", "trip"), samples.entries(3))])
    place = own_table(tmp_path / "x.db", "nr")
    assert run("migrate", archive.text, place).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as database:
        database.execute("UPDATE chats SET at = '2020-01-01T00:00:00+00:00' WHERE nr = 2")
    assert run("verify", archive.text, place).exit_code == 6


@pytest.mark.slow
def test_a_message_that_an_application_changes_goes_back_as_it_is(
    run: Run, archive: Place, tmp_path: Path
) -> None:
    """The note of the changed message says nothing any more, which is no difference."""
    said = [call("m1", "c1"), result("m2", "c1"), message("m3", "user", "Hi", "hint")]
    put(archive, [sample(KEY, said)])
    rows, back = f"sqlite:///{tmp_path}/rows.db?layout=langchain&owner=ada", tmp_path / "back.db"
    assert run("migrate", archive.text, rows).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
        database.execute(
            "UPDATE message_store SET message = json_set(message, '$.data.content', 'other') "
            "WHERE id = 2"
        )
    assert "verified: source and target match" in run("migrate", rows, back).output
    found = report(run("verify", rows, back, "--json"))
    assert (found["memories"]["same"], found["differences"]) == (1, [])
    with closing(sqlite3.connect(back)) as database, database:
        database.execute("UPDATE message SET msg = replace(msg, 'other', 'another')")
    found = run("verify", rows, back, "--json")
    assert found.exit_code == 6
    assert [one["id"] for one in json.loads(found.stdout)["differences"]] == ["m2"]


def test_messages_with_other_times_are_counted_in_one_warning(
    run: Run, archive: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "BATCH_MESSAGES", 5)
    messages = [samples.entry(f"m{at}", at) for at in (0, 5, 2, 1, 9)]
    put(archive, [sample(MemoryKey("", f"trip{number}"), messages) for number in range(6)])
    done = run("migrate", archive.text, f"sqlite:///{tmp_path}/x.db?layout=llamaindex")
    assert done.stderr.count("orders messages by their times: 12 got that of the") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_hostile_memories_come_back_as_they_were(
    run: Run, archive: Place, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    place, back = one(name), f"{tmp_path}/back.ndjson"
    put(archive, memories(12, 20 if name.startswith("mysql") else 90))  # MariaDB takes 31 levels
    found = report(run("migrate", archive.text, place.text, "--lossy", "--json"))
    assert (found["memories"]["written"], found["messages"]["written"]) == (12, 480)
    assert run("verify", archive.text, place.text).exit_code == 0
    again = report(run("migrate", archive.text, place.text, "--lossy", "--json"))
    assert (again["memories"]["written"], again["memories"]["unchanged"]) == (0, 12)
    assert run("migrate", place.text, back, "--lossy").exit_code == 0
    assert "480 and 480 messages" in run("verify", archive.text, back).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_a_growing_memory_is_followed_and_undone_step_by_step(
    run: Run, archive: Place, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    steps = [
        [message("q", "user", "What is the weather?"), call("c", "1", "2")],
        [result("r1", "1")],
        [result("r2", "2"), message("a", "assistant", [{"type": "text", "text": "Fine."}])],
    ]
    put(archive, [sample(KEY, steps[0])])
    assert run("migrate", archive.text, place.text).exit_code == 0
    states, runs = [], []
    for step in steps[1:]:
        states.append(held(place))
        append(archive, KEY, step)
        runs.append(report(run("migrate", archive.text, place.text, "--json"))["run"])
        assert run("verify", archive.text, place.text).exit_code == 0
    ids = [id for id, _, _ in held(place)[KEY][2]]
    assert ids == ["q", "c", "a"], "the results belong to the call"
    for done in reversed(runs):
        assert run("undo", done, "--store", place.text).exit_code == 0
        assert held(place) == states.pop()


def said(id: str, text: str) -> StoredMessage:
    """Return a message as AgentScope 2.x stores it."""
    time = "2026-01-01T10:00:00"
    block = {"type": "text", "text": text, "id": f"{id}-0", "created_at": time, "finished_at": time}
    value = {"id": id, "name": "user", "role": "user", "content": [block], "metadata": {}}
    return StoredMessage(id, json.dumps(value | {"created_at": time}).encode())


EXTRA = {
    "record": {"agent_id": "friday", "source": "user"},
    "payload": {"origin": {"type": "user"}, "config": {"name": "Trip"}},
    "state": {"session_id": "trip"},
}


@pytest.fixture
def sessions(tmp_path: Path, servers: Servers) -> Place:
    """A SQLite database of AgentScope 2.x: a session with a summary, and one without messages."""
    place = new_place("sqlite-agentscope2", tmp_path, servers)
    full = sample(MemoryKey("ada", "full"), [said("m", "Hi")], summary="What was said.")
    bare = sample(MemoryKey("ada", "trip"), [], extra=json.dumps(EXTRA))
    put(place, [full, bare])
    return place


@pytest.mark.slow
def test_losses_are_named_and_counted_before_anything_is_written(
    run: Run, sessions: Place, tmp_path: Path
) -> None:
    target = tmp_path / "old.db"
    for more in ([], ["--dry-run"]):
        found = report(run("migrate", sessions.text, target, "--json", *more), 9)
        kinds = {one["kind"]: (one["memories"], one["example"]) for one in found["losses"]}
        assert kinds == {
            "summary": (1, {"user": "ada", "session": "full"}),
            "session": (1, {"user": "ada", "session": "trip"}),
        }
        assert "summaries" in found["error"]["message"]
        assert "settings of sessions" in found["error"]["message"]
        assert not target.exists()
    found = report(run("migrate", sessions.text, target, "--json", "--lossy"))
    assert {one["kind"] for one in found["losses"]} == {"summary", "session"}
    assert len(found["warnings"]) == 2


@pytest.mark.slow
def test_a_session_takes_its_settings_along_and_back(
    run: Run, sessions: Place, tmp_path: Path
) -> None:
    old = f"sqlite:///{tmp_path}/old.db?state={tmp_path}/states"
    back = f"sqlite:///{tmp_path}/new.db?layout=agentscope2"
    there = tmp_path / "sessions.ndjson"
    append(sessions, KEY, [said("q", "Hello")])
    for source, target in ((sessions.text, old), (old, back), (back, there)):
        assert run("migrate", source, target).exit_code == 0
        assert run("verify", sessions.text, target).exit_code == 0
    extras = [json.loads(line) for line in there.read_text().splitlines() if '"extra"' in line]
    kept = {one["memory"]["session"]: json.loads(one["memory"]["extra"]) for one in extras}
    assert kept["trip"]["record"]["agent_id"] == "friday"
    assert kept["trip"]["payload"]["config"] == {"name": "Trip"}


def deep(id: str) -> StoredMessage:
    """Return a message, of either version, that is nested deeper than Python goes."""
    inner = '{"a":' * 900 + "1" + "}" * 900
    text = f'{{"id":"{id}","name":"user","role":"user","content":[],"metadata":{inner}}}'
    return StoredMessage(id, text.encode())


TOO_DEEP = "the message 'deep' cannot be converted: nested too deep"


@pytest.mark.slow
@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_a_message_that_is_nested_too_deep_fails_its_memory_alone(
    run: Run, archive: Place, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    others = [message(f"m{number}", "user", "Hi") for number in range(2100)]
    bad = [sample(MemoryKey("ada", "deep"), [deep("deep")])]
    bad += [sample(MemoryKey("ada", "long"), [*others, deep("deep"), message("n", "user", "Hi")])]
    good = [sample(KEY, [message("q", "user", "Hi")])]
    good += [sample(MemoryKey("zoe", "tour"), [message("q", "user", "Hello")])]
    put(archive, [*bad, *good])
    found = report(run("migrate", archive.text, place.text, "--json"), 7)
    assert [(one["session"], one["code"], one["message"]) for one in found["failures"]] == [
        ("deep", "refused", TOO_DEEP),
        ("long", "refused", TOO_DEEP),
    ]
    assert (found["memories"]["written"], found["memories"]["failed"]) == (2, 2)
    assert set(held(place)) == {KEY, MemoryKey("zoe", "tour")}
    missing = report(run("verify", archive.text, place.text, "--json"), 6)["differences"]
    assert [(one["session"], one["code"]) for one in missing] == [
        ("deep", "memory-missing"),
        ("long", "memory-missing"),
    ]
    before = held(place)
    append(archive, KEY, [deep("deep")])
    append(archive, MemoryKey("zoe", "tour"), [message("r", "user", "Well?")])
    found = report(run("migrate", archive.text, place.text, "--json"), 7)
    assert found["memories"] | {"selected": 4, "skipped": 0} == found["memories"]
    assert (found["memories"]["written"], found["memories"]["failed"]) == (1, 3)
    assert {one["message"] for one in found["failures"]} == {TOO_DEEP}
    assert held(place)[KEY] == before[KEY]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite-agentscope2", "redis-agentscope2"])
def test_a_session_nested_too_deep_is_left_out_alone(
    run: Run, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    place, old = one(name), f"sqlite:///{tmp_path}/old.db?state={tmp_path}/states"
    long = [said(f"m{number}", "Hi") for number in range(2100)]
    put(place, [sample(MemoryKey("ada", "deep"), [deep("deep")]), sample(KEY, [said("q", "Hi")])])
    append(place, MemoryKey("ada", "long"), [*long, deep("deep")])
    found = report(run("migrate", place.text, old, "--json"), 7)
    assert [(one["session"], one["message"]) for one in found["failures"]] == [
        ("deep", TOO_DEEP),
        ("long", TOO_DEEP),
    ]
    assert found["memories"]["written"] == 1
    again = run("verify", place.text, old)
    assert again.exit_code == 7
    assert TOO_DEEP in again.stderr


def test_an_unknown_way_is_refused(run: Run, archive: Place, tmp_path: Path) -> None:
    put(archive, [sample(KEY, [message("q", "user", "Hello")])])
    header, *lines = Path(archive.text).read_text().splitlines()
    path = tmp_path / "later.ndjson"
    value = json.loads(header) | {"version": 2, "dialect": "agentscope9"}
    path.write_text("\n".join([json.dumps(value), *lines]) + "\n")
    found = run("inspect", path)
    assert found.exit_code == 8
    assert "agentscope9" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_an_unanswered_call_of_2_x_is_answered_within_its_reply(
    run: Run, archive: Place, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    entries = [message("q", "user", "Hi"), call("c", "1"), message("p", "user", "Well?")]
    put(archive, [sample(KEY, entries)])
    assert run("migrate", archive.text, place.text).exit_code == 0
    before = held(place)
    assert "tool-call-without-result" in run("doctor", place.text).stdout
    done = report(run("doctor", place.text, "--repair", "--yes", "--json"))["run"]
    after = held(place)[KEY][2]
    assert [id for id, _, _ in after] == ["q", "c", "p"]
    reply = json.loads(after[1][2])["content"]
    assert [(block["type"], block["state"]) for block in reply] == [
        ("tool_call", "finished"),
        ("tool_result", "interrupted"),
    ]
    assert run("doctor", place.text).exit_code == 0
    assert run("undo", done, "--store", place.text).exit_code == 0
    assert held(place) == before


def rename(place: Place, name: str) -> None:
    """Give each session another name, as an agent that is at work does to its state."""
    path = place.location.path
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE sessions SET updated_at = '2027-01-01 00:00:00.000000',"
            " payload = json_set(payload, '$.config.name', ?)",
            (name,),
        )


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], [said("r", "Well?")]])
@pytest.mark.parametrize("name", ["sqlite", "redis", "redis-session", "sessions"])
def test_settings_that_change_come_along_with_the_next_copy(
    run: Run,
    sessions: Place,
    one: Callable[[str], Place],
    tmp_path: Path,
    name: str,
    more: list[StoredMessage],
) -> None:
    old, back = one(name), tmp_path / "back.ndjson"
    append(sessions, KEY, [said("q", "Hello")])
    copy = ["migrate", sessions.text, old.text, "--lossy", "--json"]
    assert report(run(*copy))["verified"] is True
    before = held(old)
    rename(sessions, "Journey")
    found = report(run("verify", sessions.text, old.text, "--json"), 6)["differences"]
    assert {(one["session"], one["code"], one["id"]) for one in found} == {
        ("full", "settings", ""),
        ("trip", "settings", ""),
    }
    assert "settings" in run("verify", sessions.text, old.text, "--show").stdout
    append(sessions, KEY, more)
    done = report(run(*copy))
    assert (done["memories"]["written"], done["messages"]["written"]) == (2, len(more))
    assert done["verified"] is True
    assert run("verify", sessions.text, old.text).exit_code == 0
    assert report(run(*copy))["memories"]["unchanged"] == 2
    assert run("migrate", old.text, f"sqlite:///{tmp_path}/b.db?layout=agentscope2").exit_code == 0
    assert run("migrate", f"{tmp_path}/b.db", back).exit_code == 0
    assert back.read_text().count("Journey") == 2
    assert run("undo", done["run"], "--store", old.text).exit_code == 0
    assert held(old) == before


def values(place: Place) -> list[tuple[str, bytes]]:
    """Return the messages that a place holds, by value."""
    found = [entry for _, _, entries in held(place).values() for entry in entries]
    return [(id, jsonio.canonical(text)) for id, _, text in found]


@pytest.mark.slow
@pytest.mark.parametrize("conflict", ["skip", "append"])
def test_undo_takes_settings_back_out_of_messages_that_were_there(
    run: Run, one: Callable[[str], Place], tmp_path: Path, conflict: str
) -> None:
    """They are noted in the first message of the memory, which has a name of its own."""
    old, adk = one("sqlite"), f"sqlite:///{tmp_path}/adk.db?layout=adk&app=weather"
    put(old, [sample(KEY, [samples.entry("q", 0, name="Ada", metadata={"b": 1})])])
    before = values(old)
    report(run("migrate", old.text, adk, "--json"))
    with closing(sqlite3.connect(tmp_path / "adk.db")) as there:
        there.execute("""UPDATE sessions SET state = '{"city": "Oslo"}'""")
        there.commit()
    copied = report(run("migrate", adk, old.text, "--on-conflict", conflict, "--yes", "--json"))
    assert copied["verified"] is True
    assert "Oslo" in str(held(old))
    report(run("undo", "--yes", "--json"))
    assert values(old) == before


TARGETS = [
    ("archive", "redis-agentscope2"),
    ("sqlite-agentscope2", "redis"),
    ("sqlite-agentscope2", "redis-session"),
]


def expiries(place: Place) -> dict[MemoryKey, float | None]:
    """Return the seconds that each memory has left."""

    async def look() -> dict[MemoryKey, float | None]:
        async with place.store() as store, aclosing(store.headers(Selection())) as memories:
            return {memory.key: memory.ttl async for memory in memories}

    return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), TARGETS)
def test_an_expiry_begins_anew_where_a_converted_memory_grows(
    run: Run, one: Callable[[str], Place], servers: Servers, source: str, target: str
) -> None:
    origin, place = one(source), one(target)
    entries = [message("q", "user", "Hi"), call("c", "1"), result("r", "1")]
    if source.endswith("2"):
        entries = [said("q", "Hi"), said("c", "Well?"), said("r", "Yes.")]
    put(origin, [sample(KEY, entries[:1]), sample(MemoryKey("ada", "still"), entries[:1])])
    command = ["migrate", origin.text, f"{place.text}&ttl=5000", "--json"]
    assert report(run(*command))["verified"] is True
    for entry in entries[1:]:
        with servers.redis.client(place.text.partition("?")[0]) as client:
            for key in client.scan_iter():
                client.expire(key, 50)
        append(origin, KEY, [entry])
        assert report(run(*command))["messages"]["written"] == 1
        left = expiries(place)
        assert 4900 < (left[KEY] or 0) <= 5000
        assert 0 < (left[MemoryKey("ada", "still")] or 0) <= 50
        with servers.redis.client(place.text.partition("?")[0]) as client:
            times = [client.ttl(key) for key in client.scan_iter("*trip*")]
            assert times, "its keys"
            assert all(4900 < time <= 5000 for time in times), times


@pytest.mark.parametrize(
    ("source", "target"), [("redis", "redis-agentscope2"), ("redis-agentscope2", "redis")]
)
def test_a_later_expiry_comes_along_to_a_converted_memory(
    run: Run, one: Callable[[str], Place], servers: Servers, source: str, target: str
) -> None:
    origin, place = one(source), one(target)
    entry = said("q", "Hi") if source.endswith("2") else message("q", "user", "Hi")
    put(origin, [sample(KEY, [entry], ttl=1000.0)])
    assert report(run("migrate", origin.text, place.text, "--json"))["verified"] is True
    with servers.redis.client(origin.text.partition("?")[0]) as client:
        for key in client.scan_iter():
            client.expire(key, 9000)
    again = report(run("migrate", origin.text, place.text, "--json"))
    assert (again["memories"]["written"], again["messages"]["written"]) == (1, 0)
    assert again["verified"] is True
    assert 8900 < (expiries(place)[KEY] or 0) <= 9000
    assert report(run("migrate", origin.text, place.text, "--json"))["memories"]["unchanged"] == 1


def test_a_damaged_session_of_a_database_found_by_its_tables_is_named(
    run: Run, sessions: Place, tmp_path: Path
) -> None:
    path = sessions.location.path
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE sessions SET payload = '[]' WHERE id = 'trip'")
    found = report(run("migrate", path, tmp_path / "copy.ndjson", "--json"), 7)
    assert [(one["session"], one["code"]) for one in found["failures"]] == [("trip", "damaged")]
    assert found["memories"]["written"] == 1


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql"])
def test_a_database_does_not_become_one_of_two_layouts_by_mistake(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    put(place, [sample(KEY, [message("q", "user", "Hi")])])
    found = run("migrate", place.text, f"{place.text}?layout=agentscope2")
    assert found.exit_code == 2
    assert "the same store" in found.stderr
    assert run("inspect", place.text).exit_code == 0
