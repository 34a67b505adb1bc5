"""Conversations as OpenAI chat messages: exported, checked by the SDK, imported again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import ConfigDict, TypeAdapter

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import contents, fails, fill, report

ADA, BOB = MemoryKey("ada", "kyoto: *-/😀"), MemoryKey("", "x")
CHECKED = TypeAdapter(list[ChatCompletionMessageParam], config=ConfigDict(strict=False))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Two memories, with all that makes messages hard."""
    place = str(tmp_path / "agents.db")
    asyncio.run(fill(place, {ADA: list(samples.nasty_entries()), BOB: samples.entries(3)}))
    return place


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def test_export_and_import_are_exact(run: Any, store: str, tmp_path: Path) -> None:
    """Ids, times, marks, tools and values that JSON lacks come back."""
    file, back = tmp_path / "all.jsonl", str(tmp_path / "back.db")
    assert run("export", store, "-o", str(file)).exit_code == 0
    assert run("import", str(file), back).exit_code == 0
    assert run("verify", store, back).exit_code == 0
    assert contents(back).keys() == {ADA, BOB}


def test_each_conversation_validates_as_the_sdk_has_it(
    run: Any, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    assert run("export", store, "--as", "openai", "-o", str(file)).exit_code == 0
    found = lines(file)
    assert [one["memctl"]["session"] for one in found] == [ADA.session, BOB.session]
    for one in found:
        for message in CHECKED.validate_python(one["messages"]):
            list(message.get("tool_calls") or [])  # they are checked as they are read
    call, result = (
        message
        for message in found[0]["messages"]
        if message.get("tool_calls") or message["role"] == "tool"
    )
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"q": ["a", {"b": None}]}
    assert result["tool_call_id"] == call["tool_calls"][0]["id"] == "t1"


def test_lines_of_a_training_file_are_sessions(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    told = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    file.write_text(f"{json.dumps({'messages': told})}\n\n{json.dumps({'messages': told[:1]})}\n")
    found = report(run("inspect", str(file), "--json"))
    assert [(one["session"], one["messages"]) for one in found["memories"]] == [
        ("000001", 2),
        ("000003", 1),
    ]
    agents = str(tmp_path / "agents.db")
    assert run("import", str(file), agents).exit_code == 0
    assert "Hello" in run("context", agents, "--session", "000001").stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"messages": [{"role": "us', "line 2 of"),
        (b"[]", "no list of messages"),
        (b'{"messages": ["hello"]}', "not a JSON object"),
        (b'{"messages": [], "memctl": {"session": 5}}', "not texts"),
        (b"\xff\xfe", "line 2 of"),
    ],
)
def test_a_damaged_line_stops_the_import(run: Any, tmp_path: Path, line: bytes, said: str) -> None:
    file = tmp_path / "half.jsonl"
    file.write_bytes(b'{"messages": [{"role": "user", "content": "Hi"}]}\n' + line + b"\n")
    fails(run("import", str(file), str(tmp_path / "agents.db")), 8, said)
    assert not contents_or_nothing(tmp_path / "agents.db")


def contents_or_nothing(path: Path) -> Any:
    return contents(str(path)) if path.exists() else {}


def test_what_is_in_a_file_is_not_changed(run: Any, store: str, tmp_path: Path) -> None:
    """More conversations may follow those that are there."""
    file = tmp_path / "all.jsonl"
    assert run("export", store, "--session", BOB.session, "-o", str(file)).exit_code == 0
    first = file.read_bytes()
    result = run("delete", str(file), "--role", "user", "-y")
    fails(result, 7, "written once", "see the report for each")
    assert "were done" not in result.stderr
    assert file.read_bytes() == first
    moved = report(run("migrate", store, str(file), "--json"))
    assert moved["memories"] == {**moved["memories"], "written": 1, "unchanged": 1}
    assert file.read_bytes().startswith(first)
    fails(run("export", store, "-o", str(file)), 2, "--force")
