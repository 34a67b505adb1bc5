"""The real programs resume sessions that memctl restores or carries over, and send them whole."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
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
        said += parts_of(payload)
    return said


def parts_of(payload: dict[str, Any]) -> list[str]:
    """Return what a message, an item or a compaction of Codex says."""
    if (items := payload.get("replacement_history")) is not None:
        return [said for item in items for said in parts_of(item)]
    content = payload.get("content", payload.get("message"))
    parts = [{"text": content}] if isinstance(content, str) else content or [payload]
    return [said for part in parts if (said := said_in(part))]


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


@pytest.mark.parametrize("program", [Codex], indirect=True)
def test_codex_lists_no_deleted_session_and_names_it_again_after_an_undo(
    program: Codex, run: Run
) -> None:
    session, other = program.ask("My train is at nine."), program.ask("My tram is at ten.")
    [index] = program.path.glob("state_*.sqlite")
    with closing(sqlite3.connect(index)) as database, database:
        database.execute("UPDATE threads SET title = 'The train' WHERE id = ?", (session,))
    age(program.path)
    assert run("delete", program.store, "--session", session, "--yes").exit_code == 0
    assert program.listed() == {other}
    assert run("undo", "--yes").exit_code == 0
    assert program.listed() == {session, other}
    with closing(sqlite3.connect(index)) as database:
        found = database.execute("SELECT title FROM threads WHERE id = ?", (session,)).fetchone()
    assert found == ("The train",)


ID = "01a1f866-0d05-7111-8111-000000000001"


def rollout(program: Program, *lines: tuple[str, dict[str, Any]]) -> None:
    """Write a rollout as older versions of Codex do, whose lines have no numbers."""
    time = "2026-11-20T10:00:00.000Z"
    meta = {"id": ID, "timestamp": time, "cwd": "/", "originator": "x", "cli_version": "0.1"}
    folder = program.path / "sessions" / "2026" / "11" / "20"
    folder.mkdir(parents=True)
    (folder / f"rollout-2026-11-20T10-00-00-{ID}.jsonl").write_text(
        "".join(
            json.dumps({"timestamp": time, "type": kind, "payload": payload}) + "\n"
            for kind, payload in [("session_meta", meta), *lines]
        )
    )


def turn(text: str, answer: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a prompt and of its answer."""
    asked, said = {"type": "input_text", "text": text}, {"type": "output_text", "text": answer}
    return [
        ("event_msg", {"type": "user_message", "message": text, "images": []}),
        ("response_item", {"type": "message", "role": "user", "content": [asked]}),
        ("response_item", {"type": "message", "role": "assistant", "content": [said]}),
    ]


HISTORY = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Kept"}]}]


@pytest.mark.parametrize("program", [Codex], indirect=True)
@pytest.mark.parametrize(
    "line",
    [
        ("compacted", {"message": "They spoke of trains."}),
        ("compacted", {"message": "", "replacement_history": HISTORY}),
        ("event_msg", {"type": "thread_rolled_back", "num_turns": 1}),
    ],
    ids=["summary", "history", "rollback"],
)
def test_what_codex_takes_back_is_read_as_codex_does(
    program: Program, run: Run, line: tuple[str, dict[str, Any]]
) -> None:
    rollout(program, *turn("One", "1"), *turn("Two", "2"), line, *turn("Three", "3"))
    assert program.sent(ID) == context(run, program.store, ID)


def test_an_erase_leaves_no_text_of_the_session(program: Program, run: Run) -> None:
    other = program.ask("My tram is at ten.")
    session = program.ask("The password is xylophone.")
    program.ask("Say xylophone again", session)
    for log in ("history.jsonl", "session_index.jsonl"):
        lines = [{"sessionId": id, "session_id": id, "id": id} for id in (other, session)]
        (program.path / log).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    age(program.path)
    receipt = program.home / "receipt.json"
    result = run("erase", "--session", session, program.store, "--yes", "--receipt", receipt)
    assert result.exit_code == 0, result.stderr
    assert "forks of the session" in receipt.read_text()
    told = [path for path in program.home.rglob("*") if path.is_file()]
    assert not [path for path in told if b"xylophone" in path.read_bytes()]
    assert [path for path in told if b"My tram is at ten." in path.read_bytes()]
    assert other in (program.path / "history.jsonl").read_text()
    assert session not in (program.path / "history.jsonl").read_text()
    assert program.sent(other)[0] == "My tram is at ten."
