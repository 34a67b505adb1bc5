"""Messages without a time: no selection by time matches them, and each report counts them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.support.cli import contents, fill, report
from tests.support.histories import entries, said

WARNING = "3 messages without a time: a selection by time leaves out such messages"
PLACES = {
    "sqlite": "sqlite:///{}/there.db",
    "agentscope2": "sqlite:///{}/there.db?layout=agentscope2",
    "langchain": "sqlite:///{}/there.db?layout=langchain",
    "openai-agents": "sqlite:///{}/there.db?layout=openai-agents",
    "llamaindex": "sqlite:///{}/there.db?layout=llamaindex",
    "adk": "sqlite:///{}/there.db?layout=adk&app=a",
    "agno": "sqlite:///{}/there.db?layout=agno",
    "langchain-files": "langchain:{}/there",
    "session-folder": "{}/there",
    "archive": "{}/there.ndjson",
}


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A conversation of which the second of four messages has a time."""
    said: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": f"text {number}"}
        for number in range(4)
    ]
    said[1]["memctl"] = {"time": "2025-03-01T12:00:00+00:00"}
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": said, "memctl": {"session": "s"}}))
    return path


@pytest.fixture
def store(run: Any, chat: Path, tmp_path: Path) -> str:
    place = str(tmp_path / "agents.db")
    assert run("import", chat, place).exit_code == 0
    return place


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "--dry-run"),
        ("delete", "-y"),
        ("mark", "add", "old"),
        ("inspect",),
        ("inspect", "--messages"),
        ("inspect", "--by", "day"),
        ("export", "--as", "archive", "-o", "a.ndjson"),
        ("export", "--as", "markdown", "-o", "a.md"),
        ("migrate", "there.db"),
        ("migrate", "there.db", "--dry-run"),
        ("compress", "--dry-run"),
    ],
)
def test_each_report_counts_them(
    run: Any, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *more = words
    more[1:1] = [store] if command == "mark" else []
    more[:0] = [store] if command != "mark" else []
    found = report(run(command, *more, "--older-than", "7d", "--json"))
    assert found["untimed"] == 3
    assert WARNING in found["warnings"]


def test_only_those_that_are_selected_otherwise_count(run: Any, store: str) -> None:
    words = ("delete", store, "--older-than", "7d", "--dry-run", "--json")
    assert report(run(*words, "--role", "user"))["untimed"] == 2
    assert report(run(*words, "--match", "text 3"))["untimed"] == 1
    assert "untimed" not in report(run(*words, "--match", "text 1"))
    assert "untimed" not in report(run("delete", store, "--all", "--dry-run", "--json"))


@pytest.mark.parametrize("kind", PLACES)
def test_they_stay_without_a_time_wherever_they_go(
    run: Any, chat: Path, tmp_path: Path, kind: str
) -> None:
    """And come back as they were."""
    chat.write_text(chat.read_text().replace('"memctl": {"time"', '"memctl": {"was"'))
    place, back = PLACES[kind].format(tmp_path), tmp_path / "back.jsonl"
    assert run("migrate", chat, place, "--lossy").exit_code == 0
    for age in ("--older-than", "--newer-than"):
        found = report(run("inspect", place, age, "0s", "--json"))
        assert (found["totals"]["messages"], found["untimed"]) == (0, 4)
    assert report(run("inspect", place, "--json"))["totals"]["first"] is None
    for found_there in contents(place).values():
        assert not [one for one in found_there if b"1970" in one.message]
    assert run("migrate", place, back).exit_code == 0
    if kind != "openai-agents":  # whose items have no ids
        assert run("verify", chat, back).exit_code == 0
    assert '"time"' not in back.read_text()


def test_a_search_counts_what_it_finds_and_leaves_out(run: Any, store: str) -> None:
    words = ("search", store, "text", "--json")
    assert len(report(run(*words))["hits"]) == 4
    found = report(run(*words, "--older-than", "7d"))
    assert (len(found["hits"]), found["untimed"]) == (1, 3)
    assert report(run(*words, "--older-than", "7d", "--role", "user"))["untimed"] == 2


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--newer-than", "7d"),
        ("inspect", "--messages"),
        ("context",),
        ("doctor",),
        ("report",),
        ("delete", "--older-than", "7d", "--dry-run"),
    ],
)
def test_a_time_that_no_local_clock_can_show_is_none(
    run: Any, database: str, words: tuple[str, ...], time: str
) -> None:
    message, marks = said("m", "hello")
    message["timestamp"] = time
    asyncio.run(fill(database, {MemoryKey("ada", "kyoto"): entries([(message, marks)])}))
    found = report(run(words[0], database, *words[1:], "--json"))
    if "7d" in words:
        assert found["untimed"] == 1
    if words == ("report",):
        assert found["totals"]["without_time"] == 1


def test_a_report_shows_no_text_that_is_not_a_time(run: Any, tmp_path: Path, database: str) -> None:
    """And a memory with such a text has the times of its other messages."""
    found = [said("m1", "hello"), said("m2", "hello")]
    found[1][0]["timestamp"] = "zanzibar"
    asyncio.run(fill(database, {MemoryKey("ada", "kyoto"): entries(found)}))
    page = tmp_path / "r.html"
    told = report(run("report", database, "--json", "-o", page))
    assert told["totals"]["last"] == told["idle"][0]["last"] == found[0][0]["timestamp"]
    assert "zanzibar" not in page.read_text()
