"""Times without a zone: those that a database fills, and those that a program wrote."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from memctl.model import MemoryKey, StoredMessage
from tests.stores.test_tables import ask
from tests.support.cli import contents, fails, fill, report
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
    """Return the URL of a conversation of the Agents SDK with these times, in SQLite."""
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
    return f"sqlite:///{path}{AGENTS}"


def stored(url: str) -> list[Any]:
    """Return the messages of the only memory."""
    [found] = contents(url).values()
    return [json.loads(one.message) for one in found]


def said(url: str) -> list[str]:
    return [one["content"]["content"] for one in stored(url)]


def is_now(time: str) -> bool:
    return abs(datetime.fromisoformat(time) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.slow
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


# Times that a program wrote


def agents(path: Path, *times: str) -> str:
    """Return the name of a store of AgentScope 1.x with a message of each time."""
    entries = [
        StoredMessage(
            f"m{number}",
            json.dumps(
                {"id": f"m{number}", "name": "ada", "role": "user", "content": f"hello {number}"}
                | {"metadata": {}, "timestamp": time}
            ).encode(),
        )
        for number, time in enumerate(times)
    ]
    asyncio.run(fill(str(path), {MemoryKey("", "kyoto"): entries}))
    return f"sqlite:///{path}" if path.suffix == ".db" else str(path)


@pytest.fixture
def tokyo(tmp_path: Path) -> str:
    """Messages that an agent in Tokyo wrote, an hour and half an hour ago."""
    now = datetime.now(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)
    times = [now - timedelta(minutes=minutes) for minutes in (60, 30)]
    texts = [one.isoformat(" ", "milliseconds") for one in times]
    return agents(tmp_path / "tokyo.db", *texts)


TZ = "?tz=Asia/Tokyo"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_tz_is_the_zone_of_the_agents(
    run: Any, tokyo: str, zone: str, local_zone: Callable[[str], None], tmp_path: Path
) -> None:
    local_zone(zone)

    def selected(place: str, *options: str) -> int:
        done = report(run("delete", place, *options, "--dry-run", "--json"))
        return int(done["messages"]["selected"])

    assert selected(tokyo, "--older-than", "45m") == 0  # in the future, or hours old
    assert selected(tokyo + TZ, "--older-than", "45m") == 1
    assert selected(tokyo + TZ, "--newer-than", "45m") == 1
    shown, newest = (
        report(run("report", tokyo + TZ, "--json")),
        datetime.now() - timedelta(minutes=30),
    )
    assert shown["days"][-1]["day"] == f"{newest:%Y-%m-%d}"
    assert abs(datetime.fromisoformat(shown["totals"]["last"]) - newest) < timedelta(minutes=1)
    for place, number in (tokyo, 2), (tokyo + TZ, 1):
        found = report(run("search", place, "hello", "--since", "45m", "--json"))
        assert len(found["hits"]) == number
    target, back = f"sqlite:///{tmp_path / 't.db'}?layout=openai-agents", tmp_path / "b.db"
    assert run("migrate", tokyo + TZ, target, "--lossy").exit_code == 0
    ages = [datetime.now(UTC) - datetime.fromisoformat(one["time"]) for one in stored(target)]
    assert [round(age.total_seconds() / 60) for age in ages] == [60, 30]
    assert run("migrate", target, f"sqlite:///{back}{TZ}").exit_code == 0
    [theirs], [ours] = contents(tokyo).values(), contents(str(back)).values()
    times = [[json.loads(one.message)["timestamp"][:19] for one in some] for some in (theirs, ours)]
    assert times[0] == times[1]


def test_an_archive_and_a_run_keep_the_zone(
    run: Any, tokyo: str, local_zone: Callable[[str], None], tmp_path: Path
) -> None:
    """The restored messages have the times of the agents, whatever the zone of the next run."""
    archive, llama = str(tmp_path / "a.ndjson"), f"sqlite:///{tmp_path / 'l.db'}?layout=llamaindex"
    assert run("export", tokyo + TZ, "-o", archive).exit_code == 0
    assert report(run("inspect", archive, "--since", "45m", "--json"))["totals"]["messages"] == 1
    found = report(run("search", archive, "hello", "--since", "45m", "--json"))
    assert len(found["hits"]) == 1
    done = report(run("migrate", archive, llama, "--json"))
    assert run("verify", archive, llama).exit_code == 0
    ages = [datetime.now(UTC) - datetime.fromisoformat(one["time"]) for one in stored(llama)]
    assert [round(age.total_seconds() / 60) for age in ages] == [60, 30]
    local_zone("America/New_York")
    assert report(run("undo", done["run"], "--json"))["messages"]["deleted"] == 2


def test_retain_knows_the_zone_of_an_alias(run: Any, tokyo: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    config = tmp_path / "memctl.toml"
    state = agents(tmp_path / "folder" / "s.json", "2026-01-01 01:00:00.000")
    config.write_text(
        f"""
        [stores.prod]
        url = "{tokyo.removeprefix("sqlite:///")}"
        tz = "Asia/Tokyo"
        [stores.states]
        url = "{tmp_path / "folder"}"
        tz = "Asia/Tokyo"
        [stores.mars]
        url = "{state}"
        tz = "Mars/Base"
        [[retention]]
        name = "old"

        store = "prod"
        select.older_than = "45m"
        action = "delete"
        archive = "{tmp_path}/old-{{date}}.ndjson"
        """
    )
    [policy] = report(run("--config", config, "retain", "--dry-run", "--json"))["policies"]
    assert policy["messages"] == 1
    until = ("--until", "2025-12-31T17:00+00:00")
    found = report(run("--config", config, "inspect", "states", *until, "--json"))
    assert found["totals"]["messages"] == 1
    fails(run("--config", config, "inspect", "mars"), 2, "tz=Mars/Base", "hint")
    shown = run("--config", config, "-v", "inspect", "prod").stderr
    assert "times without a zone are in the time zone Asia/Tokyo" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("?tz=Mars/Base", "tz=Mars/Base is not a time zone"),
        ("?tz=localtime", "tz=localtime is not a time zone"),
        ("?tz=", "tz= is not a time zone"),
        ("?layout=agno&tz=Asia/Tokyo", "layout=agno has no option tz="),
        ("?layout=openai-agents&tz=Asia/Tokyo", "layout=openai-agents knows its times"),
        (f"?layout=table&table=t&{COLUMNS}&tz=Asia/Tokyo", "do not depend on a time zone"),
    ],
)
def test_tz_that_means_nothing_is_refused(
    run: Any, tmp_path: Path, options: str, said: str
) -> None:
    path = f"sqlite:///{tmp_path / 's.db'}"
    ask(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, session TEXT, content TEXT, made REAL)")
    fails(run("inspect", path + options), 2, said, "hint")


@pytest.mark.parametrize("zoned", [ZONES[0], "sqlite"], indirect=True)
def test_tz_of_a_table(zoned: str) -> None:
    """The program fills the times: the zone of the database means nothing."""
    made = datetime.now(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None, microsecond=0)
    id, time = ("INTEGER", "TEXT") if zoned.startswith("sqlite") else ("SERIAL", "TIMESTAMP")
    ask(
        zoned,
        f"CREATE TABLE chats (id {id} PRIMARY KEY, session VARCHAR(9), content VARCHAR(99), "
        f"made {time})",
        f"INSERT INTO chats (session, content, made) VALUES ('kyoto', 'hello', '{made}')",
    )
    place = f"{zoned}?layout=table&table=chats&{COLUMNS}&tz=Asia/Tokyo"
    [message] = stored(place)
    assert is_now(message["time"])
    written = json.dumps({"content": "hi", "time": message["time"]})
    entry = StoredMessage("", written.encode())
    asyncio.run(fill(place, {MemoryKey("", "osaka"): [entry]}))
    [[one], [other]] = ask(zoned, "SELECT made FROM chats")
    assert one == other


def test_tz_of_a_detected_layout_is_refused(run: Any, tmp_path: Path) -> None:
    chat(tmp_path / "s.db", datetime.now(UTC))
    fails(run("inspect", f"sqlite:///{tmp_path / 's.db'}{TZ}"), 2, "knows its times")


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_agentscope2_has_its_own_times_in_utc(
    run: Any, tokyo: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The columns of SQL are in UTC; the times in messages and in Redis are those of the agents."""
    at = f"sqlite:///{tmp_path / 'two.db'}"
    at = request.getfixturevalue("redis_url") if kind == "redis" else at
    place = f"{at}?layout=agentscope2&tz=Asia/Tokyo"
    assert run("migrate", tokyo + TZ, place).exit_code == 0
    found = report(run("inspect", place, "--since", "45m", "--json"))
    assert found["totals"]["messages"] == 1
    if kind == "sqlite":
        [[_], [newest]] = ask(at, "SELECT created_at FROM messages ORDER BY created_at")
        age = datetime.now(UTC).replace(tzinfo=None) - datetime.fromisoformat(newest)
        assert round(age.total_seconds() / 60) == 30
        return
    with request.getfixturevalue("servers").redis.client(at) as client:
        [key] = [
            one for one in client.scan_iter() if client.type(one) == b"string" and b"session" in one
        ]
        made = datetime.fromisoformat(json.loads(client.get(key))["created_at"])
    assert abs(made - datetime.now(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)) < timedelta(
        minutes=1
    )
