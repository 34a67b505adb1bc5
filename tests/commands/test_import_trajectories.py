"""Trajectories (ATIF) as a store: of memctl exactly, of other programs by their steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from tests.commands.test_export_trajectories import trajectories
from tests.support.cli import FRIDAY, Run, contents, fails, report
from tests.support.hostile import memories

HARBOR: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "kyoto",
    "agent": {"name": "terminus", "version": "2.0", "model_name": "m1"},
    "steps": [
        {
            **{"step_id": 1, "timestamp": "2026-11-20T10:00:01Z", "source": "user"},
            "message": [
                {"type": "text", "text": "When does my train leave?"},
                {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}},
            ],
        },
        {
            **{"step_id": 2, "source": "agent", "message": "", "reasoning_content": "Look it up."},
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "find", "arguments": {"day": 5}},
                {"tool_call_id": "c2", "function_name": "find", "arguments": {}, "extra": {"n": 1}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c2", "content": "12:00"},
                    {"source_call_id": "c1", "content": "09:00"},
                    {"content": "The clock strikes."},
                ]
            },
            "metrics": {"prompt_tokens": 20},
        },
        {"step_id": 3, "source": "agent", "message": "At nine."},
    ],
    "final_metrics": {"total_steps": 3},
}


def written(path: Path, *found: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return path


def said(store: object) -> list[tuple[str, str, Any]]:
    """The names, roles and contents of the messages of a store."""
    values = [json.loads(one.message) for _, found in contents(str(store)).items() for one in found]
    return [(value["name"], value["role"], value["content"]) for value in values]


def test_atif_brings_every_message_back(run: Run, tmp_path: Path) -> None:
    source, path, back = (tmp_path / name for name in ("a.ndjson", "a.jsonl", "b.ndjson"))

    async def work() -> None:
        async with make_store(parse(str(source)), OpenMode.CREATE) as store:
            await write_all(store, list(memories(6)))

    asyncio.run(work())
    assert run("export", source, "--as", "atif", "-o", path).exit_code == 0
    assert report(run("verify", source, path, "--json"))["differences"] == []
    assert run("import", path, back).exit_code == 0
    assert contents(str(back)) == contents(str(source))


def test_atif_brings_sessions_of_agentscope2_back(run: Run, tmp_path: Path) -> None:
    source, path, back = (tmp_path / name for name in ("a.ndjson", "a.jsonl", "b.ndjson"))
    two = f"sqlite:///{tmp_path}/two.db?layout=agentscope2"
    names = ("--user", "ada", "--session", "kyoto")
    assert run("migrate", FRIDAY, two, *names).exit_code == 0
    assert run("export", two, "-o", source).exit_code == 0
    assert run("export", two, "--as", "atif", "-o", path).exit_code == 0
    assert run("migrate", path, back).exit_code == 0
    assert contents(str(back)) == contents(str(source))
    assert run("migrate", path, tmp_path / "one.db", "--lossy").exit_code == 0  # a conversion


def test_atif_that_another_program_changed_says_what_its_steps_say(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "kyoto.json"
    names = ("--user", "ada", "--session", "kyoto")
    assert run("export", FRIDAY, *names, "--as", "atif", "-o", path).exit_code == 0
    [found] = trajectories(path.read_text())
    path.write_text(json.dumps(found, indent=2))  # as jq does
    assert run("verify", FRIDAY, path, *names).exit_code == 0
    found["steps"][0]["message"] = "[redacted]"
    path.write_text(json.dumps(found))
    done = run("import", path, tmp_path / "b.db")
    assert done.exit_code == 0, done.stderr
    assert "have changed 1 trajector" in done.stderr
    assert said(tmp_path / "b.db")[0] == ("user", "user", "[redacted]")
    assert "Kyoto in November" not in json.dumps(said(tmp_path / "b.db")[0])


def test_atif_of_other_programs_is_steps(run: Run, tmp_path: Path) -> None:
    child = {**HARBOR, "trajectory_id": "helper", "steps": HARBOR["steps"][2:]}
    child["steps"] = [child["steps"][0] | {"step_id": 1}]
    path = written(tmp_path / "t.json", HARBOR | {"subagent_trajectories": [child]})
    assert run("import", path, tmp_path / "b.ndjson").exit_code == 0
    found = contents(str(tmp_path / "b.ndjson"))
    assert set(found) == {MemoryKey("", "kyoto"), MemoryKey("", "kyoto", "helper")}
    assert len(found[MemoryKey("", "kyoto", "helper")]) == 1
    values = [json.loads(one.message) for one in found[MemoryKey("", "kyoto")]]
    assert [(one["name"], one["role"]) for one in values] == [
        *(("user", "user"), ("terminus", "assistant"), ("system", "system"), ("system", "system")),
        *(("system", "system"), ("terminus", "assistant")),
    ]
    [text, image] = values[0]["content"]
    assert text["text"] == "When does my train leave?"
    assert image["source"] == {"type": "url", "url": "images/1.png"}
    assert [one["type"] for one in values[1]["content"]] == ["thinking", "tool_use", "tool_use"]
    assert values[1]["metadata"]["atif"] == {
        **{"metrics": {"prompt_tokens": 20}, "tool_calls": {"c2": {"extra": {"n": 1}}}},
    }
    assert values[2]["content"][0] | {"type": ""} == {
        **{"type": "", "id": "c2", "name": "find", "output": "12:00"},
    }
    assert values[4]["content"] == "The clock strikes."
    assert values[0]["metadata"]["atif"]["trajectory"]["agent"]["model_name"] == "m1"
    assert run("verify", path, tmp_path / "b.ndjson").exit_code == 0


def test_atif_in_a_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    unnamed = {name: value for name, value in HARBOR.items() if name != "session_id"}
    written(folder / "task" / "agent" / "trajectory.json", unnamed)
    written(folder / "more.jsonl", HARBOR, HARBOR | {"session_id": "osaka"})
    written(folder / "task" / "result.json", {"reward": 1})
    done = run("inspect", f"atif:{folder}", "--json")
    assert {one["session"] for one in report(done)["memories"]} == {
        *("kyoto", "osaka", "task/agent/trajectory"),
    }
    assert "1 files hold no trajectories" in done.stderr
    fails(run("inspect", folder), 8, "a trajectory of an agent (ATIF)")
    written(folder / "twice.jsonl", HARBOR)
    assert report(run("inspect", f"atif:{folder}", "--json"), 7)
    (folder / "more.jsonl").unlink()
    (folder / "twice.jsonl").unlink()
    (folder / "task" / "agent" / "trajectory.json").unlink()
    fails(run("inspect", f"atif:{folder}"), 8, "has no trajectory")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": "ATIF-v1.9"}, "the unknown version 'ATIF-v1.9'"),
        ({"steps": []}, "it has no steps"),
        ({"steps": [HARBOR["steps"][0], {"source": "robot"}]}, "step 2 has the source 'robot'"),
        ({"steps": [{"source": "user", "message": [{"type": "film"}]}]}, "step 1 has a part"),
        (
            {
                "steps": [
                    {
                        **{"source": "agent", "message": ""},
                        "observation": {"results": [{"source_call_id": "gone"}]},
                    }
                ]
            },
            "step 1 has a result of the call 'gone'",
        ),
        ({"steps": [{"source": "agent", "tool_calls": [{}]}]}, "step 1 has a tool call without"),
    ],
)
def test_atif_that_memctl_does_not_understand_is_named(
    run: Run, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    path = written(tmp_path / "t.jsonl", HARBOR | {"session_id": "osaka"}, HARBOR | change)
    target = tmp_path / "b.db"
    fails(run("import", path, target), 8, "line 2 of ", why)


def test_atif_is_only_read(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", HARBOR)
    before = path.read_bytes()
    for command in (("delete", path, "--all", "-y"), ("erase", path, "--session", "kyoto", "-y")):
        fails(run(*command), 2, "has trajectories, which memctl only reads")
    fails(run("migrate", FRIDAY, path), 2, "only reads")
    fails(run("migrate", FRIDAY, f"atif:{tmp_path}/new.jsonl"), 2, "only reads")
    assert path.read_bytes() == before


def test_atif_without_notes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert run("export", FRIDAY, "--as", "atif", "--clean", "-o", path).exit_code == 0
    assert '"memctl"' not in path.read_text()
    assert run("import", path, tmp_path / "b.db").exit_code == 0
