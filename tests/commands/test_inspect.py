"""``memctl inspect``, as its users see it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from tests.stores.archives import sealed
from tests.support.cli import FRIDAY, Run, fails, fill, report

HOSTILE = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eback [bold]markup[/bold] :smile:\rover"


def test_inspect_json_is_as_the_contract_has_it(run: Run, filled: str) -> None:
    found = report(run("inspect", filled, "--json"))
    assert found["schema"] == "memctl/inspect/1"
    what = "AgentScope 1.x memory in SQLite"
    assert found["store"] == {
        **{"url": filled, "kind": "sqlite"},
        **{"what": what, "capabilities": ["empty"]},
    }
    totals = found["totals"]
    assert (totals["users"], totals["memories"], totals["messages"]) == (2, 4, 100)
    assert totals["marks"] == {"a": 18, "considered": 26, "hint": 33}
    assert totals["roles"] == {"user": 35, "assistant": 33, "system": 32}
    assert totals["first"] == "2025-03-01 12:00:00.000"
    assert totals["last"] == "2025-03-01 12:39:00.000"
    assert totals["summaries"] is None
    largest = found["memories"][0]
    assert (largest["user"], largest["session"], largest["messages"]) == ("user1", "session3", 40)
    assert (largest["summary"], largest["ttl"]) == (None, None)
    assert sum(memory["bytes"] for memory in found["memories"]) == totals["bytes"]
    assert found["warnings"] == []


def test_inspect_table_tells_the_same(run: Run, filled: str) -> None:
    text = run("inspect", filled).stdout
    assert "2 users · 4 memories · 100 messages" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("user") and "█" in line]
    assert [row[:3] for row in rows] == [
        ["user1", "session3", "40"],
        ["user0", "session2", "30"],
        ["user0", "session1", "20"],
        ["user0", "session0", "10"],
    ]


def test_inspect_rows_for_programs(run: Run, filled: str) -> None:
    lines = run("inspect", filled, "--format", "ndjson").stdout.splitlines()
    assert [json.loads(line)["messages"] for line in lines] == [40, 30, 20, 10]
    table = list(csv.DictReader(io.StringIO(run("inspect", filled, "--format", "csv").stdout)))
    assert [row["session"] for row in table] == ["session3", "session2", "session1", "session0"]
    assert json.loads(table[3]["marks"]) == {"hint": 3, "considered": 3, "a": 2}


def test_inspect_csv_has_no_formulas(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    names = ["=cmd|' /C calc'!A0", "'=1+1", "-1", "@a", "ada"]
    entries = samples.entries(1)
    asyncio.run(fill(str(path), {MemoryKey(name, name): entries for name in names}))
    empty = tmp_path / "empty.ndjson"
    asyncio.run(fill(str(empty), {}))
    for done in (
        run("inspect", path, "--format", "csv"),
        run("verify", path, empty, "--show", "--format", "csv"),
    ):
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert {row["user"] for row in rows} == {f"'{name}" for name in names[:-1]} | {"ada"}


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--user", "user1"], 40),
        (["--session", "session0", "--session", "session1"], 30),
        (["--mark", "hint"], 33),
        (["--mark", "hint", "--exclude-mark", "a"], 15),
        (["--role", "user"], 35),
        (["--name", "Friday"], 33),
        (["--id", "m0000003"], 4),
        (["--since", "2025-03-01T12:30"], 10),
        (["--until", "2025-03-01 12:01"], 4),
        (["--since", "9999d"], 100),
        (["--until", "1d"], 100),
        (["--last", "3"], 12),
        (["--match", "message 39"], 1),
        (["--match", "MESSAGE"], 0),
        (["--match", "MESSAGE", "--ignore-case"], 100),
        (["--since", "yesterday"], 0),
        (["--until", "today"], 100),
    ],
)
def test_inspect_selection(run: Run, filled: str, options: list[str], messages: int) -> None:
    assert report(run("inspect", filled, "--json", *options))["totals"]["messages"] == messages


def test_inspect_sort_and_limit(run: Run, filled: str) -> None:
    found = report(run("inspect", filled, "--json", "--sort", "user", "--limit", "2"))
    assert [memory["session"] for memory in found["memories"]] == ["session0", "session1"]
    assert found["totals"]["memories"] == 4


def test_inspect_groups(run: Run, filled: str) -> None:
    by_user = report(run("inspect", filled, "--json", "--by", "user"))
    assert [(row["user"], row["memories"], row["messages"]) for row in by_user["groups"]] == [
        ("user0", 3, 60),
        ("user1", 1, 40),
    ]
    by_mark = report(run("inspect", filled, "--json", "--by", "mark"))
    assert {row["mark"]: row["messages"] for row in by_mark["groups"]} == {
        "hint": 33,
        "considered": 26,
        "a": 18,
    }
    assert "assistant" in run("inspect", filled, "--by", "role").stdout


def test_inspect_groups_of_times_are_in_order(run: Run, database: str) -> None:
    times = (
        "2025-12-31 23:59:00",
        "2025-12-29 08:00:00",
        "2024-12-31 08:30:00",
        "2025-12-29 08:59",
    )
    found = [samples.entry(f"m{n}", n, timestamp=time) for n, time in enumerate(times)]
    asyncio.run(fill(database, {MemoryKey("ada", "kyoto"): found}))

    def grouped(by: str) -> dict[str, int]:
        groups = report(run("inspect", database, "--json", "--by", by))["groups"]
        assert [row[by] for row in groups] == sorted(row[by] for row in groups)
        return {row[by]: row["messages"] for row in groups}

    assert grouped("hour") == {"2024-12-31 08": 1, "2025-12-29 08": 2, "2025-12-31 23": 1}
    assert grouped("day") == {"2024-12-31": 1, "2025-12-29": 2, "2025-12-31": 1}
    assert grouped("week") == {"2025-W01": 1, "2026-W01": 3}
    assert grouped("month") == {"2024-12": 1, "2025-12": 3}


def test_inspect_names_are_in_the_order_of_their_numbers(run: Run, database: str) -> None:
    keys = [MemoryKey("ada", f"s{number}") for number in (10, 9, 1, 2)]
    asyncio.run(fill(database, {key: samples.entries(1) for key in keys}))
    found = report(run("inspect", database, "--json"))["memories"]
    assert [one["session"] for one in found] == ["s1", "s2", "s9", "s10"]
    plan = run("delete", database, "--user", "ada", "--dry-run").stdout
    assert [line.split()[1] for line in plan.splitlines() if line.startswith("ada")] == [
        *("s1", "s2", "s9", "s10")
    ]


def test_ignore_case_needs_a_text(run: Run, database: str) -> None:
    fails(run("inspect", database, "--ignore-case"), 2, "--ignore-case needs --match")


def test_inspect_by_name_shows_the_agents_of_a_session(run: Run, database: str) -> None:
    names = ("planner", "planner", "critic", "ada")
    key = MemoryKey("ada", "kyoto")
    found = [samples.entry(f"m{n}", n, name=name) for n, name in enumerate(names)]
    asyncio.run(fill(database, {key: found}))
    groups = report(run("inspect", database, "--json", "--by", "name"))["groups"]
    assert [(row["name"], row["messages"]) for row in groups] == [
        ("planner", 2),
        ("critic", 1),
        ("ada", 1),
    ]
    assert "planner" in run("inspect", database, "--by", "name").stdout


def test_inspect_conversation_can_be_followed(run: Run) -> None:
    text = run("inspect", FRIDAY, "--user", "ada", "--session", "kyoto", "--messages").stdout
    assert "── ada / kyoto" in text
    assert "Here is a summary of your previous work" in text
    assert '→ weather  {"city": "Kyoto", "month": 11}' in text
    assert "← search  102 characters  The garden paths" in text
    assert "image  https://example.com/tofukuji.jpg" in text
    assert "#11 system (system)  2026-10-02 09:20:48.300  [hint]" in text
    assert "京都は初めてです 🍁" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "redis", "sessions", "archive"])
def test_inspect_positions_are_those_in_the_memory(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    keys = [MemoryKey(f"user{n}", f"session{n}") for n in range(120)]
    entries = {key: samples.entries(6) for key in keys} | {keys[0]: samples.entries(2500)}
    asyncio.run(fill(place.text, entries))
    names = ("--user", "user0", "--user", "user1")

    def positions(*options: str) -> list[list[int]]:
        rows = report(run("inspect", place.text, "--messages", *options, "--json"))["messages"]
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row["user"], []).append(row["position"])
        return [found[user] for user in sorted(found)]

    assert positions(*names) == [[*range(1, 2501)], [*range(1, 7)]]
    assert positions(*names, "--last", "2") == [[2499, 2500], [5, 6]]
    assert positions("--user", "user0", "--role", "user") == [[*range(1, 2501, 3)]]
    assert positions("--user", "user0", "--name", "Friday", "--last", "1")[0][0] > 2490
    every = positions("--id", "m0000003", "--id", "m0000005")
    assert every == [[4, 6]] * 120


def test_inspect_messages_with_their_positions_and_ids(run: Run, filled: str) -> None:
    options = ("--user", "user1", "--messages", "--last", "2")
    shown = run("inspect", filled, *options).stdout
    assert re.findall("^#([0-9]+)", shown, re.M) == ["39", "40"]
    assert "m0000039" not in shown
    named = run("inspect", filled, *options, "--ids").stdout
    assert "#40 Alice (user)  2025-03-01 12:39:00.000  m0000039\n" in named
    fails(run("inspect", filled, "--ids"), 2, "--ids needs --messages")


def test_inspect_messages_for_programs(run: Run) -> None:
    options = ("--user", "ada", "--session", "kyoto", "--messages")
    written = json.loads(FRIDAY.read_text())["content"]
    lines = run("inspect", FRIDAY, *options, "--format", "ndjson").stdout.splitlines()
    assert [[row["message"], row["marks"]] for row in map(json.loads, lines)] == written
    whole = report(run("inspect", FRIDAY, *options, "--json"))
    assert [[row["message"], row["marks"]] for row in whole["messages"]] == written


def test_inspect_nothing_in_a_message_steers_the_terminal(run: Run, database: str) -> None:
    key = MemoryKey(HOSTILE, HOSTILE)
    blocks = [
        {"type": "text", "text": HOSTILE},
        {"type": "thinking", "thinking": HOSTILE},
        {"type": "tool_use", "id": "1", "name": HOSTILE, "input": {HOSTILE: HOSTILE}},
        {"type": "tool_result", "id": "1", "name": HOSTILE, "output": HOSTILE},
        {"type": "image", "source": {"type": "url", "url": HOSTILE}},
        {"type": HOSTILE, "x": HOSTILE},
    ]
    fields = {"name": HOSTILE, "role": HOSTILE, "timestamp": HOSTILE, "content": blocks}
    found = [samples.entry("m", 0, (HOSTILE,), **fields)]
    asyncio.run(fill(database, {key: found}))
    for options in ([], ["--messages"], ["--by", "user"], ["--by", "role"], ["--by", "mark"]):
        text = run("inspect", database, *options).stdout
        assert not set(text) & set("\x1b\x07\u202e\r"), options
        assert "\\x1b[31mred" in text
        assert "[bold]markup[/bold] :smile:" in text


def test_inspect_verbose_says_what_is_opened(run: Run, filled: str) -> None:
    assert f"opened {filled} (sqlite)" in run("-v", "inspect", filled).stderr
    assert run("inspect", filled).stderr == ""


def test_inspect_empty_store(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    assert report(run("inspect", tmp_path / "sessions", "--json"))["totals"]["memories"] == 0
    assert "0 memories" in run("inspect", tmp_path / "sessions").stdout


def test_inspect_nothing_matched_is_no_error(run: Run, filled: str) -> None:
    assert report(run("inspect", filled, "--json", "--mark", "none"))["totals"]["messages"] == 0


def test_inspect_named_memory_that_is_not_there(run: Run, filled: str) -> None:
    fails(run("inspect", filled, "--user", "nobody"), 4, "'nobody'", "hint:")
    fails(run("inspect", filled, "--session", "none", "--messages"), 4, "'none'")


@pytest.mark.parametrize(
    "options", [["--role", "ghost"], ["--match", "quokka"], ["--mark", "ghost"], ["--id", "none"]]
)
@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--messages"], ["export", "-o", "-"]])
def test_inspect_and_export_of_a_memory_in_which_nothing_matches(
    run: Run, filled: str, words: list[str], options: list[str]
) -> None:
    named = ["--session", "session0", "--user", "user0"]
    done = run(words[0], filled, *words[1:], *named, *options)
    assert done.exit_code == 0, done.stderr
    assert "no message of 'session0', 'user0' matches" in done.stderr
    fails(run(words[0], filled, *words[1:], "--session", "none", *options), 4, "has no memory of")


def test_inspect_options_that_exclude_each_other(run: Run, filled: str) -> None:
    fails(run("inspect", filled, "--messages", "--by", "user"), 2, "--by")
    fails(run("inspect", filled, "--messages", "--format", "csv"), 2, "ndjson")
    fails(run("inspect", filled, "--since", "someday"), 2, "'someday'", "30d")


FORGED = (
    '{"id":"m"}, "forged": true, "x": {}',
    '{"id":"m","a":"\x1b[31m"}',
    '{"id":"m"\x1b}',
    '{"id":"m",}',
    "5",
    '{"id":"m","a":NaN,"b":1' + "0" * 30 + ',"c":"\\ud800"}',
)


def assert_prints_json(run: Run, store: str) -> None:
    """Assert that the messages of a store are JSON of the contract, and nothing else is."""
    for options in (["--json"], ["--format", "ndjson"]):
        printed = run("inspect", store, "--messages", *options).stdout
        assert not set(printed) & set("\x1b\x07\r")
        rows = [json.loads(line) for line in printed.splitlines()] if options[1:] else None
        for row in json.loads(printed)["messages"] if rows is None else rows:
            assert set(row) == {
                *("user", "session", "position", "id", "marks", "unread", "message")
            }


@pytest.mark.slow
@pytest.mark.parametrize("forged", FORGED)
def test_inspect_stored_text_that_forges_json(
    run: Run, mysql_url: str, tmp_path: Path, forged: str
) -> None:
    key = MemoryKey("u", "s")
    stores = [f"{tmp_path}/a.db", mysql_url]
    for store in stores:
        asyncio.run(fill(store, {key: [samples.entry("m"), samples.entry("n", 1)]}))
    with closing(sqlite3.connect(stores[0])) as database, database:
        database.execute("UPDATE message SET msg = ? WHERE id = 'u-s-m'", [forged])
    parts = urlsplit(mysql_url)
    with pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=unquote(parts.password or ""),
        database=parts.path[1:],
        autocommit=True,
    ) as server:
        cursor = server.cursor()
        cursor.execute("ALTER TABLE message MODIFY msg LONGTEXT")  # without its check
        cursor.execute("UPDATE message SET msg = %s WHERE id = 'u-s-m'", [forged])
    archive = sealed(
        b'{"memory":{"user":"u","session":"s"}}',
        b'{"message":%b,"marks":[],"id":"m"}' % forged.encode(),
    )
    (tmp_path / "a.ndjson").write_bytes(archive)
    for store in (*stores, f"{tmp_path}/a.ndjson"):
        assert_prints_json(run, store)
        exported = run("export", store, "-o", f"{tmp_path}/to.ndjson", "--force")
        if exported.exit_code == 0:
            assert_prints_json(run, f"{tmp_path}/to.ndjson")


@pytest.mark.parametrize("odd", ["", '"r\\u006fle": 1,', '"a": [[1, 2], {"b": 3}],', ",", '"a" 1,'])
def test_inspect_state_with_many_keys(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    for name, size in (("LARGE", 2048), ("_LEAP", 256)):
        monkeypatch.setattr(f"memctl.json.document.{name}", size)
    keys = [f'"k{number}": {number},' for number in range(1000)]
    keys.insert(500, odd)
    memory = json.dumps({"_compressed_summary": "", "content": []})
    path = tmp_path / "u_s.json"
    path.write_text(f'{{"app": {{{"".join(keys)} "memory": {memory}}}, "x": {{{keys[0]} "z": 0}}}}')
    result = run("inspect", str(path), "--json")
    if odd in (",", '"a" 1,'):
        fails(result, 8, "is not JSON")
    else:
        assert report(result)["totals"]["memories"] == 1


def test_inspect_counts_no_user_for_memories_without_one(run: Run, tmp_path: Path) -> None:
    keys = [MemoryKey("ada", "kyoto"), MemoryKey("bob", "kyoto"), MemoryKey("", "oslo")]
    store = tmp_path / "a.ndjson"
    asyncio.run(fill(str(store), {key: samples.entries(2) for key in keys}))
    assert "\n2 users · 3 memories (1 without a user) · " in run("inspect", store).stdout
    totals = report(run("inspect", store, "--json"))["totals"]
    assert (totals["users"], totals["without_user"], totals["memories"]) == (2, 1, 3)
    alone = run("inspect", store, "--session", "oslo").stdout
    assert "\n1 memory · 2 messages" in alone
    assert "user" not in alone.split("\n")[1]
