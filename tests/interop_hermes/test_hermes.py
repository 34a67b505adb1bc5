"""Hermes resumes sessions that memctl restores or writes, and sends what memctl shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.hermes import HermesView
from memctl.dialects.view import ThinkingBlock, ToolCallBlock, ToolResultBlock
from tests.interop_hermes.conftest import Hermes
from tests.support.cli import FRIDAY, Run, in_process, report


@pytest.fixture
def run() -> Run:
    return in_process()


@pytest.fixture
def folder(hermes: Hermes, tmp_path: Path) -> Path:
    """A folder of Hermes with its own sessions."""
    found = tmp_path / "hermes"
    found.mkdir()
    hermes("write", found)
    return found


def sent_by_memctl(run: Run, folder: Path, session: str) -> list[dict[str, Any]]:
    """The context of a session, in the form of Hermes."""
    about = report(run("context", f"hermes:{folder}", "--session", session, "--json"))
    found = []
    for one in about["messages"]:
        view = HermesView(one["message"])
        message = {"role": view.document["role"], "content": view.stored_content}
        for block in view.blocks:
            match block:
                case ThinkingBlock(text):
                    message["reasoning_content"] = text
                case ToolCallBlock():
                    message.setdefault("tool_calls", []).append(block.value)
                case ToolResultBlock(id, name):
                    message |= {"tool_call_id": id, "tool_name": name}
        found.append(message)
    return found


def sent_by_hermes(hermes: Hermes, folder: Path) -> dict[str, list[dict[str, Any]]]:
    compared = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "tool_name")
    return {
        session: [{name: one[name] for name in compared if name in one} for one in messages]
        for session, messages in hermes("read", folder).items()
    }


def test_hermes_sends_the_context(run: Run, hermes: Hermes, folder: Path) -> None:
    found = sent_by_hermes(hermes, folder)
    assert sorted(found) == ["s1", "s2", "s3"]
    for session, messages in found.items():
        assert sent_by_memctl(run, folder, session) == messages


def test_hermes_resumes_what_memctl_put_back(
    run: Run, hermes: Hermes, folder: Path, tmp_path: Path
) -> None:
    before, store, archive = hermes("read", folder), f"hermes:{folder}", tmp_path / "a.ndjson"
    assert run("export", store, "-o", archive).exit_code == 0
    assert run("delete", store, "--session", "s1", "--yes").exit_code == 0
    assert sorted(hermes("read", folder)) == ["s2", "s3"]
    assert run("undo", "--yes").exit_code == 0
    assert hermes("read", folder) == before
    assert run("delete", store, "--all", "--yes").exit_code == 0
    assert run("import", archive, store).exit_code == 0
    assert hermes("read", folder) == before


def test_hermes_finds_the_sessions_of_a_moved_folder(
    run: Run, hermes: Hermes, folder: Path
) -> None:
    store, before = f"hermes:{folder}", hermes("read", folder)
    hermes("work", folder, session="s3", cwd="/srv/shop/app", root="/srv/shop")
    hermes("work", folder, session="s1", cwd="/srv/shoptalk", root="/srv/shoptalk")
    there = hermes("list", folder, cwd="/srv/shop")
    assert there[0].keys() == {"s2", "s3"}
    done = run("rename", store, "--project", "/srv/shop", "/home/märket 😀", "--yes", "--json")
    new = "/home/märket 😀"
    assert hermes("list", folder, cwd="/srv/shop")[0] == {}
    assert hermes("list", folder, cwd=new) == [
        {"s2": [new, None], "s3": [f"{new}/app", new]},
        [new, f"{new}/app", "/srv/shoptalk"],
    ]
    assert hermes("read", folder) == before
    assert run("undo", report(done)["run"], "--json").exit_code == 0
    assert hermes("list", folder, cwd="/srv/shop") == there


def test_hermes_imports_what_memctl_wrote(
    run: Run, hermes: Hermes, folder: Path, tmp_path: Path
) -> None:
    path, new = tmp_path / "sessions.json", tmp_path / "new"
    new.mkdir()
    assert run("export", f"hermes:{folder}", "--as", "hermes", "-o", path).exit_code == 0
    done = hermes("import", new, sessions=json.loads(path.read_text()))
    assert (done["imported"], done["errors"]) == (3, [])
    assert hermes("read", new) == hermes("read", folder)
    done = run("export", FRIDAY, "--as", "hermes", "-o", path, "--force", "--lossy")
    assert done.exit_code == 0, done.stderr
    assert hermes("import", new, sessions=json.loads(path.read_text()))["imported"] == 1
    sent = sent_by_hermes(hermes, new)["friday"]
    assert [one["role"] for one in sent][:4] == ["user", "user", "assistant", "tool"]
