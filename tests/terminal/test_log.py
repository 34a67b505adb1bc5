"""Messages on stderr: for people, or an object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import FRIDAY, Run
from tests.support.schemas import check_log


def logged(run: Run, code: int, *words: object) -> list[dict[str, Any]]:
    """The objects on stderr of a run that ends with the code."""
    done = run("--log-format", "json", *words)
    assert done.exit_code == code, done.stderr
    found = [json.loads(line) for line in done.stderr.splitlines()]
    for one in found:
        check_log(one)
    return found


def events(found: list[dict[str, Any]]) -> list[str]:
    return [one["event"] for one in found]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state_dict to work on."""
    path = tmp_path / "friday.json"
    path.write_bytes(FRIDAY.read_bytes())
    return path


def test_log_run_that_ends_well(run: Run, state: Path) -> None:
    opened, times, done = logged(run, 0, "-v", "inspect", state)
    assert (opened["event"], opened["store"]) == ("opened", str(state))
    assert "in the time zone of this machine" in times["message"]
    assert (done["event"], done["command"], done["level"]) == ("done", "inspect", "info")
    assert logged(run, 0, "--quiet", "inspect", state) == []


def test_log_run_that_can_be_undone(run: Run, state: Path) -> None:
    [done] = logged(run, 0, "delete", state, "--mark", "hint", "--yes")
    assert run("undo", done["run"]).exit_code == 0
    assert run("verify", state, FRIDAY).exit_code == 0


def test_log_error(run: Run, tmp_path: Path) -> None:
    [error] = logged(run, 4, "inspect", tmp_path / "none.db")
    assert (error["event"], error["code"], error["level"]) == ("error", "not-found", "error")
    assert error["hint"]


def test_log_wrong_option_is_an_object_too(run: Run) -> None:
    [error] = logged(run, 2, "inspect", "--unknown")
    assert (error["event"], error["code"]) == ("error", "usage")
    assert "--unknown" in error["message"]


def test_log_each_memory_that_failed(run: Run, state: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.ndjson"
    named = ("--user", "ada", "--session", "one")
    assert run("migrate", state, target, *named, "--role", "user").exit_code == 0
    failed, error = logged(run, 5, "migrate", state, target, *named, "--role", "system")
    assert (failed["event"], failed["code"]) == ("memory-failed", "conflict")
    assert failed["memory"] == {"user": "ada", "session": "one"}
    assert error["code"] == "conflict"


def test_log_warning(run: Run, state: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    named = ("--user", "ada", "--session", "one")
    found = logged(run, 0, "migrate", state, target, *named, "--lossy")
    assert events(found) == ["warning", "done"]
