"""Trajectories that memctl writes are Harbor's, and those that Harbor writes are read whole."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from tests.interop_harbor.conftest import Harbor
from tests.support.agent_sessions import claude_line, claude_session
from tests.support.cli import FRIDAY, Run, contents, in_process, report
from tests.support.hostile import memories


@pytest.fixture
def run() -> Run:
    return in_process()


def written(path: Path, *found: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return path


def agentscope(folder: Path) -> str:
    """A store with all that Python's JSON can write."""

    async def work() -> None:
        async with make_store(parse(f"{folder}/a.ndjson"), OpenMode.CREATE) as store:
            await write_all(store, list(memories(6)))

    asyncio.run(work())
    return f"{folder}/a.ndjson"


def claude_code(folder: Path) -> str:
    """A session with calls at once, and a branch that was taken back."""
    calls = [{"type": "tool_use", "id": f"c{at}", "name": "find", "input": {}} for at in (1, 2)]
    found = [
        claude_line(1, "", message={"role": "assistant", "id": "m", "content": calls}),
        claude_line(2, "")
        | {
            "message": {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "09:00"}],
            }
        },
        claude_line(3, "Taken back", parentUuid="u1"),
        {"type": "last-prompt", "leafUuid": "u2"},
    ]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in found)
    claude_session(folder / "claude", "When does my train leave?", lines=lines)
    return f"claude-code:{folder}/claude"


def friday(folder: Path) -> str:  # noqa: ARG001
    return str(FRIDAY)


@pytest.mark.parametrize("made", [agentscope, claude_code, friday])
def test_trajectories_pass_through_harbor_without_a_difference(
    run: Run, harbor: Harbor, tmp_path: Path, made: Any
) -> None:
    source, path = made(tmp_path), tmp_path / "memctl.jsonl"
    assert run("export", source, "--as", "atif", "-o", path).exit_code == 0
    theirs = written(tmp_path / "harbor.jsonl", *harbor.ask(do="write", path=str(path)))
    done = report(run("verify", source, theirs, "--json"))
    assert (done["differences"], done["warnings"]) == ([], [])
    assert done["memories"]["same"] > 0


def test_a_trajectory_of_harbor_is_read_without_a_difference(
    run: Run, harbor: Harbor, tmp_path: Path
) -> None:
    theirs = harbor.ask(do="make")
    path, back = written(tmp_path / "harbor.jsonl", theirs), tmp_path / "back.jsonl"
    assert run("import", path, tmp_path / "a.ndjson").exit_code == 0
    assert run("export", tmp_path / "a.ndjson", "--as", "atif", "-o", back).exit_code == 0
    assert len(harbor.ask(do="write", path=str(back))) == 2  # the subagent is the second
    read = [json.loads(one.message) for two in contents(str(back)).values() for one in two]
    moment = datetime.fromisoformat(theirs["steps"][0]["timestamp"]).astimezone()
    assert datetime.fromisoformat(read[0]["timestamp"]) == moment.replace(tzinfo=None)
    for value in values_of(theirs):
        assert json.dumps(value) in json.dumps(read), value


def values_of(value: Any) -> list[Any]:
    """The texts and numbers in a trajectory besides times, versions and numbers of steps."""
    if isinstance(value, dict):
        names = value.keys() - {"schema_version", "step_id", "source", "type", "timestamp"}
        return [one for name in names for one in values_of(value[name])]
    return (
        [one for some in value for one in values_of(some)] if isinstance(value, list) else [value]
    )
