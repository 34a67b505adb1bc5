"""``memctl doctor --repair``, and undoing it."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.errors import Unavailable
from memctl.model import MemoryKey, StoredMessage
from memctl.stores.agentscope1.sql.edit import SqlEditor
from memctl.stores.agentscope1.sql.maintenance import SqlMaintenance
from tests.support import histories
from tests.support.cli import Run, fails, fill, report
from tests.support.histories import ASK, REPLY, call, entries, recent, result, said
from tests.support.places import quarantined
from tests.support.servers.pool import Servers

COMPRESSED = ("compressed",)
HISTORIES: dict[MemoryKey, list[histories.Marked]] = {
    MemoryKey("u", "calls"): [
        ASK,
        call("c1", "t1", "t2"),
        result("r1", "t2"),
        REPLY,
        call("c2", "t3"),
    ],
    MemoryKey("u", "results"): [
        ASK,
        result("r1", "t1"),
        said("mixed", [*result("", "t2")[0]["content"], {"type": "text", "text": "and"}]),
        call("c1", "t4"),
        said("both", [*result("", "t4")[0]["content"], *result("", "t5")[0]["content"]], "system"),
    ],
    MemoryKey("u", "empty"): [said("e1", ""), ASK, said("e2", []), said("e3", " "), REPLY],
    MemoryKey("u", "hints"): [
        said("h1", "do", "user", ("hint",)),
        ASK,
        REPLY,
        said("h2", "do", "user", ("hint", "kept")),
    ],
    MemoryKey("u", "healthy"): histories.HEALTHY,
    MemoryKey("v", "at work"): [ASK, call("c9", "t1", at=recent(3))],
}
FORGOTTEN = [
    said("m1", "a", "user", ("first", *COMPRESSED)),
    said("m2", "b", marks=COMPRESSED),
    ASK,
]
MESSAGES = {
    "tool-call-without-result": 2,
    "tool-result-without-call": 1,
    "empty-assistant-message": 3,
    "leftover-hint": 2,
}


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis", "redis-session", "sessions"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty place."""
    return {
        "sqlite": lambda: f"sqlite:///{tmp_path}/m.db",
        "postgresql": lambda: servers.postgresql.fresh(),
        "mysql": lambda: servers.mariadb.fresh(),
        "redis": lambda: servers.redis.fresh(),
        "redis-session": lambda: f"{servers.redis.fresh()}?layout=session",
        "sessions": lambda: f"{tmp_path}/sessions",
    }[request.param]()


def histories_of(run: Run, place: str) -> dict[str, list[tuple[str, Any, set[str]]]]:
    """Return the contents of the place, by session: ids, content and marks."""
    lines = run("inspect", place, "--messages", "--format", "ndjson").stdout.splitlines()
    found: dict[str, list[tuple[str, Any, set[str]]]] = {}
    for line in map(json.loads, lines):
        message = line["message"]
        one = (line["id"], message["content"], set(line["marks"]))
        found.setdefault(line["session"], []).append(one)
    return found


def codes(found: dict[str, Any]) -> dict[str, int]:
    """Return the number of messages that each code counts."""
    counts: dict[str, int] = {}
    for finding in found["findings"]:
        counts[finding["code"]] = counts.get(finding["code"], 0) + finding["count"]
    return counts


@pytest.mark.slow
def test_repair_histories_are_mended_and_unmended(run: Run, place: str) -> None:
    asyncio.run(fill(place, {key: entries(history) for key, history in HISTORIES.items()}))
    before = histories_of(run, place)
    sick = codes(report(run("doctor", place, "--json"), 6))
    assert {code: sick[code] for code in MESSAGES} == MESSAGES | {"tool-result-without-call": 3}
    dry = report(run("doctor", place, "--repair", "--dry-run", "--json"), 6)
    assert dry["dry_run"]
    assert histories_of(run, place) == before

    found = report(run("doctor", place, "--repair", "--yes", "--json"), 6)
    assert dry["repaired"] == found["repaired"]
    left = codes(found)
    assert left.pop("tool-result-without-call") == 2  # next to others in their messages
    assert left == {"tool-call-pending": 1}
    after = histories_of(run, place)
    assert after["healthy"] == before["healthy"]
    assert after["at work"] == before["at work"]
    assert [id for id, _, _ in after["empty"]] == ["q", "r"]
    assert [id for id, _, _ in after["hints"]] == ["q", "r"]
    assert [id for id, _, _ in after["results"]] == ["q", "mixed", "c1", "both"]
    ids = [id for id, _, _ in after["calls"]]
    assert [id for id in ids if len(id) < 22] == ["q", "c1", "r1", "r", "c2"]
    assert [len(ids[n]) for n in (2, 6)] == [22, 22]
    [block] = after["calls"][2][1]
    assert (block["type"], block["id"], block["name"]) == ("tool_result", "t1", "search")

    again = report(run("doctor", place, "--repair", "--yes", "--json"), 6)
    assert again["repaired"] == []
    assert "run" not in again
    undone = run("undo", found["run"], "--store", place, "--json")
    assert undone.exit_code == 0, undone.output
    assert histories_of(run, place) == before
    assert codes(report(run("doctor", place, "--json"), 6)) == sick


def test_repair_what_was_forgotten_is_remembered(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "sessions")
    key = MemoryKey("u", "s")
    asyncio.run(fill(place, {key: entries(FORGOTTEN)}, summary=""))
    before = histories_of(run, place)
    found = report(run("doctor", place, "--repair", "--yes", "--json"))
    assert found["repaired"] == [
        {"code": "compressed-without-summary", "user": "u", "session": "s", "count": 2}
    ]
    assert [marks for _, _, marks in histories_of(run, place)["s"]] == [{"first"}, set(), set()]
    assert run("undo", found["run"]).exit_code == 0
    assert histories_of(run, place) == before


def test_repair_only_what_is_named(run: Run, place: str) -> None:
    asyncio.run(fill(place, {key: entries(history) for key, history in HISTORIES.items()}))
    result = run("doctor", place, "leftover-hint", "--repair", "--yes", "--json", "--user", "u")
    found = report(result)
    assert found["repaired"] == [
        {"code": "leftover-hint", "user": "u", "session": "hints", "count": 2}
    ]
    assert codes(report(run("doctor", place, "empty-assistant-message", "--json"), 6))


def messages(count: int, *marks: str) -> list[StoredMessage]:
    """Return the messages of a user."""
    return entries([said(f"m{n}", "a", "user", marks) for n in range(count)])


def test_repair_database_is_mended_and_unmended(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    keys = {MemoryKey("u", "s"): messages(5, "a"), MemoryKey("v", "t"): messages(3)}
    asyncio.run(fill(str(path), keys))
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM message WHERE id = 'u-s-m4'")
        connection.execute("UPDATE message SET \"index\" = 1 WHERE id = 'u-s-m2'")
    before = "\n".join(connection.iterdump())
    found = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert [(one["code"], one["user"], one["count"]) for one in found["repaired"]] == [
        ("orphan-mark", None, 1),
        ("duplicate-index", None, 1),
        ("no-session-index", None, 1),
    ]
    assert found["findings"] == []
    assert "\n".join(connection.iterdump()) != before
    assert "u-s-m4" in quarantined(found["quarantine"])
    undone = run("undo", "--yes", "--json")
    assert undone.exit_code == 0, undone.output
    assert "undone: the index on session_id removed, 1 key, row or id restored" in undone.stderr
    lost = set(before.splitlines()) - set("\n".join(connection.iterdump()).splitlines())
    assert [line for line in lost if "message_mark" in line] == [*lost]
    assert "u-s-m4" in "".join(lost)
    connection.close()
    fails(run("undo", report(undone)["run"]), 8, "undid repairs of the store", "memctl doctor")


def test_repair_redis_is_mended_and_unmended(run: Run, client: redis.Redis, redis_url: str) -> None:
    base = "user_id:u:session:s"
    key = MemoryKey("u", "s")
    asyncio.run(fill(redis_url, {key: [*messages(3, "a"), *entries([said("empty", "")])]}))
    client.delete(f"{base}:msg:m1")
    client.set(f"{base}:msg:stray", "{}")
    before = client.lrange(f"{base}:messages", 0, -1)
    found = report(run("doctor", redis_url, "--repair", "--yes", "--json"))
    assert [one["code"] for one in found["repaired"]] == [
        "empty-assistant-message",
        "id-without-payload",
        "payload-without-id",
    ]
    assert client.lrange(f"{base}:messages", 0, -1) == [b"m0", b"m2"]
    undone = run("undo", found["run"])
    assert undone.exit_code == 0, undone.output
    assert client.lrange(f"{base}:messages", 0, -1) == [id for id in before if id != b"m1"]
    assert not client.exists(f"{base}:msg:stray")
    assert {"m1", "stray", "{}"} <= set(quarantined(found["quarantine"]).split("\n"))


def test_repair_undo_tells_of_repairs_of_the_store(
    run: Run, client: redis.Redis, redis_url: str
) -> None:
    asyncio.run(fill(redis_url, {MemoryKey("u", "s"): messages(3, "a")}))
    client.delete("user_id:u:session:s:marks_index")
    repaired = report(run("doctor", redis_url, "--repair", "--yes", "--json"))["run"]
    planned = run("undo", repaired, "--dry-run")
    assert "only repairs of the store itself to undo" in planned.stdout
    undone = run("undo", repaired)
    assert re.search(
        r"repairs of the store itself undone: 1 key, row or id restored", undone.stderr
    )
    assert "no other change to undo" in undone.stdout
    again = run("undo", repaired)
    assert "nothing to undo" in again.stdout
    assert "undone:" not in again.stderr


def test_repair_nothing_is_repaired_without_being_asked(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): messages(2, "hint")}))
    before = path.read_bytes()
    fails(run("doctor", path, "--repair"), 2, "--yes")
    report(run("doctor", path, "--repair", "--dry-run", "--json"), 6)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_repair_limit_stops_it_before_anything_changes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    twice = [ASK, call("c1", "t1", "t1"), result("r1", "t1"), REPLY]  # c1 is rewritten
    asyncio.run(
        fill(
            str(path),
            {MemoryKey("u", "s"): messages(2, "hint"), MemoryKey("u", "t"): entries(twice)},
        )
    )
    before = path.read_bytes()
    words = ("doctor", path, "--repair", "--max-delete")
    for limit in ("1", "0", "33%"):
        for more in ("--yes", "--dry-run"):
            said = f"2 messages would be deleted, more than --max-delete {limit}"
            fails(run(*words, limit, more), 9, said, "nothing was deleted")
    fails(run(*words, "many", "--yes"), 2, "--max-delete 'many' is not a valid limit")
    assert path.read_bytes() == before
    assert report(run("history", "--json"))["runs"] == []
    found = report(run(*words, "2", "--yes", "--json"))
    assert {one["code"] for one in found["repaired"]} == {
        "repeated-tool-call",
        "leftover-hint",
        "no-session-index",
    }
    assert report(run("inspect", path, "--json"))["totals"]["messages"] == 4


@pytest.mark.slow
def test_repair_limit_counts_what_goes_into_the_quarantine(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): [*messages(4), *messages(5, "hint")[4:]]}))
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO message_mark VALUES ('gone', 'a')")
    before = "\n".join(connection.iterdump())
    words = ("doctor", path, "--repair", "--yes", "--max-delete")
    fails(run(*words, "1"), 9, "2 items would be deleted, more than --max-delete 1")
    assert "\n".join(connection.iterdump()) == before
    assert run(*words, "2").exit_code == 0
    left = connection.execute("SELECT id FROM message ORDER BY id").fetchall()
    connection.close()
    assert left == [(f"u-s-m{number}",) for number in range(4)]


@pytest.mark.slow
def test_repair_table_tells_what_was_repaired(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): messages(2, "hint")}))
    shown = run("doctor", path, "--repair", "--yes")
    assert shown.exit_code == 0, shown.output
    assert "leftover-hint  hints left over from interrupted replies: 2" in shown.stdout
    assert "memctl undo " in shown.stdout
    assert shown.stdout.rstrip().endswith("healthy")
    assert "nothing to repair" in run("doctor", path, "--repair", "--yes").stdout
    assert "doctor" in run("history").stdout


def test_repair_message_that_was_added_is_not_called_restored(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): entries([ASK, call("c1", "t1")])}))
    assert run("doctor", path, "--repair", "--yes").exit_code == 0
    undone = run("undo", "--yes")
    assert (undone.exit_code, "1 message deleted" in undone.stdout) == (0, True)
    assert re.search(r"the doctor of .* \(1 added", undone.stderr)


def test_repair_no_room_for_the_undo(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): messages(2)}))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("memctl.journal.repairs.new_file", full)
    fails(run("doctor", path, "--repair", "--yes"), 3, "No space left on device")
    assert path.read_bytes() == before


@pytest.mark.parametrize("after", [False, True])
def test_repair_that_fails_in_the_middle_is_partial(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): messages(2)}))
    if after:
        monkeypatch.setattr("memctl.api.examine", _lost)
    else:
        repair = SqlMaintenance.repair

        async def repair_and_fail(self: Any, *given: Any) -> int:
            await repair(self, *given)
            return await _lost()

        monkeypatch.setattr(SqlMaintenance, "repair", repair_and_fail)
    found = report(run("doctor", path, "--repair", "--yes", "--json"), 7)
    assert "it went away; done: " in found["error"]["message"]
    assert found["error"]["code"] == "partial"
    assert found["run"]
    assert len(found["repaired"]) == after
    assert run("undo", found["run"]).exit_code == 0


def test_repair_that_cannot_write_has_repaired_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): messages(2, "hint")}))
    before = path.read_bytes()
    monkeypatch.setattr(SqlEditor, "edit", _lost_edit)
    found = report(run("doctor", path, "--repair", "--yes", "--json"), 3)
    assert found["repaired"] == []
    shown = run("doctor", path, "--repair", "--yes").stdout
    assert shown.splitlines() == ["nothing was repaired"]
    assert path.read_bytes() == before


async def _lost(*_: Any, **__: Any) -> Any:
    raise Unavailable("it went away")


async def _lost_edit(*_: Any) -> AsyncGenerator[Any]:
    yield await _lost()
