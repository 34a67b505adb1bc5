"""Session files with states of the real AgentScope 2.x, as QwenPaw 2 has them: read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop2.test_sessions import ALICE, MESSAGES, RECENT, SUMMARY
from tests.support.agentscope2 import AgentScope2
from tests.support.cli import Run, fails, report

SESSION = "1785404856941-abc"
LATEST = [one for one in MESSAGES if one["id"] in RECENT]


@pytest.fixture
def file(agentscope2: AgentScope2, tmp_path: Path) -> Path:
    """A session of the channel ``console``, saved by AgentScope."""
    path = tmp_path / "sessions" / "console" / f"alice_{SESSION}.json"
    agentscope2("save", str(path), session=SESSION, summary=SUMMARY, messages=LATEST)
    return path


def test_state_files_of_agentscope_are_seen(run: Run, tmp_path: Path, file: Path) -> None:
    for store in (tmp_path / "sessions", file):
        found = report(run("inspect", store, "--json"))
        assert found["store"]["kind"] == "agentscope2-files"
        [memory] = found["memories"]
        assert (memory["user"], memory["session"]) == ("alice", SESSION)
        assert (memory["messages"], memory["summary"]) == (len(LATEST), True)
        assert run("doctor", store).exit_code == 0


@pytest.mark.parametrize("kind", ["sql", "archive"])
def test_state_files_come_back_as_agentscope_left_them(
    run: Run, agentscope2: AgentScope2, tmp_path: Path, file: Path, kind: str
) -> None:
    before = agentscope2("load", str(file))
    assert [one["id"] for one in before["context"]] == RECENT
    middle = {
        "sql": f"sqlite:///{tmp_path}/new.db?layout=agentscope2",
        "archive": f"{tmp_path}/a.ndjson",
    }[kind]
    assert run("migrate", tmp_path / "sessions", middle).exit_code == 0
    back = tmp_path / "back"
    result = run("migrate", middle, f"agentscope2:{back}")
    assert result.exit_code == 0, result.stderr
    assert agentscope2("load", f"{back}/alice_{SESSION}.json") == before
    assert run("verify", tmp_path / "sessions", back).exit_code == 0


def test_state_files_take_sessions_of_a_storage(
    run: Run, agentscope2: AgentScope2, tmp_path: Path, file: Path
) -> None:
    place = f"sqlite:///{tmp_path}/app.db?layout=agentscope2"
    about = ALICE | {"session": "kyoto"}
    agentscope2("write", place, **about, summary=SUMMARY, messages=LATEST, context=RECENT)
    fails(run("migrate", place, tmp_path / "sessions"), 9, "records of sessions", "--lossy")
    result = run("migrate", place, tmp_path / "sessions", "--lossy")
    assert result.exit_code == 0, result.stderr
    written = file.with_name("alice_kyoto.json")  # in the channel of those that are there
    stored = agentscope2("load", str(written))
    [session] = agentscope2("list", place, user="alice")
    assert (stored["context"], stored["summary"]) == (session["context"], SUMMARY)
    assert stored["session_id"] == "kyoto"


def test_state_files_keep_what_an_edit_does_not_name(
    run: Run, agentscope2: AgentScope2, file: Path
) -> None:
    value = json.loads(file.read_text())
    value["agent"]["toolkit"] = {"active_groups": ["kept"]}
    text = json.dumps(value, indent=1, ensure_ascii=False)
    file.write_text(text)
    before = agentscope2("load", str(file))
    gone = before["context"][-1]["id"]
    assert run("delete", file, "--id", gone, "--yes").exit_code == 0
    after = agentscope2("load", str(file))
    assert after == before | {"context": before["context"][:-1]}
    assert json.loads(file.read_text())["agent"]["toolkit"] == {"active_groups": ["kept"]}
    assert run("undo", "--yes").exit_code == 0
    assert agentscope2("load", str(file)) == before
    assert json.loads(file.read_text()) == value


def test_state_files_are_exact_for_agentscope_1(
    run: Run, agentscope2: AgentScope2, tmp_path: Path, file: Path
) -> None:
    before: Any = agentscope2("load", str(file))
    old = tmp_path / "old.db"
    assert run("migrate", tmp_path / "sessions", old, "--lossy").exit_code == 0
    assert run("verify", tmp_path / "sessions", old).exit_code == 0
    back = tmp_path / "back"
    assert run("migrate", old, f"agentscope2:{back}").exit_code == 0
    found = agentscope2("load", f"{back}/alice_{SESSION}.json")
    assert found == before | {"summary": ""}  # the database of 1.x has no place for it
