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
from tests.support.cli import FRIDAY, add, contents, fails, fill, report

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


@pytest.mark.slow
def test_export_and_import_are_exact(run: Any, store: str, tmp_path: Path) -> None:
    """Ids, times, marks, tools and values that JSON lacks come back."""
    file, back = tmp_path / "all.jsonl", str(tmp_path / "back.db")
    assert run("export", store, "-o", str(file), "--lossy").exit_code == 0
    assert run("import", str(file), back).exit_code == 0
    assert run("verify", store, back).exit_code == 0
    assert contents(back).keys() == {ADA, BOB}


def test_each_conversation_validates_as_the_sdk_has_it(
    run: Any, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    assert run("export", store, "--as", "openai", "-o", str(file), "--lossy").exit_code == 0
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


def keys_of(value: Any) -> set[str]:
    """The keys of all objects in a value."""
    if isinstance(value, list):
        return {key for one in value for key in keys_of(one)}
    return {*value, *keys_of(list(value.values()))} if isinstance(value, dict) else set()


def test_a_clean_export_has_only_the_keys_of_openai(run: Any, tmp_path: Path) -> None:
    whole, clean = tmp_path / "whole.jsonl", tmp_path / "clean.jsonl"
    assert run("export", FRIDAY, "-o", whole).exit_code == 0
    result = run("export", FRIDAY, "--clean", "-o", clean)
    assert result.exit_code == 0, result.stderr
    assert "--clean left out what only memctl reads: ids, times, marks or notes" in result.stderr
    assert "no place for summaries: the first message of 1 memory is the summary" in result.stderr
    [found] = lines(clean)
    assert found.keys() == {"messages"}
    assert "memctl" not in keys_of(found)
    CHECKED.validate_python(found["messages"])
    [other] = lines(whole)
    for message in other["messages"]:
        message.pop("memctl", None)
    assert found["messages"] == other["messages"]
    assert clean.stat().st_size < whole.stat().st_size / 2
    dry = report(run("export", FRIDAY, "--clean", "-o", tmp_path / "x.jsonl", "-n", "--json"))
    assert [one["kind"] for one in dry["losses"]] == ["details"]


@pytest.mark.slow
def test_a_clean_export_of_other_kinds_has_no_notes(run: Any, store: str, tmp_path: Path) -> None:
    chats = f"sqlite:///{tmp_path}/chats.db?layout=langchain"
    done = run("migrate", store, chats, "--session", BOB.session, "--lossy")
    assert done.exit_code == 0, done.stderr
    training = tmp_path / "training.jsonl"
    training.write_text('{"messages": [{"role": "user", "content": "Hi", "weight": 1}]}\n')
    names = {"state-dict": "a.json", "session-dir": "folder", "csv": "a.csv", "atif": "a.jsonl"}
    had_notes = set()
    for number, source in enumerate((chats, training)):
        for kind, name in names.items():
            folder = tmp_path / f"{number}-{kind}"
            folder.mkdir()
            whole, clean = folder / f"whole-{name}", folder / name
            assert run("export", source, "--as", kind, "-o", whole).exit_code == 0
            if b"memctl" in content(whole):
                had_notes.add(kind)
            result = run("export", source, "--as", kind, "--clean", "-o", clean)
            assert result.exit_code == 0, result.stderr
            assert b"memctl" not in content(clean)
            assert ("--clean left out" in result.stderr) == (content(whole) != content(clean))
    assert had_notes == names.keys()
    for kind in ("archive", "markdown"):
        fails(run("export", training, "--as", kind, "--clean"), 2, f"--clean does not fit {kind}")


def content(path: Path) -> bytes:
    """The bytes of a file, or of all files of a folder."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return b"".join(file.read_bytes() for file in files)


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
        (b"[]", "not one with a list of messages"),
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


@pytest.mark.slow
def test_what_is_in_a_file_is_not_changed(run: Any, store: str, tmp_path: Path) -> None:
    """More conversations may follow those that are there."""
    file = tmp_path / "all.jsonl"
    assert run("export", store, "--session", BOB.session, "-o", str(file)).exit_code == 0
    first = file.read_bytes()
    selected = (str(file), "--session", BOB.session)
    for command in (
        ("delete", *selected, "--yes"),
        ("mark", "add", *selected, "seen"),
        ("compress", *selected, "--mode", "message"),
        ("offload", *selected, "--to", str(tmp_path / "blobs"), "--yes"),
        ("rehydrate", *selected, "--from", str(tmp_path / "blobs")),
        ("erase", *selected, "--yes"),
        ("doctor", *selected, "--repair", "--yes"),
    ):
        for choice in ((), ("--dry-run",)):
            fails(run(*command, *choice), 2, "written once", "import the file into a store")
    assert file.read_bytes() == first
    assert not (tmp_path / "blobs").exists()
    report(run("migrate", store, str(file), "--lossy", "--dry-run", "--json"))
    moved = report(run("migrate", store, str(file), "--lossy", "--json"))
    assert moved["memories"] == {**moved["memories"], "written": 1, "unchanged": 1}
    assert report(run("history", "--json"))["runs"] == []
    assert file.read_bytes().startswith(first)
    fails(run("export", store, "-o", str(file)), 2, "--force")


@pytest.mark.slow
@pytest.mark.parametrize("conflict", ["fail", "append", "replace"])
def test_dry_run_into_a_file_tells_what_a_copy_refuses(
    run: Any, store: str, tmp_path: Path, conflict: str
) -> None:
    """A conversation that has grown is left as it is, and others are added."""
    file = tmp_path / "all.jsonl"
    assert run("export", store, "--session", BOB.session, "-o", str(file)).exit_code == 0
    add(store, BOB, samples.entries(1, 3), 3)
    copy = ("migrate", store, str(file), "--on-conflict", conflict, "--lossy", "--json")
    planned = run(*copy, "--dry-run")
    assert "were done" not in planned.stderr
    done = run(*copy, "--yes")
    assert "meanwhile" not in done.stderr
    for found in (report(planned, 7), report(done, 7)):
        [failure] = found["failures"]
        assert (failure["code"], failure["session"]) == ("refused", BOB.session)
        assert found["memories"] == {**found["memories"], "written": 1, "unchanged": 0}
    assert [one["memctl"]["session"] for one in lines(file)] == [BOB.session, ADA.session]


TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
FULL = {
    "messages": [
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": "two", "weight": 0},
    ],
    "tools": TOOLS,
    "parallel_tool_calls": False,
}
OLD = {"messages": [{"role": "user", "content": "hi"}], "functions": [{"name": "ls"}]}
LAST = {"messages": [{"role": "user", "content": "hi"}], "metadata": {"k": float("nan")}}


def _about(path: Path) -> list[Any]:
    """Return the lines without what memctl adds."""
    found = lines(path)
    for line in found:
        del line["memctl"]
        line["messages"] = [
            {name: one for name, one in message.items() if name != "memctl"}
            for message in line["messages"]
        ]
    return found


@pytest.mark.parametrize(
    "middle", [None, "a.ndjson", "old.db", "new.db?layout=agentscope2", "sessions/"]
)
def test_keys_of_a_line_are_kept(run: Any, tmp_path: Path, middle: str | None) -> None:
    first, last = tmp_path / "first.jsonl", tmp_path / "last.jsonl"
    first.write_text("".join(json.dumps(line) + "\n" for line in (FULL, OLD, LAST)))
    source = str(first)
    if middle is not None:
        place = f"{tmp_path}/{middle}"
        target = f"sqlite:///{place}" if "?" in middle else place
        assert run("migrate", source, target).exit_code == 0
        source = target
    result = run("migrate", source, last)
    assert result.exit_code == 0, result.stderr
    assert repr(_about(last)) == repr([FULL, OLD, LAST])
    assert run("verify", first, last).exit_code == 0


def test_keys_of_a_line_are_a_loss_where_nothing_holds_them(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "first.jsonl"
    path.write_text(json.dumps(FULL) + "\n")
    target = f"sqlite:///{tmp_path}/a.db?layout=openai-agents"
    fails(run("migrate", path, target), 9, "cannot store details of messages: ids, names, marks")
    path.write_text(json.dumps({"messages": [], "tools": TOOLS}) + "\n")
    fails(run("migrate", path, tmp_path / "old.db"), 9, "settings of sessions")


def test_lines_of_windows_are_read(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    text = "\r\n".join(json.dumps(line) for line in (FULL, OLD)) + "\r\n\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert report(run("inspect", path, "--json"))["totals"]["memories"] == 2
    assert run("doctor", path).exit_code == 0
    plain = tmp_path / "plain.jsonl"
    plain.write_text(f"{json.dumps(FULL)}\n{json.dumps(OLD)}\n")
    assert run("verify", path, plain).exit_code == 0
    assert run("migrate", path, tmp_path / "copy.jsonl").exit_code == 0


def test_lines_of_something_else_are_named(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    first = json.dumps(OLD) + "\n"
    path.write_text(first + json.dumps({"conversations": []}) + "\n")
    fails(run("inspect", path), 8, "line 2 of", "is ShareGPT conversations")
    path.write_text(first + json.dumps({"kind": 1, "when": 2}) + "\n")
    fails(run("inspect", path), 8, "an object with the keys 'kind', 'when'", '{"messages":')
    path.write_text(first + json.dumps({"messages": [{"content": "who?"}]}) + "\n")
    fails(run("inspect", path), 8, "line 2 of", "a message has no role")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a.txt"])
def test_other_encodings_are_named(run: Any, tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    talk = {"messages": [{"role": "user", "content": "d\xe9j\xe0 vu"}]}
    path.write_bytes(json.dumps(talk, ensure_ascii=False).encode(encoding))
    said = "another encoding than UTF-8" if encoding == "latin-1" else f"a text in {encoding[:6]}"
    fails(run("inspect", path), 8, said.replace("utf", "UTF"), "iconv -f")


@pytest.mark.parametrize("words", [["inspect", "--messages"], ["export", "--as", "html"]])
def test_results_without_a_name_are_shown_with_that_of_their_call(
    run: Any, tmp_path: Path, words: list[str]
) -> None:
    """A tool message of OpenAI names only the id of the call."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "eight degrees"},
        {"role": "tool", "tool_call_id": "c9", "content": "no call"},
    ]
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": said}) + "\n")
    shown = run(words[0], str(file), *words[1:]).stdout
    assert shown.count("weather") == 2
    markdown = run("export", str(file), "--as", "markdown").stdout
    assert markdown.count("weather") == 2
    context = run("context", str(file)).stdout
    assert context.count("weather") == 2
