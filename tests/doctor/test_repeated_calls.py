"""Calls and results that occur twice, lack an id, or come in other forms: findings and repairs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from memctl.testing.samples import sample
from tests.support.cli import Run, contents, fill, report
from tests.support.histories import ASK, REPLY, STOPPED, Marked, call, cut, entries, result, said
from tests.support.servers.pool import Servers

KEY = MemoryKey("u", "s")
FOUND = result("", "t1", "x")[0]["content"]
TWICE: list[Marked] = [
    ASK,
    call("c", "t1", "t1"),
    said("r1", [*FOUND, *FOUND], "system"),
    REPLY,
]


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis", "sessions", "archive"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A new and empty place for memories of AgentScope 1.x."""
    return {
        "sqlite": lambda: f"sqlite:///{tmp_path}/m.db",
        "postgresql": lambda: servers.postgresql.fresh(),
        "mysql": lambda: servers.mariadb.fresh(),
        "redis": lambda: servers.redis.fresh(),
        "sessions": lambda: f"{tmp_path}/sessions",
        "archive": lambda: f"{tmp_path}/a.ndjson",
    }[request.param]()


def codes(found: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of errors and warnings by their codes."""
    return {one["code"]: one["count"] for one in found["findings"] if one["severity"] != "notice"}


def outputs(place: str) -> list[tuple[str, Any]]:
    """Return the calls and the outputs of a store, in order."""
    [messages] = contents(place).values()
    values = [json.loads(one.message)["content"] for one in messages]
    blocks = [one for content in values if isinstance(content, list) for one in content]
    tools = [one for one in blocks if one["type"] in ("tool_use", "tool_result")]
    return [(one["id"], one.get("output")) for one in tools]


def values(place: str) -> Any:
    return {
        key: [(one.id, json.loads(one.message), set(one.marks)) for one in some]
        for key, some in contents(place).items()
    }


@pytest.mark.slow
def test_repair_keeps_one_call_and_the_genuine_result(run: Run, place: str) -> None:
    asyncio.run(fill(place, {KEY: entries(TWICE)}))
    before = values(place)
    sick = report(run("doctor", place, "--json"), 6)
    assert codes(sick) == {"repeated-tool-call": 1, "repeated-tool-result": 1}
    done = report(run("doctor", place, "--repair", "--yes", "--json"))
    assert {one["code"]: one["count"] for one in done["repaired"]}.items() >= codes(sick).items()
    assert outputs(place) == [("t1", None), ("t1", "x")]
    again = report(run("doctor", place, "--repair", "--yes", "--json"))
    assert again["repaired"] == []
    assert "run" not in again
    undone = report(run("undo", done["run"], "--store", place, "--json"))
    assert values(place) == before
    redone = report(run("undo", undone["run"], "--store", place, "--json"))
    assert outputs(place) == [("t1", None), ("t1", "x")]
    report(run("undo", redone["run"], "--store", place, "--json"))
    assert values(place) == before


@pytest.mark.slow
def test_undo_refuses_a_repaired_message_that_changed_since(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {KEY: entries(TWICE)}))
    done = report(run("doctor", path, "--repair", "--yes", "--json"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE message SET msg = json_set(msg, '$.content[0].name', 'other') "
            "WHERE id LIKE '%-c'"
        )
    before = values(str(path))
    undone = report(run("undo", done["run"], "--json"), 5)
    assert "changed since" in undone["failures"][0]["message"]
    assert values(str(path)) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_repair_of_2_x_keeps_the_genuine_result(
    run: Run, tmp_path: Path, servers: Servers, name: str
) -> None:
    """A repair of another finding leaves the session alone."""
    place = f"sqlite:///{tmp_path}/m.db" if name == "sqlite" else servers.redis.fresh()
    place += "?layout=agentscope2"
    tool = {"type": "tool_call", "id": "c1", "name": "ls", "input": "{}", "state": "finished"}
    output = {"type": "tool_result", "id": "c1", "name": "ls", "output": "x", "state": "success"}
    unanswered = {**tool, "id": "c9"}
    sessions = {
        "twice": [
            _of_2_x("m1", "user", "go"),
            _of_2_x("m2", "assistant", tool, tool, output, output),
        ],
        "cut": [_of_2_x("m3", "assistant", "look", unanswered), _of_2_x("m4", "user", "well?")],
        "genuine": [_of_2_x("m5", "assistant", tool, output, "done")],
    }

    async def work() -> None:
        async with make_store(parse(place), OpenMode.CREATE) as store:
            await write_all(
                store, [sample(MemoryKey("u", key), found) for key, found in sessions.items()]
            )

    asyncio.run(work())
    before = values(place)
    sick = codes(report(run("doctor", place, "--json"), 6))
    assert sick == {
        "tool-call-without-result": 1,
        "repeated-tool-call": 1,
        "repeated-tool-result": 1,
    }
    only = report(run("doctor", place, "tool-call-without-result", "--repair", "--yes", "--json"))
    assert [one["session"] for one in only["repaired"]] == ["cut"]
    after = values(place)
    assert after[MemoryKey("u", "twice")] == before[MemoryKey("u", "twice")]
    assert after[MemoryKey("u", "genuine")] == before[MemoryKey("u", "genuine")]
    rest = report(run("doctor", place, "--repair", "--yes", "--json"))
    [_, (_, reply, _)] = values(place)[MemoryKey("u", "twice")]
    assert [(one["type"], one.get("output")) for one in reply["content"]] == [
        ("tool_call", None),
        ("tool_result", "x"),
    ]
    for done in (rest, only):
        report(run("undo", done["run"], "--store", place, "--json"))
    assert values(place) == before


def _of_2_x(id: str, role: str, *contents: Any) -> StoredMessage:
    time = "2026-03-01T10:00:00"
    blocks = [
        ({"type": "text", "text": one} if isinstance(one, str) else one)
        | ({"id": f"{id}-{number}"} if isinstance(one, str) else {})
        | {"created_at": time, "finished_at": time}
        for number, one in enumerate(contents)
    ]
    value = {"id": id, "name": "n", "role": role, "content": blocks, "metadata": {}}
    return StoredMessage(id, json.dumps(value | {"created_at": time}).encode())


GENUINE: dict[str, tuple[list[Marked], list[str]]] = {
    "interrupted first": (
        [call("c", "t"), result("a", "t", STOPPED), result("b", "t", "x")],
        ["x"],
    ),
    "interrupted last": ([call("c", "t"), result("a", "t", "x"), result("b", "t", STOPPED)], ["x"]),
    "calls apart": ([call("b", "t"), ASK, call("c", "t"), result("a", "t", "x"), REPLY], ["x"]),
    "two that differ": ([call("c", "t"), result("a", "t", "x"), result("b", "t", "y")], ["x", "y"]),
}


@pytest.mark.parametrize("name", GENUINE)
def test_repair_never_deletes_a_genuine_result(run: Run, tmp_path: Path, name: str) -> None:
    history, kept = GENUINE[name]
    place = str(tmp_path / "s.json")
    asyncio.run(fill(place, {MemoryKey("", "s"): entries(history)}))
    undecided = len(kept) > 1
    found = report(run("doctor", place, "--repair", "--yes", "--json"), 6 if undecided else 0)
    assert [output for _, output in outputs(place) if output is not None] == kept
    assert bool(found["repaired"]) is not undecided


def test_repair_reads_a_result_again_that_was_compressed_without_its_call(
    run: Run, tmp_path: Path
) -> None:
    place = str(tmp_path / "s.json")
    history = [ASK, call("c", "t"), result("r1", "t", "x", marks=("compressed",)), REPLY]
    asyncio.run(fill(place, {MemoryKey("", "s"): entries(history)}, summary="so far"))
    report(run("doctor", place, "--repair", "--yes", "--json"))
    assert outputs(place) == [("t", None), ("t", "x")]
    assert all(not one.marks for some in contents(place).values() for one in some)


def test_repair_marks_a_result_whose_call_is_compressed(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "s.json")
    history = [call("c", "t", marks=("compressed",)), result("r1", "t", "x"), REPLY]
    asyncio.run(fill(place, {MemoryKey("", "s"): entries(history)}, summary="so far"))
    report(run("doctor", place, "--repair", "--yes", "--json"))
    [messages] = contents(place).values()
    assert [one.marks for one in messages] == [("compressed",), ("compressed",), ()]


BAD: dict[str, list[Any]] = {
    "a call without id or name": [{"type": "tool_use", "id": "", "name": "", "input": {}}],
    "a pair without id": [
        {"type": "tool_use", "id": "", "name": "ls", "input": {}},
        {"type": "tool_result", "id": "", "name": "ls", "output": "not found"},
    ],
    "a pair of nulls": [
        {"type": "tool_use", "id": None, "name": None, "input": None},
        {"type": "tool_result", "id": None, "name": None, "output": None},
    ],
    "a call without a name": [
        {"type": "tool_use", "id": "c9", "name": "", "input": {}},
        {"type": "tool_result", "id": "c9", "name": "", "output": "not found"},
    ],
}


@pytest.mark.parametrize("name", BAD)
def test_calls_without_id_or_name_are_found_and_left(run: Run, tmp_path: Path, name: str) -> None:
    place = tmp_path / "s.json"
    first, *rest = BAD[name]
    history = [ASK, said("c", [first]), *[said("r1", [one], "system") for one in rest], REPLY]
    asyncio.run(fill(str(place), {MemoryKey("", "s"): entries(history)}))
    before = place.read_bytes()
    assert codes(report(run("doctor", place, "--json"), 6)).keys() == {"incomplete-tool-call"}
    shown = run("doctor", place, "--repair", "--yes")
    assert shown.exit_code == 6
    assert "healthy\n" not in shown.stdout.replace("not healthy", "")
    assert place.read_bytes() == before


def test_arguments_that_are_cut_short_are_found(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "s.json")
    history = [ASK, cut("c", "t"), result("r1", "t"), REPLY]
    asyncio.run(fill(place, {MemoryKey("", "s"): entries(history)}))
    found = report(run("doctor", place, "--json"), 6)
    assert codes(found) == {"invalid-arguments": 1}
    assert found["findings"][0]["ids"] == ["c"]
