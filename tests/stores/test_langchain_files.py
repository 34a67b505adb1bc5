"""The files of LangChain's ``FileChatMessageHistory``: names, and what is no history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import fails, report


def human(text: str) -> dict[str, Any]:
    return {"type": "human", "data": {"content": text, "type": "human", "id": None}}


def chats(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "histories"
    folder.mkdir()
    for name in "kyoto", "osaka 会话", "empty":
        some = [human(f"about {name}")] if name != "empty" else []
        (folder / f"{name}.json").write_text(json.dumps(some))
    (folder / "notes.txt").write_text("mine")
    return folder


def test_langchain_files_are_sessions(run: Any, folder: Path) -> None:
    found = report(run("inspect", f"langchain:{folder}", "--json"))
    assert {one["session"]: one["messages"] for one in found["memories"]} == {
        "empty": 0,
        "kyoto": 1,
        "osaka 会话": 1,
    }
    one = report(run("inspect", f"langchain:{folder}/kyoto.json?session=trip", "--json"))
    assert [memory["session"] for memory in one["memories"]] == ["trip"]


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "x" * 251, "a\\b"])
def test_langchain_files_refuse_names_of_no_file(
    run: Any, folder: Path, tmp_path: Path, name: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = {"messages": [{"role": "user", "content": "x"}], "memctl": {"session": name}}
    source = chats(tmp_path / "a.jsonl", said)
    fails(
        run("import", source, f"langchain:{folder}"),
        7,
        "no file can have the name" if not name else "its name ",
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_langchain_names_what_no_file_name_has_and_a_way_out(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    said = {"messages": [{"role": "user", "content": "x"}], "memctl": {"session": "a/b c?"}}
    source = chats(tmp_path / "a.jsonl", said)
    way = "session=a%2Fb%20c%3F"
    fails(run("import", source, f"langchain:{folder}"), 7, "its name has '/'", f"FILE.json?{way}")
    single = f"langchain:{tmp_path}/one.json?{way}"
    assert run("import", source, single).exit_code == 0
    assert [one["session"] for one in report(run("inspect", single, "--json"))["memories"]] == [
        "a/b c?"
    ]


def test_langchain_file_holds_one_session(run: Any, tmp_path: Path) -> None:
    said = [
        {"messages": [{"role": "user", "content": "x"}], "memctl": {"session": name}}
        for name in ("one", "two")
    ]
    source = chats(tmp_path / "a.jsonl", *said)
    fails(run("import", source, f"langchain:{tmp_path}/one.json"), 7, "holds one session, 'one'")
    [written] = json.loads((tmp_path / "one.json").read_text())
    assert written["data"]["content"] == "x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"agent": {}}', "holds no list of messages"),
        (b'[{"type": "human"', "holds no JSON"),
        (b"[5]", "holds at index 0 is no message of LangChain: its content is not a JSON object"),
        (b"\xff", "holds no JSON"),
        (b"[" * 5000, "holds no JSON"),
    ],
)
def test_langchain_files_name_what_is_damaged(
    run: Any, folder: Path, text: bytes, reason: str
) -> None:
    """The others are read."""
    (folder / "kyoto.json").write_bytes(text)
    found = run("inspect", f"langchain:{folder}", "--json")
    assert {one["session"] for one in report(found, 7)["memories"]} == {"empty", "osaka 会话"}
    assert reason in found.stderr
    checked = report(run("doctor", f"langchain:{folder}", "--json"), 6)
    assert "damaged-state" in {one["code"] for one in checked["findings"]}


def test_langchain_files_are_erased_with_their_names(run: Any, folder: Path) -> None:
    args = ("--user", "", "--session", "kyoto", "--yes")
    assert run("erase", f"langchain:{folder}", *args).exit_code == 0
    assert {path.name for path in folder.iterdir()} == {
        "osaka 会话.json",
        "empty.json",
        "notes.txt",
    }


def test_langchain_files_of_one_user(run: Any, folder: Path, tmp_path: Path) -> None:
    owned = report(run("inspect", f"langchain:{folder}?owner=ada", "--json"))
    assert {one["user"] for one in owned["memories"]} == {"ada"}
    target = f"langchain:{tmp_path}/copy"
    fails(run("migrate", f"langchain:{folder}?owner=ada", target), 7, "add ?owner=ada to the URL")
    copied = run("migrate", f"langchain:{folder}?owner=ada", f"{target}?owner=ada")
    assert copied.exit_code == 0
    assert (tmp_path / "copy" / "kyoto.json").exists()


def test_langchain_files_that_are_not_there(run: Any, tmp_path: Path) -> None:
    fails(run("inspect", f"langchain:{tmp_path}/no"), 4)
    fails(run("inspect", f"langchain:{tmp_path}/no.json"), 4)
    fails(run("migrate", "x.db", f"langchain:{tmp_path}/no/more"), 4)


def test_langchain_file_that_is_nested_too_deep_is_left_out(run: Any, folder: Path) -> None:
    text = json.dumps([human("TEXT")]).replace('"TEXT"', "[" * 1010 + "]" * 1010)
    (folder / "kyoto.json").write_text(text)
    result = run("inspect", f"langchain:{folder}", "--json")
    sessions = {one["session"] for one in report(result, 7)["memories"]}
    assert sessions == {"empty", "osaka 会话"}
    assert "at index 0 is nested too deep" in result.stderr
