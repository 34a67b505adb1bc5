"""Tests of ``doctor`` on the stores that AgentScope itself leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.interop.test_migrate import ALONE, PLACES, SUMMARISED
from tests.support import histories
from tests.support.agentscope import AgentScope
from tests.support.histories import ASK, REPLY, said
from tests.support.servers.pool import Servers

Run = Callable[..., Result]
UNINDEXED = ["sqlite", "postgresql"]
"""InnoDB has an index for each foreign key."""


@pytest.fixture
def place(tmp_path: Path, servers: Servers) -> Callable[[str], str]:
    """A new and empty place, by its kind."""
    return lambda kind: PLACES[kind](tmp_path, servers)


def memory(
    history: list[histories.Marked], session: str = "s1", user: str = "alice", summary: str = ""
) -> dict[str, Any]:
    """A memory for AgentScope to write."""
    return {"user": user, "session": session, "summary": summary, "messages": history}


def found(run: Run, place: str, *options: object) -> dict[str, Any]:
    """Return the report of doctor on a place; its exit code must fit."""
    result = run("doctor", place, "--json", *options)
    report: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if report["healthy"] else 6), result.output
    return report


def codes(report: dict[str, Any]) -> dict[str, list[str]]:
    """The codes that were found, by session."""
    by_session: dict[str, list[str]] = {}
    for finding in report["findings"]:
        by_session.setdefault(finding["session"], []).append(finding["code"])
    return by_session


@pytest.mark.parametrize("kind", PLACES)
def test_doctor_what_agentscope_wrote_is_healthy(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], kind: str
) -> None:
    where = place(kind)
    summary = "so far" if kind in SUMMARISED else ""
    compressed = [said("old", "a", "user", ("compressed",))] if summary else []
    written = [
        memory([*compressed, *histories.HEALTHY], f"s{n}", f"user{n}", summary)
        for n in range(1 if kind == ALONE else 3)
    ]
    agentscope.write(where, written)
    report = found(run, where)
    assert report["healthy"]
    expected = ["no-session-index"] if kind in UNINDEXED else []
    assert [finding["code"] for finding in report["findings"]] == expected
    assert report["memories"] == len(written)
    assert report["messages"] == sum(len(one["messages"]) for one in written)


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != ALONE])
def test_doctor_broken_histories(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], kind: str
) -> None:
    """Each in a session of its own, everywhere the same."""
    where = place(kind)
    cases = {
        f"{code}-{number}": (code, history, ids)
        for code, some in histories.BROKEN.items()
        for number, (history, ids) in enumerate(some)
    }
    summary = "so far" if kind in SUMMARISED else ""
    agentscope.write(
        where, [memory(one[1], name, f"of {name}", summary) for name, one in cases.items()]
    )
    report = found(run, where)
    assert not report["healthy"]
    by_session = codes(report)
    by_session.pop(None, None)
    for name, (code, history, _) in cases.items():
        expected = [code]
        if not summary and any("compressed" in marks for _, marks in history):
            expected.append("summary-elsewhere")
        assert by_session.pop(name) == expected, name
    assert by_session == {}
    for finding in report["findings"]:
        if finding["session"] in cases and finding["code"] != "summary-elsewhere":
            assert finding["ids"] == cases[finding["session"]][2]
            assert finding["user"] == f"of {finding['session']}"


@pytest.mark.parametrize("kind", PLACES)
def test_doctor_lost_summary(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], kind: str
) -> None:
    where = place(kind)
    history = [said("m1", "a", "user", ("compressed",)), ASK, REPLY]
    agentscope.write(where, [memory(history)])
    findings = found(run, where)["findings"]
    [finding] = [one for one in findings if one["code"] != "no-session-index"]
    code = "compressed-without-summary" if kind in SUMMARISED else "summary-elsewhere"
    assert (finding["code"], finding["count"], finding["ids"]) == (code, 1, ["m1"])


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_doctor_summary_in_the_states(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    """``?state=`` tells what is missing."""
    where = place(kind)
    history = [said("m1", "a", "user", ("compressed",)), ASK, REPLY]
    agentscope.write(where, [memory(history, "s1"), memory(history, "s2", "bob")])
    states = tmp_path / "states"
    agentscope.write(str(states), [memory([], "s1", summary="so far")])
    where += f"{'&' if '?' in where else '?'}state={states}"
    by_session = codes(found(run, where))
    by_session.pop(None, None)
    assert by_session == {"s2": ["compressed-without-summary"]}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_doctor_users_who_share_a_session(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], kind: str
) -> None:
    """The number of others' messages that each user sees is the one that AgentScope shows."""
    where = place(kind)
    users = {"alice": 3, "a-b": 2, "bob": 4}
    for user, number in users.items():
        history = [said(f"{user}{n}", "a", "user") for n in range(number)]
        agentscope.write(where, [memory(history, "default_session", user)])
    agentscope.write(where, [memory(histories.HEALTHY, "own")])
    report = found(run, where)
    shared = [one for one in report["findings"] if one["code"] == "shared-session"]
    assert {one["user"]: one["count"] for one in shared} == {"alice": 6, "a-b": 7, "bob": 5}
    assert "own" not in codes(report)
    for one in shared:
        asked = {"user": one["user"], "session": one["session"], "marks": []}
        [seen] = agentscope.read(where, [asked])
        assert len(seen["messages"]) - users[one["user"]] == one["count"]
    [alice] = [one for one in shared if one["user"] == "alice"]
    assert "4 of 'bob', 2 of 'a-b'" in alice["message"]
    [only] = found(run, where, "shared-session", "--user", "bob")["findings"]
    assert only["user"] == "bob"


def test_doctor_keys_that_never_expire(
    agentscope: AgentScope, run: Run, redis_url: str, tmp_path: Path
) -> None:
    """RedisMemory gives what it adds no expiry; the next access does."""
    where = f"{redis_url}?ttl=3600"
    with agentscope.talking(where, [memory([])], tmp_path / "enough") as said:
        time.sleep(0.3)
    assert said["exchanges"] > 1
    lives = ["never-expires", "expires-early"]
    report = found(run, where, *lives)
    assert report["healthy"]
    [finding] = report["findings"]
    assert (finding["code"], finding["count"]) == ("never-expires", 2)
    agentscope.read(where, [{"user": "alice", "session": "s1", "marks": []}])
    assert found(run, where, *lives)["findings"] == []


def test_doctor_truncated_session_files(agentscope: AgentScope, run: Run, tmp_path: Path) -> None:
    """Each is told, and the others are looked at."""
    folder = tmp_path / "sessions"
    written = [memory(histories.HEALTHY, f"s{n}", "bob") for n in range(5)]
    agentscope.write(str(folder), written, nested=True)
    for n in (1, 3):
        path = folder / f"bob_s{n}.json"
        path.write_bytes(path.read_bytes()[: -n * 100])
    report = found(run, folder)
    assert codes(report) == {"s1": ["damaged-state"], "s3": ["damaged-state"]}
    assert report["memories"] == 3
    assert "bob_s1.json" in report["findings"][0]["message"]
    assert run("inspect", folder).exit_code == 7
    assert found(run, folder, "--user", "bob", "--session", "s2")["healthy"]
    assert not found(run, folder, "--user", "bob", "--session", "s3")["healthy"]


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != ALONE])
def test_doctor_agentscope_goes_on_where_a_history_was_repaired(
    agentscope: AgentScope, run: Run, place: Callable[[str], str], kind: str
) -> None:
    """The inserted message is a result that AgentScope loads, in its place."""
    where = place(kind)
    history = [
        ASK,
        histories.call("c1", "t1"),
        said("h1", "do it", "user", ("hint",)),
        REPLY,
        said("e1", ""),
        histories.call("c2", "t2"),
    ]
    agentscope.write(where, [memory(history)])
    result = run("doctor", where, "--repair", "--yes", "--json")
    assert result.exit_code == 0, result.output
    agentscope.write(where, [memory([said("more", "go on", "user")])])
    asked = {"user": "alice", "session": "s1", "marks": []}
    [seen] = agentscope.read(where, [asked])
    ids = [message["id"] for message in seen["messages"]]
    assert [id for id in ids if len(id) < 22] == ["q", "c1", "r", "c2", "more"]
    for place_of, tool in ((2, "t1"), (5, "t2")):
        [block] = seen["messages"][place_of]["content"]
        assert (block["type"], block["id"]) == ("tool_result", tool)
        assert seen["messages"][place_of]["role"] == "system"
    assert found(run, where)["healthy"]
