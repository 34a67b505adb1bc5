"""The real programs go on with their sessions in a folder that was moved."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop_agents.conftest import ClaudeCode, Program
from tests.interop_agents.test_opencode import OpenCode
from tests.interop_agents.test_opencode import context as opencode_context
from tests.interop_agents.test_sessions import age, context, files
from tests.support.agent_server import AgentServer
from tests.support.cli import Run, report

LARGE = 'CALL Bash {"command": "seq 1 20000", "description": "count"}'


@contextmanager
def as_it_is(folder: Path) -> Iterator[None]:
    """Put back the files that a program changes within the block."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield
    for path in folder.rglob("*"):
        if path.is_file() and path not in before:
            path.unlink()
    for path, data in before.items():
        path.write_bytes(data)


def latest(program: Program) -> list[str]:
    """Return what a program sends of the latest session of the folder that it runs in."""
    with as_it_is(program.path):
        if isinstance(program, ClaudeCode):
            program.run("-p", "And now?", "--continue", "--output-format", "json")
        else:
            program.run("exec", "--skip-git-repo-check", "--json", "resume", "--last", "And now?")
        found = program.texts(program.server.requests[-1])
    assert found.pop() == "And now?"
    return found


def test_the_program_goes_on_in_the_moved_folder(program: Program, run: Run) -> None:
    free = ("--dangerously-skip-permissions",) if isinstance(program, ClaudeCode) else ()
    session = program.ask("My train is at nine.")
    if isinstance(program, ClaudeCode):
        program.ask(LARGE, session, *free)
    program.ask("Which platform?", session)
    age(program.path)
    before, moved = files(program.path), program.home / ("work-" * 40) / "my.märket😀"
    old = program.project
    moved.parent.mkdir()
    program.project = old.rename(moved)
    found = report(run("rename", program.store, "--project", old, moved, "--yes", "--json"))
    assert found["memories"]["written"] == 1
    sent = latest(program)
    assert sent == program.sent(session) == context(run, program.store, session)
    assert sent[0] == "My train is at nine."
    for said in (one for one in sent if "Full output saved to: " in one):
        place = said.partition("Full output saved to: ")[2].splitlines()[0]
        assert Path(place).read_text().endswith("20000\n")
    age(program.path)
    report(run("undo", found["run"], "--json"))
    assert files(program.path) == before
    program.project = moved.rename(old)
    assert program.sent(session) == context(run, program.store, session)


@pytest.mark.parametrize("versioned", [False, True], ids=["folder", "git"])
def test_opencode_goes_on_in_the_moved_folder(
    run: Run, server: AgentServer, tmp_path: Path, versioned: bool
) -> None:
    opencode = OpenCode(tmp_path / "home", server)
    if versioned:
        commit = "git -c user.email=a@example.com -c user.name=a commit -q --allow-empty -m x"
        subprocess.run(f"git init -q && {commit}", shell=True, check=True, cwd=opencode.project)
    session = opencode.ask("My train is at nine.")
    opencode.age()
    old, moved = opencode.project, tmp_path / "market"
    opencode.project = old.rename(moved)
    report(run("rename", opencode.store, "--project", old, moved, "--yes", "--json"))
    sent = opencode.sent(session)
    assert sent == opencode.sent("", "--continue") == opencode_context(run, opencode.store, session)
    assert sent[0] == "My train is at nine."
