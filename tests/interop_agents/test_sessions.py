"""What memctl shows, brings back and carries over is what the real programs send."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.interop_agents.conftest import ClaudeCode, Codex, Program, said_in
from tests.support.cli import Run, report

DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "My train is at nine."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"train": 9}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Platform 4."},
    {"role": "assistant", "content": "Platform 4 at nine."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "See this"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}},
        ],
    },
    {"role": "assistant", "content": "A dot."},
]
SAID = ["My train is at nine.", 'look_up {"train": 9}', "Platform 4.", "Platform 4 at nine."]
SAID += ["See this", DOT, "A dot."]


def talked(program: Program) -> str:
    """Have a talk with two tool calls at once; return the id of the session."""
    if isinstance(program, Codex):
        call = 'CALL exec_command {"cmd": "echo h%d"}'
    else:
        call = 'CALL Bash {"command": "echo h%d", "description": "say"}'
    free = ("--dangerously-skip-permissions",) if isinstance(program, ClaudeCode) else ()
    session = program.ask("My train is at nine.")
    program.ask(f"{call % 1}\n{call % 2}", session, *free)
    program.ask("Which platform?", session)
    return session


def context(run: Run, store: str, session: str) -> list[str]:
    """Return what ``memctl context`` shows, without what the agent adds."""
    found = report(run("context", store, "--session", session, "--json"))
    said: list[str] = []
    for one in found["messages"]:
        line = one["message"]["content"]
        payload = line.get("payload", line.get("message"))
        if payload is None or payload.get("role") == "developer":
            continue
        content = payload.get("content")
        parts = [{"text": content}] if isinstance(content, str) else content or [payload]
        said += [text for part in parts if (text := said_in(part))]
    return said


def age(folder: Path) -> None:
    """Let the files seem to be of yesterday, so that no agent seems to be at work."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 86_400,) * 2)


def files(folder: Path) -> dict[str, bytes]:
    found = [*folder.rglob("*.jsonl"), *folder.glob("projects/**/*.*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_context_is_what_the_program_sends(program: Program, run: Run) -> None:
    session = talked(program)
    shown = context(run, program.store, session)
    assert len(shown) >= 8
    assert program.sent(session) == shown


def test_sessions_come_back_from_an_archive_after_retain(program: Program, run: Run) -> None:
    session = talked(program)
    age(program.path)
    before, sends = files(program.path), program.sent(session)
    age(program.path)
    config = program.home / "config.toml"
    config.write_text(
        f'[stores.agent]\nurl = "{program.store}"\n'
        f'[[retention]]\nname = "old"\nstore = "agent"\naction = "delete"\n'
        f'archive = "{program.home}/old-{{date}}.ndjson.zst"\nselect = {{ until = "2100-01-01" }}\n'
    )
    result = run("--config", config, "retain", "--yes")
    assert result.exit_code == 0, result.stderr
    assert not [name for name in files(program.path) if session in name]
    [archive] = program.home.glob("old-*")
    result = run("migrate", archive, program.store)
    assert result.exit_code == 0, result.stderr
    assert files(program.path) == before
    assert program.sent(session) == sends
    assert all(time.time() - path.stat().st_mtime < 60 for path in program.path.rglob("*.jsonl"))


def test_a_conversation_is_carried_over(program: Program, run: Run, tmp_path: Path) -> None:
    source = tmp_path / "talk.jsonl"
    source.write_text(json.dumps({"messages": TALK, "memctl": {"user": "ada", "session": "t"}}))
    target = f"{program.store}?project={program.project}"
    result = run("migrate", source, target)
    assert result.exit_code == 0, result.stderr
    [path] = [path for path in program.path.rglob("*.jsonl") if "history" not in path.name]
    session = path.stem[-36:]
    assert program.sent(session) == SAID
    assert run("verify", source, target).exit_code == 0


def test_a_running_session_is_left_alone(program: Program, run: Run) -> None:
    session = talked(program)
    result = run("delete", program.store, "--session", session, "--yes")
    assert result.exit_code == 7
    assert "an agent wrote it" in result.stdout
    assert [name for name in files(program.path) if session in name]


@pytest.mark.parametrize("program", [ClaudeCode], indirect=True)
def test_a_compaction_and_a_fork_are_read_as_claude_code_does(program: Program, run: Run) -> None:
    session = talked(program)
    program.ask("/compact", session)
    program.ask("After it", session)
    fork = program.ask("Another way", session, "--fork-session")
    for one in (session, fork):
        assert program.sent(one) == context(run, program.store, one)
    assert fork != session


def test_the_program_reads_its_session_after_an_undo(program: Program, run: Run) -> None:
    session = talked(program)
    sends = program.sent(session)
    age(program.path)
    before = files(program.path)
    assert run("delete", program.store, "--session", session, "--yes").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert files(program.path) == before
    assert program.sent(session) == sends
