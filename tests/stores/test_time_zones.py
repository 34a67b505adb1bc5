"""Times without a zone: those that a database fills, and those that a program wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.stores.test_tables import ask
from tests.support.cli import contents, report
from tests.support.servers.pgbouncer import MODES
from tests.support.servers.pool import Servers

AGENTS = "?layout=openai-agents"
COLUMNS = "columns=session:session,content:content,time:made"
ORDERED = "SELECT message_data FROM agent_messages ORDER BY created_at, id"
ITEM = "INSERT INTO agent_messages (session_id, message_data) VALUES ('kyoto', '{}')"
ZONES = [
    "postgresql America/New_York",
    "postgresql Asia/Shanghai",
    "postgresql <+0530>-05:30",  # no zone of this name is known
    "mysql America/New_York",
    "mysql +08:00",
]


@pytest.fixture
def zoned(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    """An empty database whose sessions have another time zone."""
    kind, _, zone = request.param.partition(" ")
    if kind == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('tmp_path') / 'chats.db'}"
        return
    if kind == "mysql":
        # MariaDB knows the zone of its machine only by an abbreviation, which is not unique.
        setting = f"--default-time-zone={zone}" if zone.startswith("+") else f"TZ={zone}"
        yield servers.mariadb_with(f"zone-{len(zone)}", setting).fresh()
        return
    url = servers.postgresql.create()
    ask(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET timezone = '{zone}'")
    yield url
    servers.postgresql.drop(url)


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that sets the time zone of this machine."""

    def set_to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


def item(text: str) -> str:
    return json.dumps({"role": "user", "content": text})


def chat(path: Path, *times: datetime) -> str:
    """Return the path of an archive of a conversation of the Agents SDK with these times."""
    database = f"sqlite:///{path}{AGENTS}"
    ask(
        f"sqlite:///{path}",
        "CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, "
        "created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, "
        "updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT, "
        "session_id TEXT NOT NULL, message_data TEXT NOT NULL, "
        "created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
        "INSERT INTO agent_sessions (session_id) VALUES ('kyoto')",
        *(
            "INSERT INTO agent_messages (session_id, message_data, created_at) "
            f"VALUES ('kyoto', '{item(str(number))}', '{one:%Y-%m-%d %H:%M:%S}')"
            for number, one in enumerate(times)
        ),
    )
    return database


def stored(url: str) -> list[Any]:
    """Return the messages of the only memory."""
    [found] = contents(url).values()
    return [json.loads(one.message) for one in found]


def said(url: str) -> list[str]:
    return [one["content"]["content"] for one in stored(url)]


def is_now(time: str) -> bool:
    return abs(datetime.fromisoformat(time) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("zoned", ZONES, indirect=True)
def test_times_that_the_database_fills_are_in_its_zone(
    run: Any, zoned: str, tmp_path: Path
) -> None:
    """A copy is before what an agent adds to it, and its times select it."""
    now, place = datetime.now(UTC), zoned + AGENTS
    old = chat(tmp_path / "old.db", now - timedelta(minutes=20), now - timedelta(minutes=10))
    assert run("migrate", old, place).exit_code == 0
    assert run("verify", old, place).exit_code == 0
    ask(zoned, ITEM.format(item("new")))
    assert [json.loads(one)["content"] for (one,) in ask(zoned, ORDERED)] == ["0", "1", "new"]
    assert [one["time"] for one in stored(place)[:2]] == [one["time"] for one in stored(old)]
    assert is_now(stored(place)[-1]["time"])
    gone = run("delete", place, "--older-than", "15m", "--yes", "--json")
    assert report(gone)["messages"]["deleted"] == 1
    assert said(place) == ["1", "new"]
    rows = ask(zoned, ORDERED)
    assert run("undo", "--store", place, "--yes").exit_code == 0
    assert said(place) == ["0", "1", "new"]
    assert ask(zoned, ORDERED)[1:] == rows


@pytest.mark.parametrize("zoned", ZONES[:1], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_a_pooler_has_the_zone_of_the_login(
    run: Any, servers: Servers, zoned: str, mode: str, tmp_path: Path
) -> None:
    pooled = servers.pgbouncer(mode).url(zoned) + AGENTS
    old = chat(tmp_path / "old.db", datetime.now(UTC))
    assert run("migrate", old, pooled).exit_code == 0
    ask(zoned, ITEM.format(item("new")))
    assert said(pooled) == ["0", "new"]
    assert all(is_now(one["time"]) for one in stored(pooled))


@pytest.mark.parametrize("zoned", [ZONES[0], ZONES[3]], indirect=True)
def test_an_hour_that_comes_twice_keeps_the_order(run: Any, zoned: str, tmp_path: Path) -> None:
    """The third message has an earlier local time than the second: it gets the time of that."""
    back = datetime(2025, 11, 2, 6, tzinfo=UTC)
    times = [back + timedelta(minutes=one) for one in (-70, -10, 10, 70)]
    old = chat(tmp_path / "old.db", *times)
    done = run("migrate", old, zoned + AGENTS)
    assert "1 were older than the one before them: they got its time" in done.stderr
    assert done.exit_code == 6  # the time differs after the copy
    assert [json.loads(one)["content"] for (one,) in ask(zoned, ORDERED)] == ["0", "1", "2", "3"]
    found = [datetime.fromisoformat(one["time"]) for one in stored(zoned + AGENTS)]
    assert found == [*times[:2], times[1], times[3]]


@pytest.mark.parametrize(
    ("zoned", "column"),
    [
        (ZONES[0], "TIMESTAMP DEFAULT now()"),
        (ZONES[0], "TIMESTAMP DEFAULT (now() AT TIME ZONE 'utc')"),
        (ZONES[0], "TIMESTAMP DEFAULT timezone('Asia/Tokyo', clock_timestamp())"),
        (ZONES[0], "TIMESTAMPTZ DEFAULT now()"),
        (ZONES[3], "DATETIME DEFAULT now()"),
        (ZONES[3], "DATETIME DEFAULT (UTC_TIMESTAMP())"),
        (ZONES[3], "TIMESTAMP NULL"),
        ("sqlite", "TEXT DEFAULT CURRENT_TIMESTAMP"),
        ("sqlite", "TEXT DEFAULT (datetime('now', 'localtime'))"),
    ],
    indirect=["zoned"],
)
def test_the_default_of_a_column_tells_its_zone(
    zoned: str, column: str, local_zone: Callable[[str], None]
) -> None:
    """In a table of a user; memctl's own zone is another, and that of no database."""
    local_zone("Europe/Athens")
    fill = "(id, session, content) VALUES ('1', 'kyoto', 'hello')"
    if column.endswith("NULL"):
        fill = "(id, session, content, made) VALUES ('1', 'kyoto', 'hello', now())"
    ask(
        zoned,
        "CREATE TABLE chats (id VARCHAR(9) PRIMARY KEY, session VARCHAR(9), "
        f"content VARCHAR(99), made {column})",
        f"INSERT INTO chats {fill}",
    )
    [message] = stored(f"{zoned}?layout=table&table=chats&{COLUMNS}")
    assert is_now(message["time"])
