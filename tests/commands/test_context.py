"""``memctl context``: what the model of an agent is sent."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from tests.support.backends import OF_AGENTSCOPE2, params
from tests.support.cli import FRIDAY, Run, fails, fill, report
from tests.support.places import put

ONE = MemoryKey("ada", "one")
NAMED = ("--user", "ada", "--session", "one")


@pytest.fixture
def memory(tmp_path: Path) -> str:
    """An archive with a memory of 30 messages, every third compressed, and a summary; another."""
    entries = [
        samples.entry(f"m{number}", number, ("compressed",) if number % 3 == 0 else ("x",))
        for number in range(30)
    ]
    path = tmp_path / "a.ndjson"
    memories = {ONE: entries, MemoryKey("bob", "one"): samples.entries(2)}
    asyncio.run(fill(str(path), memories, summary="It was\x1b[2J long."))
    return str(path)


def test_context_summary_then_what_is_not_compressed(run: Run, memory: str) -> None:
    found = report(run("context", memory, *NAMED, "--json"))
    summary, *messages = found["messages"]
    assert summary["message"] == {
        "name": "user",
        "role": "user",
        "content": "It was\x1b[2J long.",
    }
    assert (summary["id"], summary["summary"]) == (None, True)
    assert [row["id"] for row in messages] == [f"m{n}" for n in range(30) if n % 3]
    assert all(row["marks"] == ["x"] and row["message"]["id"] == row["id"] for row in messages)
    assert found["left_out"] == 10
    assert found["tokens"] == {
        "summary": summary["tokens"],
        "messages": sum(row["tokens"] for row in messages),
        "total": sum(row["tokens"] for row in found["messages"]),
        "counted_by": "estimate",
    }


def test_context_agent_without_compression(run: Run, memory: str) -> None:
    found = report(run("context", memory, *NAMED, "--all", "--json"))
    assert [row["id"] for row in found["messages"]] == [None, *(f"m{n}" for n in range(30))]
    assert (found["all"], found["left_out"]) == (True, 0)


def test_context_everything_compressed_leaves_the_summary(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    folder = tmp_path / "states"
    store = f"sqlite:///{path}?state={folder}"
    asyncio.run(fill(store, {ONE: [samples.entry("m", 1, ("compressed",))]}, summary="All of it."))
    found = report(run("context", store, *NAMED, "--json"))
    assert [row["message"]["content"] for row in found["messages"]] == ["All of it."]
    assert report(run("context", path, *NAMED, "--json"))["messages"] == []


def test_context_tokens_are_those_of_compress(run: Run) -> None:
    found = report(run("context", FRIDAY, "--json"))
    dry = report(run("compress", FRIDAY, "--dry-run", "--keep-recent", "1", "--json"))
    assert found["tokens"]["total"] == dry["tokens"]["before"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["message", "replace"])
def test_context_tokens_after_a_compression_are_those_of_its_report(
    run: Run, tmp_path: Path, mode: str
) -> None:
    """The report left out what a summary costs as a message: its sender, and 4 tokens."""
    store = tmp_path / "friday.db"
    assert run("import", FRIDAY, store, *NAMED, "--lossy").exit_code == 0
    words = ("compress", store, "--mode", mode, "--keep-recent", "1", "--all", "--yes", "--json")
    first = report(run(*words))["tokens"]
    shown = report(run("context", store, *NAMED, "--json"))["tokens"]["total"]
    assert shown == first["after"]
    assert run("import", FRIDAY, store, *NAMED, "--on-conflict", "append", "--lossy").exit_code == 0
    before = report(run("context", store, *NAMED, "--json"))["tokens"]["total"]
    again = report(run(*words))["tokens"]
    if again["before"]:
        assert again["before"] == before
        shown = report(run("context", store, *NAMED, "--json"))["tokens"]["total"]
        assert shown == again["after"]


def test_context_without_the_summary_of_its_compressed_messages(run: Run, tmp_path: Path) -> None:
    store, states = tmp_path / "friday.db", tmp_path / "states"
    assert run("import", FRIDAY, store, *NAMED, "--lossy").exit_code == 0
    assert run("mark", "add", store, "compressed", "--role", "user").exit_code == 0
    shown = run("context", store, *NAMED)
    told = " ".join(shown.stderr.split())
    assert "marked 'compressed', and not their summary (1 memory, such as 'ada'/'one')" in told
    assert "name the session states that have it: ?state=FOLDER" in told
    states.mkdir()
    state = {"memory": {"_compressed_summary": "It was long.", "content": []}}
    (states / "ada_one.json").write_text(json.dumps(state))
    assert f"?state={states}" in run("context", store, *NAMED).stderr
    shown = run("context", f"sqlite:///{store}?state={states}", *NAMED)
    assert "compressed" not in shown.stderr


def test_context_numbers_messages_as_inspect_does(run: Run, memory: str) -> None:
    rows = list(
        csv.DictReader(io.StringIO(run("context", memory, *NAMED, "--format", "csv").stdout))
    )
    found = report(run("inspect", memory, *NAMED, "--messages", "--json"))["messages"]
    places = {row["id"]: row["position"] for row in found}
    assert [int(row["number"]) for row in rows[1:]] == [places[row["id"]] for row in rows[1:]]
    assert "#2 " in run("context", memory, *NAMED).stdout
    assert "#1 " not in run("context", memory, *NAMED).stdout


@pytest.mark.parametrize(
    "damage",
    [
        "msg = '5'",
        "msg = '[]'",
        "msg = CAST(x'7b22ff' AS TEXT)",
        "id = CAST('a' AS BLOB)",
    ],
)
def test_context_of_a_damaged_memory_is_bad_data(run: Run, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {ONE: samples.entries(3), MemoryKey("b", "two"): []}))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f'UPDATE message SET {damage} WHERE "index" = 1')
        database.commit()
    fails(run("context", path, *NAMED), 8, "is damaged")
    assert report(run("context", path, *NAMED, "--json"), 8)["error"]["code"] == "bad-data"
    fails(run("export", path, *NAMED), 8, "is damaged")


def test_context_tokenizer_counts(run: Run, tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    tokenizer = tmp_path / "tokenizer.json"
    words.save(str(tokenizer))
    config = tmp_path / "config.toml"
    config.write_text(
        f'[summarizers.big]\nkind = "openai"\nmodel = "m"\ntokenizer = "{tokenizer}"\n'
        'api_key_env = "NOT_SET"\n'
    )
    found = report(run("--config", config, "context", FRIDAY, "--summarizer", "big", "--json"))
    assert found["tokens"]["counted_by"] == str(tokenizer)
    estimated = report(run("context", FRIDAY, "--json"))
    assert found["tokens"]["total"] != estimated["tokens"]["total"]
    fails(run("context", FRIDAY, "--summarizer", "bug"), 2, "no summarizer named 'bug'")


def test_context_lines_and_cells(run: Run, memory: str) -> None:
    whole = report(run("context", memory, *NAMED, "--json"))["messages"]
    done = run("context", memory, *NAMED, "--format", "ndjson")
    assert [json.loads(line) for line in done.stdout.splitlines()] == whole
    done = run("context", memory, *NAMED, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [int(row["tokens"]) for row in rows] == [row["tokens"] for row in whole]
    assert [row["number"] for row in rows][:3] == ["0", "2", "3"]
    assert rows[0]["text"] == "It was\x1b[2J long."


def test_context_person_reads_it(run: Run, memory: str) -> None:
    lines = run("context", memory, *NAMED).stdout.splitlines()
    assert lines[0] == "── ada / one"
    assert lines[1].startswith("#0 user (user)  ")
    assert lines[2] == r"   It was\x1b[2J long."
    assert lines[3].startswith("#2 ")
    assert lines[3].endswith(" tokens")
    assert lines[-1].startswith("20 messages; ")
    assert lines[-1].endswith("; not sent: 10 compacted: show them with --all")


def test_context_one_memory_must_be_selected(run: Run, memory: str) -> None:
    fails(run("context", memory), 2, "'ada'/'one', 'bob'/'one'", "--user and --session")
    fails(run("context", memory, "--user", "eve"), 4, "has no memory of 'eve'")
    fails(run("context", Path(memory).with_name("none.db")), 4)
    assert report(run("context", memory, "--user", "bob", "--json"))["user"] == "bob"


def test_context_several_memories_of_a_session(run: Run, tmp_path: Path) -> None:
    state = json.loads(FRIDAY.read_text())
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"a": {"memory": state}, "b": {"memory": state}}))
    fails(run("context", path), 2, "(a.memory)", "--path")
    found = report(run("context", path, "--path", "b.memory", "--json"))
    assert len(found["messages"]) == len(report(run("context", FRIDAY, "--json"))["messages"])


def test_context_what_agentscope_cannot_load_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    broken: list[StoredMessage] = [
        samples.entry("good", 1),
        StoredMessage("bad", b'{"id": "bad", "name": "n", "role": "robot", "content": "x"}'),
    ]
    asyncio.run(fill(str(path), {ONE: broken}))
    found = report(run("context", path, "--json"))
    rows: list[dict[str, Any]] = found["messages"]
    assert [bool(row["fault"]) for row in rows] == [False, True]
    assert rows[1]["tokens"] == 0
    assert found["warnings"] == [
        "AgentScope fails to load 1 message: 'bad': its role is not one of user, assistant, system"
    ]
    assert "AgentScope cannot load it: its role" in run("context", path).stdout


def test_context_shared_session_is_said(run: Run, database: str) -> None:
    memories = {ONE: samples.entries(3), MemoryKey("bob", "one"): samples.entries(2)}
    asyncio.run(fill(database, memories))
    found = report(run("context", database, *NAMED, "--json"))
    assert [row["id"] for row in found["messages"]] == ["m0000000", "m0000001", "m0000002"]
    assert "its agent also reads the messages of 'bob'" in found["warnings"][0]


@pytest.mark.slow
def test_context_large_message_is_whole_in_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    text = '京都 \\ " \n\x1b😀é' * 100_000
    asyncio.run(
        fill(
            str(path),
            {
                ONE: [
                    StoredMessage(
                        "m",
                        json.dumps(
                            json.loads(samples.message("m", 1, content=text)), ensure_ascii=False
                        ).encode(),
                    )
                ]
            },
        )
    )
    for words in (("context",), ("inspect", "--messages")):
        [row] = report(run(*words, path, "--json"))["messages"]
        assert row["message"]["content"] == text
    assert "characters more: --format json has all" in run("context", path).stdout


@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_context_is_that_of_the_state_where_the_log_differs(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    def said(id: str, text: str) -> dict[str, Any]:
        time = "2026-01-01T10:00:00"
        about = {"id": f"{id}-0", "created_at": time, "finished_at": time}
        block = {"type": "text", "text": text} | about
        value = {"id": id, "name": "user", "role": "user", "content": [block], "metadata": {}}
        return value | {"created_at": time}

    log = [said("a", "Old."), said("b", "A long result."), said("c", "Hi.")]
    context = ["c", said("b", "A long…"), said("x", "Of the state alone.")]
    extra = {
        "record": {"agent_id": "friday", "source": "user"},
        "payload": {"origin": {"type": "user"}, "config": {"name": "Trip"}},
        "state": {"session_id": "s"},
        "context": context,
    }
    entries = [StoredMessage(value["id"], json.dumps(value).encode()) for value in log]
    entries[0] = entries[0]._replace(marks=("compressed",))
    place = one(name)
    put(place, [sample(MemoryKey("ada", "s"), entries, extra=json.dumps(extra), summary="Sum.")])
    found = report(run("context", place.text, "--json"))
    texts = [one["message"]["content"][0]["text"] for one in found["messages"]]
    assert texts == ["Sum.", "Hi.", "A long…", "Of the state alone."]
    assert [one["id"] for one in found["messages"]] == [None, "c", "b", "x"]
    assert found["left_out"] == 1
    shown = run("context", place.text).stdout
    assert "A long…" in shown
    assert "A long result." not in shown
    everything = report(run("context", place.text, "--all", "--json"))
    assert [one["id"] for one in everything["messages"]] == [None, "a", "b", "c", "x"]
