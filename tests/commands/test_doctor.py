"""``memctl doctor``, as its users see it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from tests.support import histories
from tests.support.cli import Run, fails, fill, report
from tests.support.histories import ASK, REPLY, call, entries, recent, said

HOSTILE = "\x1b[31mred\x1b[0m \u202eback [bold]x[/bold]\n"
ALICE, BOB = MemoryKey("alice", "s1"), MemoryKey("bob", "s2")


@pytest.fixture
def broken(database: str) -> str:
    """A SQLite database with an error in one memory and a warning in another."""
    history = entries([ASK, call("c1", "t1"), REPLY])
    hints = entries([ASK, said("h1", "do it", "user", ("hint",)), REPLY])
    asyncio.run(fill(database, {ALICE: history, BOB: hints}))
    return database


def test_doctor_json_is_as_the_contract_has_it(run: Run, broken: str) -> None:
    found = report(run("doctor", broken, "--json"), 6)
    assert found["schema"] == "memctl/doctor/1"
    assert found["store"] == {"url": broken, "kind": "sqlite"}
    assert (found["healthy"], found["memories"], found["messages"]) == (False, 2, 6)
    assert found["error"]["code"] == "unhealthy"
    first, second, third = found["findings"]
    assert {name: first[name] for name in ("code", "severity", "user", "session")} == {
        "code": "tool-call-without-result",
        "severity": "error",
        "user": "alice",
        "session": "s1",
    }
    assert (first["count"], first["ids"], first["repairable"]) == (1, ["c1"], True)
    assert first["message"]
    assert first["meaning"]
    assert first["remedy"]
    assert (second["code"], second["severity"]) == ("leftover-hint", "warning")
    assert (third["code"], third["severity"]) == ("no-session-index", "notice")
    assert (third["user"], third["session"], third["ids"]) == (None, None, [])


def test_doctor_table_tells_the_same(run: Run, broken: str) -> None:
    result = run("doctor", broken)
    assert result.exit_code == 6
    assert "2 memories, 6 messages checked" in result.stdout
    assert "not healthy: 1 error, 1 warning, 1 notice" in result.stdout
    lines = result.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("error  "))
    assert lines[at].split()[-1] == "tool-call-without-result"
    assert "; --repair " in lines[at + 1]
    assert lines[at + 2].strip() == "'alice'/'s1' (c1)"
    assert lines[at + 3] == ""
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == f"repair with: memctl doctor {broken} --repair"
    fails(result, 6, "1 error and 1 warning")
    some = run("doctor", broken, "--user", "alice", "--session", "s1")
    assert f"repair with: memctl doctor {broken} --user=alice --session=s1 --repair" in some.stdout


def test_doctor_warnings_alone_are_no_error(run: Run, broken: str) -> None:
    result = run("doctor", broken, "--ignore", "tool-call-without-result")
    assert result.exit_code == 6
    assert f"memctl: warning: {broken} has 1 warning\n" in result.stderr
    assert "error" not in result.stderr


def test_doctor_healthy_store(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ALICE: entries(histories.HEALTHY)}))
    assert "\nhealthy: 1 notice" in run("doctor", database).stdout
    found = report(run("doctor", database, "--json"))
    assert found["healthy"]
    assert [finding["severity"] for finding in found["findings"]] == ["notice"]
    path = tmp_path / "alice_s1.json"
    asyncio.run(fill(str(path), {ALICE: entries(histories.HEALTHY)}))
    assert run("doctor", path).stdout.splitlines()[-1] == "healthy"


def test_doctor_only_some_memories(run: Run, broken: str) -> None:
    found = report(run("doctor", broken, "--json", "--user", "bob"), 6)
    assert [finding["code"] for finding in found["findings"]] == ["leftover-hint"]
    fails(run("doctor", broken, "--user", "nobody"), 4, "no memory of 'nobody'")


def test_doctor_only_some_codes(run: Run, broken: str) -> None:
    found = report(run("doctor", broken, "leftover-hint", "orphan-mark", "--json"), 6)
    assert [finding["code"] for finding in found["findings"]] == ["leftover-hint"]
    assert report(run("doctor", broken, "no-session-index", "--json"))["healthy"]
    fails(run("doctor", broken, "left-over"), 2, "unknown finding 'left-over'", "leftover-hint")


@pytest.mark.slow
def test_doctor_ignored_codes_and_severities_that_fail(run: Run, broken: str) -> None:
    found = report(run("doctor", broken, "--ignore", "tool-call-without-result", "--json"), 6)
    assert [finding["code"] for finding in found["findings"]] == [
        "leftover-hint",
        "no-session-index",
    ]
    warned = run("doctor", broken, "--ignore", "tool-call-without-result", "--fail-on", "error")
    assert warned.exit_code == 0
    assert "not healthy: 1 warning, 1 notice" in warned.stdout
    fails(run("doctor", broken, "--fail-on", "error"), 6, "1 error and 1 warning")
    both = ("--ignore", "tool-call-without-result", "--ignore", "leftover-hint")
    assert report(run("doctor", broken, *both, "--json"))["healthy"]
    repaired = report(
        run("doctor", broken, "--ignore", "leftover-hint", "--repair", "--yes", "--json")
    )
    assert {one["code"] for one in repaired["repaired"]} == {
        "tool-call-without-result",
        "no-session-index",
    }
    left = report(run("doctor", broken, "--json"), 6)
    assert [finding["code"] for finding in left["findings"]] == ["leftover-hint"]
    said = "did you mean 'leftover-hint'?"
    fails(run("doctor", broken, "--ignore", "leftover-hints"), 2, "unknown finding", said)
    fails(run("doctor", broken, "leftover-hints"), 2, "unknown finding", said)
    fails(run("doctor", broken, "--fail-on", "notice"), 2, "--fail-on")


def test_doctor_summaries_that_only_session_states_hold(
    run: Run, database: str, tmp_path: Path
) -> None:
    history = entries([*(said(f"m{n}", "a", marks=("compressed",)) for n in range(3)), ASK])
    asyncio.run(fill(database, {ALICE: history, BOB: history}, summary=None))
    result = run("doctor", database)
    assert result.exit_code == 0
    assert "\nhealthy: 7 notices\n" in result.stdout
    assert "  summary-elsewhere\n" in result.stdout
    assert "add ?state=FOLDER" in result.stdout
    archive = tmp_path / "a.ndjson"
    assert run("export", database, "-o", archive).exit_code == 0
    found = report(run("doctor", archive, "--json"))
    assert {finding["code"] for finding in found["findings"]} == {"summary-elsewhere"}
    assert {finding["severity"] for finding in found["findings"]} == {"notice"}
    assert "?state=" not in run("doctor", archive).stdout
    assert all("?state=" not in finding["remedy"] for finding in found["findings"])


def test_doctor_lists_errors_first(run: Run, database: str) -> None:
    hints = entries(
        [said("h1", "do", "user", ("hint",)), said("h2", "do", "user", ("hint",)), ASK, REPLY]
    )
    ids = entries([ASK, said("e1", ""), said("e2", ""), REPLY])
    asyncio.run(
        fill(database, {ALICE: hints, BOB: [*ids, *entries([call("c1", "t1", at=recent(3))])]})
    )
    result = run("doctor", database)
    assert "not healthy: 2 errors, 2 warnings, 2 notices" in result.stdout
    titles = [line.split()[0] for line in result.stdout.splitlines() if ": " in line]
    shown = [word for word in titles if word in ("error", "warning", "notice")]
    assert shown == ["error", "warning", "notice", "notice"]


def test_doctor_what_is_oversized(run: Run, database: str) -> None:
    history = [call("c1", "t1"), histories.result("r1", "t1", "x" * 500)]
    asyncio.run(fill(database, {ALICE: entries(history)}))
    assert run("doctor", database).exit_code == 0
    found = report(run("doctor", database, "--json", "--max-result", 499), 6)
    assert "500 bytes" in found["findings"][0]["message"]


def test_doctor_rows_for_programs(run: Run, broken: str) -> None:
    lines = run("doctor", broken, "--format", "ndjson").stdout.splitlines()
    assert next(json.loads(line)["code"] for line in lines) == "tool-call-without-result"
    table = list(csv.DictReader(io.StringIO(run("doctor", broken, "--format", "csv").stdout)))
    assert [row["user"] for row in table] == ["alice", "bob", ""]


def test_doctor_rows_of_sessions_with_one_memory_and_with_several(run: Run, tmp_path: Path) -> None:
    memory = {"_compressed_summary": "", "content": [[{"id": "m1", "role": "user"}, []]]}
    (tmp_path / "u_a.json").write_text(json.dumps({"memory": memory}))
    (tmp_path / "u_b.json").write_text(json.dumps({"x": memory, "y": memory}))
    (tmp_path / "empty").mkdir()
    rows = csv.DictReader(io.StringIO(run("doctor", tmp_path, "--format", "csv").stdout))
    paths = {(row["session"], row["path"]) for row in rows}
    assert paths == {("a", ""), ("b", "x"), ("b", "y")}
    shown = run("verify", tmp_path, tmp_path / "empty", "--show", "--format", "csv").stdout
    paths = {(row["session"], row["path"]) for row in csv.DictReader(io.StringIO(shown))}
    assert paths == {("a", ""), ("b", "x"), ("b", "y")}


def test_doctor_names_are_shown_and_not_obeyed(run: Run, database: str) -> None:
    history = entries([ASK, said(HOSTILE, "")])
    asyncio.run(fill(database, {MemoryKey(HOSTILE, HOSTILE): history}))
    shown = run("doctor", database).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[31mred" in shown
    assert "[bold]x[/bold]" in shown


def test_doctor_many_memories_are_not_all_named(run: Run, database: str) -> None:
    history = entries([ASK, said("bad", "")])
    asyncio.run(fill(database, {MemoryKey("u", f"s{n}"): history for n in range(8)}))
    shown = run("doctor", database).stdout
    assert shown.count("'u'/'s") == 3
    assert "and 5 memories more" in shown
    assert len(report(run("doctor", database, "--json"), 6)["findings"]) == 9


def test_doctor_store_is_left_as_it_was(run: Run, broken: str) -> None:
    path = Path(broken.removeprefix("sqlite:///"))
    before = path.read_bytes(), path.stat().st_mtime_ns
    run("doctor", broken)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_doctor_stdin(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    asyncio.run(fill(str(path), {ALICE: entries([ASK, said("bad", "")])}))
    found = report(run("doctor", "-", "--json", input=path.read_bytes()), 6)
    assert found["findings"][0]["code"] == "empty-assistant-message"


def test_doctor_damaged_state_of_a_database(run: Run, database: str, tmp_path: Path) -> None:
    """It is told once, and so are the summaries that went with it."""
    compressed = [said("m1", "a", "user", ("compressed",)), REPLY]
    asyncio.run(fill(database, {ALICE: entries(compressed), BOB: entries(compressed)}))
    states = tmp_path / "states"
    states.mkdir()
    (states / "alice_s1.json").write_text('{"memory": {"_compressed_summary": "so f')
    (states / "bob_s2.json").write_text('{"memory": {"_compressed_summary": "so far"}}')
    found = report(run("doctor", f"{database}?state={states}", "--json"), 6)
    told = [(one["code"], one["user"]) for one in found["findings"] if one["user"]]
    assert told == [("compressed-without-summary", "alice"), ("damaged-state", "alice")]
