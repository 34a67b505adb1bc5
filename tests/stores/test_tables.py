"""Tables of somebody else: what the mapping says, what it does not, and mistakes in it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from memctl.engines.sql import sqlite
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.testing import samples
from tests.support.cli import contents, fails, fill, report
from tests.support.processes import start
from tests.support.servers.pool import Servers

GUIDE = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, "
    "role TEXT NOT NULL, content TEXT NOT NULL, timestamp REAL NOT NULL, tokens INTEGER)"
)
MAPPING = "session:session_id,role:role,content:content,time:timestamp,order:id"
START = 1_700_000_000.1234567


def execute(path: Path, sql: str, rows: Iterable[Any] = ((),)) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(sql, list(rows))


def dump(path: Path, table: str = "messages") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f'SELECT * FROM "{table}" ORDER BY 1').fetchall()


def url(path: Path, columns: str = MAPPING, table: str = "messages", more: str = "") -> str:
    return f"sqlite:///{path}?layout=table&table={table}&columns={columns}{more}"


TEXTS = "&content_encoding=text"


@pytest.fixture
def friday(tmp_path: Path) -> Path:
    """The table of the guide, with two sessions in turn."""
    path = tmp_path / "friday.db"
    execute(path, GUIDE)
    rows = []
    for number in range(8):
        content = f"message {number}"
        if number == 4:
            content = json.dumps([{"type": "text", "text": "in a block"}])
        role = ("user", "assistant")[number // 2 % 2]
        rows.append((("kyoto", "osaka")[number % 2], role, content, START + number, number * 10))
    execute(
        path,
        "INSERT INTO messages (session_id, role, content, timestamp, tokens) "
        "VALUES (?, ?, ?, ?, ?)",
        rows,
    )
    return path


def test_a_table_is_read_as_it_is(run: Any, friday: Path) -> None:
    found = report(run("inspect", url(friday), "--json"))
    assert [(one["session"], one["messages"]) for one in found["memories"]] == [
        ("kyoto", 4),
        ("osaka", 4),
    ]
    shown = run("context", url(friday), "--session", "kyoto")
    assert "in a block" in shown.stdout
    assert report(run("doctor", url(friday), "--json"))["findings"] == []


def test_delete_and_undo_leave_every_row_as_it_was(run: Any, friday: Path) -> None:
    """Also the seventh digit of a time, the key, and columns that nobody named."""
    before = dump(friday)
    run("delete", url(friday), "--session", "kyoto", "--role", "user", "-y")
    assert [row[0] for row in dump(friday)] == [2, 3, 4, 6, 7, 8]
    assert run("undo", "-y").exit_code == 0
    assert dump(friday) == before


def test_undo_after_another_row_took_the_key(run: Any, tmp_path: Path) -> None:
    """Without AUTOINCREMENT, SQLite gives the newest key away again."""
    path = tmp_path / "lc.db"
    execute(path, "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id, content, at)")
    insert = "INSERT INTO messages (session_id, content, at) VALUES ('s', ?, ?)"
    execute(path, insert, [(text, START) for text in ("one", "two", "three")])
    place = url(path, "session:session_id,content:content,time:at")
    [_, last] = [one.id for one in next(iter(contents(place).values()))][1:]
    assert run("delete", place, "--id", last, "-y").exit_code == 0
    execute(path, insert, [("four", START + 9)])
    assert run("undo", "-y").exit_code == 0
    assert [row[2] for row in dump(path)] == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_numbers_that_are_no_key_are_given_and_restored(run: Any, tmp_path: Path) -> None:
    """As many applications have it: a key of their own, and a position."""
    path, more = tmp_path / "positions.db", tmp_path / "more.db"
    for one in (path, more):
        execute(
            one,
            "CREATE TABLE messages (key TEXT PRIMARY KEY, chat TEXT, body TEXT, "
            "place INTEGER NOT NULL)",
        )
    row = "INSERT INTO messages VALUES (?, ?, ?, ?)"
    execute(path, row, [(f"k{n}", "c", f"text {n}", n * 10) for n in range(5)])
    columns = "session:chat,content:body,id:key,order:place"
    before = dump(path)
    assert run("delete", url(path, columns), "--id", "k1", "--id", "k3", "-y").exit_code == 0
    assert run("undo", "-y").exit_code == 0
    assert dump(path) == before
    assert run("migrate", url(path, columns), url(more, columns, more=TEXTS)).exit_code == 0
    assert [(key, place) for key, _, _, place in dump(more)] == [(f"k{n}", n) for n in range(5)]


def test_rows_without_a_user_belong_to_nobody(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "users.db"
    execute(path, "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id, who TEXT, content)")
    insert = "INSERT INTO messages (session_id, who, content) VALUES ('s', ?, ?)"
    execute(path, insert, [(None, "one"), ("ada", "two"), (None, "three")])
    place, before = url(path, "session:session_id,user:who,content:content"), dump(path)
    assert {key.user: len(found) for key, found in contents(place).items()} == {"": 2, "ada": 1}
    assert run("delete", place, "--match", "three", "-y").exit_code == 0
    assert len(dump(path)) == 2
    assert run("undo", "-y").exit_code == 0
    assert dump(path) == before


def test_columns_that_nobody_named_travel(run: Any, friday: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    execute(there, GUIDE)
    assert run("export", url(friday), "-o", str(tmp_path / "a.ndjson")).exit_code == 0
    assert run("import", str(tmp_path / "a.ndjson"), url(there, more=TEXTS)).exit_code == 0
    assert run("verify", url(friday), url(there)).exit_code == 0
    rows = {row[3]: row[5] for row in dump(there)}
    assert rows == {row[3]: row[5] for row in dump(friday)}


def test_a_table_without_the_column_refuses_what_needs_it(
    run: Any, friday: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there.db"
    execute(there, GUIDE.replace(", tokens INTEGER", ""))
    fails(run("migrate", url(friday), url(there, more=TEXTS)), 7, "no column for 'tokens'")
    assert dump(there) == []


@pytest.mark.slow
def test_to_agentscope_and_back(run: Any, friday: Path, tmp_path: Path) -> None:
    agents, back = tmp_path / "agents.db", tmp_path / "back.db"
    execute(back, GUIDE)
    assert run("migrate", url(friday), str(agents)).exit_code == 0
    assert run("migrate", str(agents), url(back, more=TEXTS)).exit_code == 0
    assert run("verify", url(friday), url(back)).exit_code == 0
    assert sorted(map(said, dump(back))) == sorted(map(said, dump(friday)))


def said(row: Any) -> tuple[str, str, str]:
    """Return the session, the role and the content of a row, the fields of a block in order."""
    content = json.dumps(json.loads(row[3]), sort_keys=True) if row[3][0] == "[" else row[3]
    return row[1], row[2], content


def test_what_a_table_has_no_place_for_is_a_loss(run: Any, friday: Path, tmp_path: Path) -> None:
    source = tmp_path / "agents.db"
    key = MemoryKey("", "kyoto")
    asyncio.run(fill(str(source), {key: [samples.entry("m1", 1, ("hint",))]}))
    before = dump(friday)
    there = url(tmp_path / "there.db", more=TEXTS)
    execute(tmp_path / "there.db", GUIDE)
    fails(
        run("migrate", str(source), there),
        9,
        "cannot store details of messages: ids, names, marks",
        "--lossy",
    )
    assert dump(tmp_path / "there.db") == []
    assert run("migrate", str(source), there, "--lossy").exit_code == 0
    again = report(run("migrate", str(source), there, "--lossy", "--json"))
    assert again["memories"]["unchanged"] == 1
    assert again["losses"][0]["kind"] == "details"
    assert dump(friday) == before


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1_700_000_000, "2023-11-14T22:13:20.000000+00:00"),
        (1_700_000_000.5, "2023-11-14T22:13:20.500000+00:00"),
        (1_700_000_000_250, "2023-11-14T22:13:20.250000+00:00"),
        (1_700_000_000_250_125, "2023-11-14T22:13:20.250125+00:00"),
        ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20.000000+00:00"),
        ("2023-11-14 23:13:20.5+01:00", "2023-11-14T22:13:20.500000+00:00"),
        ("1700000000", "2023-11-14T22:13:20.000000+00:00"),
    ],
)
def test_times_are_read_whatever_their_form(tmp_path: Path, value: Any, shown: str) -> None:
    path = tmp_path / "t.db"
    execute(path, "CREATE TABLE messages (id INTEGER PRIMARY KEY, s TEXT, c TEXT, at)")
    execute(path, "INSERT INTO messages (s, c, at) VALUES ('s', 'hello', ?)", [(value,)])
    [entries] = contents(url(path, "session:s,content:c,time:at")).values()
    assert json.loads(entries[0].message)["time"] == shown


@pytest.mark.parametrize(
    ("columns", "table", "more", "code", "said"),
    [
        ("session:nobody,content:content", "messages", "", 8, "has no column 'nobody'"),
        ("session:session_id,content:content,order:nr", "messages", "", 8, "no column 'nr'"),
        ("session:session_id,content:content,order:role", "messages", "", 8, "is not unique"),
        ("session:session_id", "messages", "", 2, "names no column for content"),
        ("session:session_id,content:content,mood:role", "messages", "", 2, "'mood'"),
        ("session:session_id,content:content", "letters", "", 8, "has no table 'letters'"),
        ("session:session_id,content:content", "messages", "&dialect=klingon", 2, "klingon"),
        ("session:session_id,content:content,user:role", "messages", "&owner=ada", 2, "an owner"),
    ],
)
def test_a_wrong_mapping_is_one_line(
    run: Any, friday: Path, columns: str, table: str, more: str, code: int, said: str
) -> None:
    before = dump(friday)
    fails(run("delete", url(friday, columns, table, more), "--role", "user", "-y"), code, said)
    assert dump(friday) == before


def test_content_that_is_half_json_is_damage(run: Any, friday: Path) -> None:
    """Of a dialect whose messages are documents; the other sessions are read."""
    place = url(friday, "session:session_id,content:content", more="&dialect=langchain")
    text = '{"type": "human", "data": {"content": "hi"}}'
    execute(friday, "UPDATE messages SET content = ?", [(text,)])
    execute(friday, "UPDATE messages SET content = ? WHERE id = 3", [('{"type": "human", "da',)])
    shown = run("inspect", place)
    assert "the content of the row 3 of 'messages' is not JSON" in shown.stderr + shown.stdout
    found = report(run("doctor", place, "--json"), 6)
    assert [one["code"] for one in found["findings"]] == ["damaged-row"]


def test_an_alias_maps_a_table(run: Any, friday: Path, tmp_path: Path, monkeypatch: Any) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    columns = '{ session = "session_id", content = "content", order = ["timestamp", "id"] }'
    config.write_text(
        f'[stores.friday]\nurl = "{friday}"\nlayout = "table"\ntable = "messages"\n'
        f"columns = {columns}\n"
    )
    assert report(run("inspect", "friday", "--json"))["totals"]["messages"] == 8
    config.write_text(config.read_text().replace("session =", "sesion ="))
    fails(run("inspect", "friday"), 2, "sesion", "did you mean 'session'?")


DRIVERS = {
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
    "sqlite": "sqlite+aiosqlite",
}
TYPED = (
    "CREATE TABLE chats (nr BIGINT NOT NULL PRIMARY KEY {serial}, chat {text} NOT NULL, "
    "who {text}, role {text}, body {json}, at {time}, rating DECIMAL(5,2), seen BOOLEAN)"
)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgresql", "mysql"])
def test_a_table_with_types(run: Any, request: pytest.FixtureRequest, engine: str) -> None:
    """Its values come back from an undo as they were, and go to a table of another database."""
    place = request.getfixturevalue(f"{engine}_url")
    if engine == "postgresql":
        types = {"serial": "GENERATED BY DEFAULT AS IDENTITY", "text": "TEXT", "json": "JSONB"}
        types["time"] = "TIMESTAMPTZ"
    else:
        types = {"serial": "AUTO_INCREMENT", "text": "VARCHAR(80)", "json": "JSON"}
        types["time"] = "DATETIME(6)"
    rows = (
        "INSERT INTO chats (chat, who, role, body, at, rating, seen) VALUES "
        "('kyoto', 'Ada', 'user', '\"hello\"', '2025-03-01 12:00:00.123456', 4.50, TRUE), "
        "('Kyoto', 'Ada', 'user', '\"other case\"', '2025-03-01 12:00:01', NULL, NULL), "
        "('kyoto', 'Ada', 'assistant', '[{\"type\": \"text\", \"text\": \"hi\"}]', "
        "'2025-03-01 12:00:02', 3.25, FALSE)"
    )
    ask(place, TYPED.format(**types), rows)
    there = f"{place}{'&' if '?' in place else '?'}layout=table&table=chats&columns="
    there += "session:chat,user:who,role:role,content:body,time:at"
    before = ask(place, "SELECT * FROM chats ORDER BY nr")
    found = contents(there)
    assert sorted(key.session for key in found) == ["Kyoto", "kyoto"]
    messages = [json.loads(one.message) for one in found[MemoryKey("Ada", "kyoto")]]
    assert [one["content"] for one in messages] == ["hello", [{"type": "text", "text": "hi"}]]
    assert run("delete", there, "--session", "kyoto", "-y").exit_code == 0
    assert len(ask(place, "SELECT * FROM chats")) == 1
    assert run("undo", "--store", there, "-y").exit_code == 0
    assert ask(place, "SELECT * FROM chats ORDER BY nr") == before
    ask(place, rows)  # the database goes on counting
    assert len(ask(place, "SELECT * FROM chats")) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "times"),
    [
        ("openai-agents&owner=ada", "SELECT created_at FROM agent_messages ORDER BY 1"),
        ("llamaindex&owner=ada", "SELECT timestamp FROM llama_index_memory ORDER BY 1"),
        ("adk&app=a", "SELECT timestamp FROM events ORDER BY 1"),
    ],
)
def test_replacing_by_older_messages_keeps_their_times(
    run: Any, tmp_path: Path, layout: str, times: str
) -> None:
    """Messages that go have no say in the order of those that come."""
    whole, end = str(tmp_path / "whole.ndjson"), str(tmp_path / "end.ndjson")
    path = tmp_path / "t.db"
    place = f"sqlite:///{path}?layout={layout}"
    asyncio.run(fill(whole, {MemoryKey("ada", "s"): samples.entries(6)}))
    report(run("export", whole, "-o", end, "--last", "2", "--json"))

    def held() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute(times).fetchall()

    report(run("migrate", whole, place, "--lossy", "--json"))
    before = held()
    assert len(set(before)) == 6
    replace = ("--on-conflict", "replace", "--yes", "--lossy", "--json")
    for source, count in ((end, 2), (whole, 6)):
        assert report(run("migrate", source, place, *replace))["verified"] is True
        assert held() == before[-count:]


@pytest.mark.parametrize("last", ["'text'", "x'ff'", "1.5", "9223372036854775807", "NULL"])
def test_nothing_is_added_behind_a_number_that_has_no_next(
    run: Any, tmp_path: Path, last: str
) -> None:
    path, more = tmp_path / "numbers.db", tmp_path / "more.db"
    columns = "session:chat,content:body,order:place"
    for one in (path, more):
        execute(one, "CREATE TABLE messages (key TEXT PRIMARY KEY, chat, body, place INTEGER)")
        execute(one, "INSERT INTO messages VALUES (?, 'c', ?, ?)", [("a", "first", 0)])
    execute(path, f"UPDATE messages SET place = {last}")
    execute(more, "INSERT INTO messages VALUES ('b', 'c', 'second', 1)")
    before = dump(path)
    words = ("migrate", url(more, columns), url(path, columns), "--lossy", "--json")
    result = run(*words)
    if result.exit_code:
        assert report(result, 7)["failures"][0]["code"] == "refused"
        assert dump(path) == before
    else:
        [added] = contents(url(path, columns)).values()
        assert [json.loads(one.message)["content"] for one in added] == ["first", "second"]
    assert (result.exit_code == 0) == (last in ("1.5", "NULL"))


ZONED = {"sqlite": "TEXT", "postgresql": "TIMESTAMP", "mysql": "DATETIME(6)"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ZONED)
def test_undo_in_another_time_zone_restores_times_without_one(
    run: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    is_file = engine == "sqlite"
    place = str(request.getfixturevalue("tmp_path" if is_file else f"{engine}_url"))
    place = f"sqlite:///{place}/local.db" if is_file else place
    number = {"postgresql": "SERIAL", "mysql": "INT AUTO_INCREMENT"}.get(engine, "INTEGER")
    text = "VARCHAR(80)"
    rows = [f"('s', 'user', 'text {n}', '2025-03-30 0{n}:30:00.5')" for n in range(4)]
    ask(
        place,
        f"CREATE TABLE chats (nr {number} PRIMARY KEY, chat {text}, role {text}, body {text}, "
        f"at {ZONED[engine]})",
        f"INSERT INTO chats (chat, role, body, at) VALUES {', '.join(rows)}",
    )
    before = ask(place, "SELECT * FROM chats ORDER BY nr")
    store = f"{place}{'&' if '?' in place else '?'}layout=table&table=chats&columns="
    store += "session:chat,role:role,content:body,time:at"
    for there, here in (("UTC", "Asia/Tokyo"), ("America/New_York", "Europe/Berlin")):
        in_zone(monkeypatch, there)
        assert run("delete", store, "--all", "--keep-last", "1", "-y").exit_code == 0
        assert len(ask(place, "SELECT * FROM chats")) == 1
        in_zone(monkeypatch, here)
        assert run("undo", "--store", store, "-y").exit_code == 0
        assert ask(place, "SELECT * FROM chats ORDER BY nr") == before
        in_zone(monkeypatch, there)
        [_, id, *_] = [one.id for one in contents(store)[MemoryKey("", "s")]]
        assert run("delete", store, "--id", id, "-y").exit_code == 0
        in_zone(monkeypatch, here)  # where the message before it has another id
        fails(run("undo", "--store", store, "-y"), 5, "")
        in_zone(monkeypatch, there)
        assert run("undo", "--store", store, "-y").exit_code == 0
        assert ask(place, "SELECT * FROM chats ORDER BY nr") == before


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    time.tzset()


def in_zone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Move the machine to a time zone."""
    monkeypatch.setenv("TZ", name)
    time.tzset()


@pytest.mark.slow
def test_undo_restores_times_whose_form_others_lack(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "forms.db"
    execute(path, GUIDE.replace("timestamp REAL", "timestamp TEXT"))
    add = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    times = ["2025-03-01 12:00:00", "2025-03-01T12:00:01Z", "1740830402", "2025-03-01,12:00:03"]
    execute(path, add, [("s", "user", "text", one) for one in times])
    before = dump(path)
    for number in range(4):
        id = [one.id for one in contents(url(path))[MemoryKey("", "s")]][number]
        assert run("delete", url(path), "--all", "--keep-last", "1", "-y").exit_code == 0
        assert run("undo", "--store", url(path), "-y").exit_code == 0
        assert run("delete", url(path), "--id", id, "-y").exit_code == 0
        assert run("undo", "--store", url(path), "-y").exit_code == 0
        assert dump(path) == before


def ask(place: str, *statements: str) -> list[Any]:
    """Run statements past memctl; return the rows of the last."""

    async def run() -> list[Any]:
        scheme, _, rest = place.partition("://")
        driver = DRIVERS[scheme]
        engine = create_async_engine(f"{driver}://{rest.partition('?')[0]}")
        found: list[Any] = []
        async with engine.begin() as connection:
            for statement in statements:
                result = await connection.exec_driver_sql(statement.replace("%", "%%"))
                found = list(map(tuple, result)) if result.returns_rows else []
        await engine.dispose()
        return found

    return asyncio.run(run())


async def test_an_agent_writes_while_a_large_table_is_read(
    friday: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a SQLite file keeps others from writing, so that a large one is copied first."""
    monkeypatch.setattr(sqlite, "LARGE_BYTES", 0)
    row = (
        "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('new', 'user', '', 1)"
    )
    found = []
    async with make_store(parse(url(friday))) as store:
        async for page in store.read(Selection()):
            found.append(page.memory.key.session)
            with closing(sqlite3.connect(friday, timeout=0.1)) as agent, agent:
                agent.execute(row)
    assert found == ["kyoto", "osaka"]
    assert len(dump(friday)) == 10


def test_undo_restores_a_blob_that_is_no_text(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "blob.db"
    execute(path, GUIDE)
    add = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    execute(path, add, [("s", b"\xff", "first", 1.0), ("s", "user", "second", 2.0)])
    before = dump(path)
    assert run("delete", url(path), "--all", "-y").exit_code == 0
    assert run("undo", "--store", url(path), "-y").exit_code == 0
    assert dump(path) == before


@pytest.mark.parametrize(
    "changed",
    ['content = CAST(\'{"id":"a"}\' AS BLOB)', "tokens = 9e999", "timestamp = 9e999", "who = ''"],
)
def test_undo_restores_values_that_no_framework_writes(
    run: Any, tmp_path: Path, changed: str
) -> None:
    """A blob as it was spaced, a number that JSON lacks, and an empty name of a user."""
    path = tmp_path / "odd.db"
    execute(path, GUIDE)
    execute(path, "ALTER TABLE messages ADD COLUMN who TEXT")
    add = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    execute(path, add, [("s", "user", '{"id": "b"}', 1.0), ("s", "user", '{"id": "c"}', 2.0)])
    execute(path, f"UPDATE messages SET {changed} WHERE id = 1")
    before = dump(path)
    store = url(path, f"{MAPPING},user:who")
    assert run("delete", store, "--all", "-y").exit_code == 0
    assert dump(path) == []
    assert run("undo", "--store", store, "-y").exit_code == 0
    assert dump(path) == before


def test_a_time_of_many_digits_is_read_as_a_text(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "digits.db"
    execute(path, GUIDE.replace("timestamp REAL", "timestamp TEXT"))
    add = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    execute(path, add, [("s", "user", "found", "9" * 60)])
    result = run("export", url(path), "--as", "markdown")
    assert result.exit_code == 0
    assert "found" in result.stdout


def test_undo_restores_a_text_beside_json(run: Any, tmp_path: Path) -> None:
    """Although only contents in JSON are left, of which others may be texts as well."""
    path = tmp_path / "mixed.db"
    execute(path, GUIDE)
    rows = [
        ("s", "user", "plain 京都", 1.0),
        ("s", "assistant", '[{"type":"text","text":"x"}]', 2.0),
    ]
    add = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    execute(path, add, rows)
    before = dump(path)
    assert run("delete", url(path), "--role", "user", "-y").exit_code == 0
    assert run("undo", "--store", url(path), "-y").exit_code == 0
    assert dump(path) == before


FILLED = {
    "sqlite": ("INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT", "TIMESTAMP"),
    "postgresql": ("INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "TEXT", "TIMESTAMPTZ"),
    "mysql": ("INTEGER PRIMARY KEY AUTO_INCREMENT", "VARCHAR(80)", "TIMESTAMP"),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", FILLED)
@pytest.mark.parametrize("time", ["at", "made"])
def test_what_the_database_fills_is_no_difference(
    run: Any, request: pytest.FixtureRequest, tmp_path: Path, engine: str, time: str
) -> None:
    """Keys, defaults, and columns that it computes; a message without a time stays so."""
    is_file = engine == "sqlite"
    place = str(request.getfixturevalue("tmp_path" if is_file else f"{engine}_url"))
    place = f"sqlite:///{place}/filled.db" if is_file else place
    key, text, moment = FILLED[engine]
    ask(
        place,
        f"CREATE TABLE chats (nr {key}, chat {text}, role {text}, body {text}, at {moment} NULL, "
        f"made {moment} NOT NULL DEFAULT CURRENT_TIMESTAMP, state {text} DEFAULT 'new', "
        "size INTEGER GENERATED ALWAYS AS (LENGTH(body)) STORED)",
    )
    store = f"{place}{'&' if '?' in place else '?'}layout=table&table=chats"
    store += f"&columns=session:chat,role:role,content:body,time:{time}{TEXTS}"
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    report(run("migrate", str(source), store, "--lossy", "--json"))
    assert report(run("verify", str(source), store, "--json"))["differences"] == []
    again = report(run("migrate", str(source), store, "--lossy", "--json"))
    assert again["memories"]["unchanged"] == 1
    [row] = ask(place, "SELECT state, size, at FROM chats")
    assert row == ("new", 5, None)
    plan = report(run("delete", store, "--older-than", "7d", "--dry-run", "--json"))
    assert (plan["messages"]["selected"], plan["untimed"]) == (0, 1)
    ask(place, "UPDATE chats SET state = NULL")
    before = ask(place, "SELECT * FROM chats")
    assert run("delete", store, "--all", "-y").exit_code == 0
    assert run("undo", "--store", store, "-y").exit_code == 0
    assert ask(place, "SELECT * FROM chats") == before


@pytest.mark.slow
def test_messages_without_a_time_keep_their_place_among_others(run: Any, tmp_path: Path) -> None:
    """In layouts that order messages by time, also where a note has no place."""
    first, more = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    about = {"time": "2025-03-01T12:00:00+00:00"}
    said = [{"role": "user", "content": f"text {n}"} for n in range(4)]
    said[1] |= {"memctl": about}
    for path in first, more:
        path.write_text(json.dumps({"messages": said}))
    for layout in ("llamaindex", "openai-agents", "adk&app=x"):
        place = f"sqlite:///{tmp_path}/{layout[:3]}.db?layout={layout}"
        result = run("migrate", str(first), place, "--lossy", "--json")
        moved = report(result)
        found = [json.loads(one.message) for one in contents(place)[MemoryKey("", "000001")]]
        assert [text(one) for one in found] == [f"text {n}" for n in range(4)]
        plan = report(run("delete", place, "--until", "2999-01-01", "-n", "--json"))
        timed = 3 if layout == "openai-agents" else 1
        assert (plan["messages"]["selected"], plan["untimed"]) == (timed, 4 - timed)
        assert any("times that are missing" in one for one in moved["warnings"]) == (timed == 3)


def text(message: dict[str, Any]) -> str:
    """Return what a message of any framework says."""
    return next(part for part in json.dumps(message).split('"') if part.startswith("text "))


def test_a_session_that_is_a_number_takes_no_other_name(run: Any, tmp_path: Path) -> None:
    path, source = tmp_path / "numbers.db", tmp_path / "s.jsonl"
    execute(path, "CREATE TABLE messages (id INTEGER PRIMARY KEY, chat INTEGER, role, body TEXT)")
    place = url(path, "session:chat,role:role,content:body", more=TEXTS)
    for name, code in (("7", 0), ("007", 7), ("kyoto", 7)):
        about = {"messages": [{"role": "user", "content": "hello"}], "memctl": {"session": name}}
        source.write_text(json.dumps(about))
        found = report(run("migrate", str(source), place, "--lossy", "--json"), code)
        assert [one["code"] for one in found["failures"]] == ["bad-name"] * bool(code)
    assert [row[1] for row in dump(path)] == [7]


def test_columns_of_types_unknown_to_the_driver_raise_no_warning(servers: Servers) -> None:
    at = servers.postgresql.fresh()
    servers.postgresql.execute(
        at,
        "CREATE TABLE messages (id SERIAL PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, "
        "place POINT); INSERT INTO messages (session_id, role, content, place) "
        "VALUES ('kyoto', 'user', 'hello', '(1, 2)')",
    )
    columns = "session:session_id,role:role,content:content,order:id"
    process = start("inspect", f"{at}?layout=table&table=messages&columns={columns}", "--json")
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, "")
    assert [one["session"] for one in json.loads(stdout)["memories"]] == ["kyoto"]


def test_a_second_table_of_the_framework_is_named(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    said = json.dumps({"type": "human", "data": {"type": "human", "content": "hello"}})
    for table in ("message_store", "chat_history", "none"):
        execute(path, f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, session_id TEXT, message)")
    execute(path, "INSERT INTO message_store VALUES (1, 'kyoto', ?)", [(said,)])
    execute(path, "INSERT INTO chat_history VALUES (1, 'osaka', ?)", [(said,)])
    done = run("inspect", path)
    assert (done.exit_code, done.stderr) == (
        0,
        "memctl: warning: only the table 'message_store' is read: 'chat_history' holds messages, "
        "too; read it with ?layout=langchain&table=chat_history\n",
    )
    assert "osaka" not in done.stdout
    other = run("inspect", f"sqlite:///{path}?layout=langchain&table=chat_history")
    assert (other.exit_code, other.stderr) == (0, "")
    assert "osaka" in other.stdout
