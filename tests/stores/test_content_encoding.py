"""Tables whose texts are JSON, as the class of AgentScope's guide writes them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.stores.test_tables import GUIDE, MAPPING, dump, execute, url
from tests.support.cli import contents, fails, report

INSERT = "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', ?, 1e9)"
TEXTS = ["hello", '[{"type": "text"}]', '"quoted"', "", "12", "né"]


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.db"
    execute(path, GUIDE)
    return path


@pytest.fixture
def chat(tmp_path: Path) -> str:
    path = tmp_path / "s.jsonl"
    said = [{"role": "user", "content": one} for one in TEXTS]
    path.write_text(json.dumps({"messages": said}))
    return str(path)


def test_an_empty_table_asks_how_its_program_reads(run: Any, empty: Path, chat: str) -> None:
    for more in ("--lossy", "--dry-run"), ("--lossy",):
        asked = 'content_encoding = "text" or "json"'
        fails(run("migrate", chat, url(empty), *more), 9, "json.loads", asked)
    assert dump(empty) == []


@pytest.mark.parametrize("encoding", ["json", "text"])
def test_contents_are_written_as_the_mapping_says(
    run: Any, empty: Path, chat: str, encoding: str
) -> None:
    place = url(empty, more=f"&content_encoding={encoding}")
    assert run("migrate", chat, place, "--lossy").exit_code == 0
    stored = [row[3] for row in dump(empty)]
    if encoding == "json":
        stored = list(map(json.loads, stored))
    block = [{"type": "text", "text": TEXTS[1]}]  # else it would be read as blocks
    assert stored == [TEXTS[0], json.dumps(block) if encoding == "text" else block, *TEXTS[2:]]
    for option in (place, url(empty)) if encoding == "json" else (place,):
        found = [json.loads(one.message)["content"] for one in contents(option).popitem()[1]]
        assert found == [TEXTS[0], block, *TEXTS[2:]]


def test_an_alias_says_it(
    run: Any, empty: Path, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    columns = ", ".join(f'{role} = "{name}"' for role, _, name in map(_pair, MAPPING.split(",")))
    about = f'layout = "table"\ntable = "messages"\ncolumns = {{ {columns} }}\n'
    about = f'[stores.guide]\nurl = "{empty}"\n{about}content_encoding = "json"\n'
    config.write_text(about)
    assert run("migrate", chat, "guide", "--lossy").exit_code == 0
    assert json.loads(dump(empty)[0][3]) == "hello"
    config.write_text(about.replace('"json"', '"yaml"'))
    fails(run("inspect", "guide"), 2, "content_encoding=yaml", "text, json")


def _pair(text: str) -> tuple[str, str, str]:
    return text.partition(":")


def test_detect_prints_what_the_rows_show(run: Any, empty: Path) -> None:
    for texts, encoding in (([], None), (['"a"', '[{"type": "text"}]'], "json"), (["a"], "text")):
        execute(empty, "DELETE FROM messages")
        execute(empty, INSERT, [(one,) for one in texts])
        [found] = report(run("stores", "detect", str(empty), "--json"))["tables"]
        assert found["content_encoding"] == encoding
        [alias] = tomllib.loads(found["toml"])["stores"].values()
        assert alias["content_encoding"] == (encoding or "text")
        assert ('# "json" if' in found["toml"]) == (encoding is None)


def test_what_the_mapping_says_is_right_or_an_error(run: Any, empty: Path) -> None:
    execute(empty, INSERT, [("plain",)])
    text = run("inspect", url(empty, more="&content_encoding=json"))
    fails(text, 8, "not JSON")
    fails(run("inspect", url(empty, more="&content_encoding=json&dialect=langchain")), 2)


def test_rows_show_it_where_the_mapping_does_not(run: Any, empty: Path, chat: str) -> None:
    """As do those that a deletion left, when it is undone."""
    execute(empty, INSERT, [('"first"',)])
    assert run("migrate", chat, url(empty), "--lossy").exit_code == 0
    before = dump(empty)
    assert [json.loads(row[3]) for row in before][:2] == ["first", "hello"]
    assert run("delete", url(empty), "--all", "-y").exit_code == 0
    assert run("undo", "--store", url(empty), "-y").exit_code == 0
    assert dump(empty) == before


def test_undo_tells_null_from_no_content(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    execute(path, GUIDE.replace("content TEXT NOT NULL", "content TEXT"))
    execute(path, INSERT, [(None,), ("null",), ('"text"',)])
    before, place = dump(path), url(path, more="&content_encoding=json")
    assert run("delete", place, "--all", "-y").exit_code == 0
    assert run("undo", "--store", place, "-y").exit_code == 0
    assert dump(path) == before
