"""Sessions of Claude Code that a killed run was writing or removing: SIGKILL at each step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import faults
from tests.support.agent_sessions import CLAUDE, beside, claude_session, settle
from tests.support.cli import Run
from tests.support.faults import Fault, FaultyProcess, Plan
from tests.support.servers.pool import start

pytestmark = pytest.mark.slow

CALLS = "lnor"
"""A run is killed before each of its calls of ``link``, ``unlink``, ``open`` and ``rename``."""
OLD = ("Old", "As it was", "Before")
NEW = ("New", "As it is")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(lambda: faults.library(tmp_path_factory.mktemp("library")))


def session(folder: Path, *texts: str, files: dict[str, bytes]) -> None:
    path = claude_session(folder, *texts)
    for name, data in files.items():
        beside(path, name, data)
    history = folder / "file-history" / CLAUDE / f"{len(texts)}@v1"
    history.parent.mkdir(parents=True)
    history.write_bytes(texts[0].encode())
    settle(folder)


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files in a folder besides the locks of runs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize("command", ["delete", "erase", "restore", "replace", "undo"])
def test_a_killed_run_is_named_and_completed(
    tmp_path: Path, library: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """``undo`` and ``replace`` write over a session with other files than the new one has."""
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "claude"
    session(old, *OLD, files={"tool-results/a.txt": b"a" * 5000, "tool-results/gone.txt": b"x"})
    session(new, *NEW, files={"tool-results/a.txt": b"b" * 3000, "subagents/s.jsonl": b"{}\n"})
    store, state = f"claude-code:{folder}", tmp_path / "state"
    replace = ["migrate", f"claude-code:{new}", store, "--on-conflict", "replace", "--yes"]
    words = {
        "delete": ["delete", store, "--session", CLAUDE, "--yes"],
        "erase": ["erase", store, "--session", CLAUDE, "--yes"],
        "restore": ["migrate", f"claude-code:{old}", store],
        "replace": replace,
        "undo": ["undo", "--yes"],
    }[command]
    end = {"restore": everything(old), "undo": everything(old), "replace": everything(new)}
    shutil.copytree(old, folder)
    if command == "restore":
        shutil.rmtree(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    state.mkdir()
    if command == "undo":
        done = run(*replace)
        assert done.exit_code == 0, done.stderr
        settle(folder)
        assert everything(folder) == everything(new)
    start_of_trial, runs = tmp_path / "start", tmp_path / "runs"
    if folder.exists():
        shutil.copytree(folder, start_of_trial, copy_function=shutil.copy2)
    shutil.copytree(state, runs)
    before = everything(folder)

    def process(plan: Plan | None) -> tuple[int, str]:
        started = FaultyProcess(library, plan, words, env=dict(os.environ))
        _, errors = started.communicate(timeout=60)
        return started.returncode, errors

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(state)
        if start_of_trial.exists():
            shutil.copytree(start_of_trial, folder)
        shutil.copytree(runs, state)

    done = end.get(command, {})
    plan = Plan(tmp_path / "plan")
    plan.set()
    assert process(plan)[0] == 0
    steps = [at for at, call in enumerate(plan.calls) if call in CALLS]
    named = 0
    for at in steps:
        begin()
        plan.set(at, Fault.KILL)
        code, errors = process(plan)
        assert code == -9, errors
        found, shown = everything(folder), run("inspect", store).stderr
        if {name: found[name] for name in found if ".memctl-" not in name} not in (before, done):
            assert "memctl was killed while" in shown, (at, sorted(found))
            named += 1
        code, errors = process(None)
        assert everything(folder) == done, (at, code, errors, sorted(everything(folder)))
        assert "memctl was killed while" not in run("inspect", store).stderr
    assert named
