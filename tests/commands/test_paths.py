"""The paths of memories in session states: kept on the way through other stores, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memctl.testing import samples
from tests.support.cli import Run, report
from tests.support.servers.pool import Servers

PATH = "agent.memory"
BETWEEN = {
    "redis": lambda _, servers: f"{servers.redis.fresh()}?layout=session",
    "tablestore": lambda _, servers: servers.tablestore.fresh("layout=session"),
    "archive": lambda folder, _: f"{folder}/a.ndjson",
}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A folder with a session, whose memory is that of an agent."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    content = [[json.loads(one.message), []] for one in samples.entries(4)]
    state = {"agent": {"memory": {"_compressed_summary": "", "content": content}}}
    (folder / "ada_s1.json").write_text(json.dumps(state))
    return folder


def memory_of(folder: Path, *steps: str) -> object:
    state = json.loads((folder / "ada_s1.json").read_text())
    for step in steps:
        state = state[step]
    return state


@pytest.mark.parametrize("between", BETWEEN)
def test_path_is_kept_through_session_states_and_archives(
    run: Run, sessions: Path, tmp_path: Path, servers: Servers, between: str
) -> None:
    place = BETWEEN[between](tmp_path, servers)
    assert run("migrate", sessions, place).exit_code == 0
    restored = tmp_path / "restored"
    done = run("migrate", place, restored)
    assert (done.exit_code, done.stderr) == (0, "")
    assert memory_of(restored) == memory_of(sessions)


def test_path_that_is_not_kept_is_named_and_chosen(
    run: Run, sessions: Path, tmp_path: Path, servers: Servers
) -> None:
    place = servers.redis.fresh()  # RedisMemory
    assert run("migrate", sessions, place).exit_code == 0
    lost, chosen = tmp_path / "lost", tmp_path / "chosen"
    done = run("migrate", place, lost)
    assert done.exit_code == 0
    assert done.stderr.count("at the path 'memory'") == 1
    assert "--path agent.memory" in done.stderr
    found = report(run("verify", sessions, lost, "--json"), 6)
    assert [one["code"] for one in found["differences"]] == ["path"]
    shown = run("verify", sessions, lost, "--show")
    assert "-agent.memory\n+memory\n" in shown.stdout
    done = run("migrate", place, chosen, "--path", PATH)
    assert (done.exit_code, done.stderr) == (0, "")
    assert memory_of(chosen) == memory_of(sessions)
    assert run("verify", sessions, chosen).exit_code == 0


@pytest.mark.parametrize("kind", ["redis", "tablestore"])
def test_path_is_chosen_in_states_on_a_server(
    run: Run, sessions: Path, tmp_path: Path, servers: Servers, kind: str
) -> None:
    database, restored = tmp_path / "m.db", tmp_path / "restored"
    assert run("migrate", sessions, database, "--lossy").exit_code == 0
    place = BETWEEN[kind](tmp_path, servers)
    done = run("migrate", database, place, "--path", PATH)
    assert (done.exit_code, done.stderr) == (0, "")
    assert run("migrate", place, restored).exit_code == 0
    assert memory_of(restored) == memory_of(sessions)


def test_path_stays_where_a_session_has_its_memory(
    run: Run, sessions: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "ada_s1.json").write_text(json.dumps({"memory": {"content": []}, "name": "Friday"}))
    assert run("migrate", sessions, there).exit_code == 0
    assert memory_of(there, "memory", "content") == memory_of(
        sessions, "agent", "memory", "content"
    )


def test_path_is_kept_by_the_undo_of_an_undo(run: Run, sessions: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "bob_s2.json").write_text((sessions / "ada_s1.json").read_text())
    done = report(run("migrate", sessions, there, "--json"))["run"]
    undone = report(run("undo", done, "--store", there, "--json"))["run"]
    assert not (there / "ada_s1.json").exists()
    report(run("undo", undone, "--store", there, "--json"))
    assert memory_of(there) == memory_of(sessions)
