"""Findings of ``doctor`` in odd but real messages of other frameworks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.registry import DIALECTS
from memctl.dialects.rows import RowDialect
from memctl.dialects.view import TextBlock, ToolCallBlock, ToolResultBlock
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from memctl.testing.samples import sample
from tests.support.cli import Run, contents, report

TIME = "2026-03-01T10:00:{:02}.000000+00:00"
HUMAN = {"type": "human", "data": {"content": "list", "type": "human"}}
DONE = {"type": "ai", "data": {"content": "two", "type": "ai"}}
FUNCTION = {"name": "ls", "arguments": '{"path": "/srv"}'}
TOOL: dict[str, Any] = {
    "type": "tool",
    "data": {"content": "a b", "type": "tool", "tool_call_id": "c1"},
}


def ai(**fields: Any) -> dict[str, Any]:
    """A reply of LangChain without text."""
    return {"type": "ai", "data": {"content": "", "type": "ai"} | fields}


def put(place: str, dialect: str, **sessions: Sequence[dict[str, Any]]) -> None:
    """Write conversations, each of contents in the form of a framework, into a new store."""
    known = DIALECTS[dialect]
    assert isinstance(known, RowDialect)
    samples = []
    for session, documents in sessions.items():
        values = [
            {"content": one} | ({"time": TIME.format(number)} if "time" in known.fields else {})
            for number, one in enumerate(documents)
        ]
        entries = [
            StoredMessage(str(known.message_id(one)), json.dumps(one).encode()) for one in values
        ]
        samples.append(sample(MemoryKey("", session), entries))

    async def work() -> None:
        async with make_store(parse(place), OpenMode.CREATE) as store:
            store.adopt(known, None)
            await write_all(store, samples)

    asyncio.run(work())


def documents(place: str) -> dict[str, list[Any]]:
    """Return the contents by their sessions."""
    return {
        key.session: [json.loads(one.message)["content"] for one in some]
        for key, some in contents(place).items()
    }


def blocks(place: str, dialect: str) -> dict[str, list[Any]]:
    """Return what the calls, results and texts say, by their sessions."""

    def shown(block: Any) -> Any:
        match block:
            case ToolCallBlock(id, name, input):
                return id, name, input
            case ToolResultBlock(id):
                return id, "".join(one.text for one in block.output if isinstance(one, TextBlock))
            case TextBlock(text):
                return text
        return block

    return {
        key.session: [
            shown(block) for one in some for block in DIALECTS[dialect].parse(one.message).blocks
        ]
        for key, some in contents(place).items()
    }


def codes(run: Run, place: str, session: str, *options: str) -> dict[str, int]:
    """Return the numbers of errors and warnings of a session by their codes."""
    done = run("doctor", place, "--session", session, *options, "--json")
    found = report(done, 6 if done.exit_code == 6 else 0)
    return {one["code"]: one["count"] for one in found["findings"] if one["severity"] != "notice"}


# LangChain


@pytest.fixture
def old(tmp_path: Path) -> str:
    """Messages of older versions of LangChain, and of LangChain.js."""
    calls = [{"id": "c1", "type": "function", "function": FUNCTION}]
    bad = {"id": "c9", "name": "ls", "args": '{"a":', "error": "x", "type": "invalid_tool_call"}
    result = {"type": "function", "data": {"content": "a b", "type": "function", "name": "ls"}}
    place = f"sqlite:///{tmp_path}/old.db?layout=langchain"
    put(
        place,
        "langchain",
        kwargs=[HUMAN, ai(additional_kwargs={"tool_calls": calls}), TOOL, DONE],
        function=[HUMAN, ai(additional_kwargs={"function_call": FUNCTION}), result, DONE],
        invalid=[HUMAN, ai(tool_calls=[], invalid_tool_calls=[bad])],
        refusal=[HUMAN, ai(additional_kwargs={"refusal": "no"})],
        audio=[HUMAN, ai(additional_kwargs={"audio": {"id": "a"}})],
        empty=[HUMAN, ai(additional_kwargs={"refusal": None})],
    )
    return place


def test_langchain_calls_in_other_places_are_read(run: Run, old: str) -> None:
    found = blocks(old, "langchain")
    assert found["kwargs"][1:3] == [("c1", "ls", {"path": "/srv"}), ("c1", "a b")]
    assert found["function"][1:3] == [("ls", "ls", {"path": "/srv"}), ("ls", "a b")]
    assert found["invalid"][1] == ("c9", "ls", '{"a":')
    assert found["refusal"][1] == "no"
    shown = run("inspect", old, "--messages").stdout
    assert shown.count('→ ls  {"path": "/srv"}') == 2
    assert '{\\"a\\":' in shown


@pytest.mark.slow
def test_langchain_repair_deletes_nothing_that_says_something(run: Run, old: str) -> None:
    before = documents(old)
    healthy = ("kwargs", "function", "refusal", "audio")
    assert [codes(run, old, one) for one in healthy] == [{}] * len(healthy)
    assert codes(run, old, "empty") == {"empty-assistant-message": 1}
    wrong = {"invalid-arguments": 1, "tool-call-without-result": 1}
    assert codes(run, old, "invalid") == wrong
    done = report(run("doctor", old, "--repair", "--yes", "--json"), 6)
    after = documents(old)
    assert [after[one] for one in healthy] == [before[one] for one in healthy]
    assert after["invalid"][:2] == before["invalid"]
    assert after["empty"] == [HUMAN]
    [unread] = [one for one in done["findings"] if one["code"] == "unread-message"]
    assert (unread["session"], unread["severity"]) == ("audio", "notice")
    report(run("undo", done["run"], "--store", old, "--json"))
    assert documents(old) == before


@pytest.mark.slow
@pytest.mark.parametrize("target", ["m.db", "m.db?layout=agentscope2", "m.db?layout=openai-agents"])
def test_langchain_calls_are_copied_as_calls(
    run: Run, old: str, tmp_path: Path, target: str
) -> None:
    place = f"sqlite:///{tmp_path}/{target}"
    report(run("migrate", old, place, "--json", "--lossy", "--session", "kwargs"))
    dialect = target.partition("layout=")[2] or "agentscope1"
    [found] = blocks(place, dialect).values()
    assert ("c1", "ls", {"path": "/srv"}) in found
    assert ("c1", "a b") in found
    assert codes(run, place, "kwargs") == {}


@pytest.mark.slow
def test_langchain_calls_come_back_as_they_were(run: Run, old: str, tmp_path: Path) -> None:
    between, back = tmp_path / "m.db", f"sqlite:///{tmp_path}/back.db?layout=langchain"
    report(run("migrate", old, between, "--json"))
    [call, found] = blocks(str(between), "agentscope1")["function"][1:3]
    assert (call, found) == (("ls", "ls", {"path": "/srv"}), ("ls", "a b"))
    report(run("migrate", between, back, "--json"))
    assert documents(back) == documents(old)


# OpenAI's chat completions, LlamaIndex


@pytest.mark.parametrize("suffix", ["jsonl"])
def test_openai_function_calls_are_read(run: Run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"old.{suffix}"
    messages = [
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"role": "function", "name": "ls", "content": "a b"},
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"role": "function", "name": "ls", "content": "c"},
        {"role": "assistant", "content": "done"},
    ]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    report(run("doctor", path, "--json"))
    target = tmp_path / "m.db"
    report(run("migrate", path, target, "--json"))
    [found] = blocks(str(target), "agentscope1").values()
    assert found[1:5] == [
        ("ls", "ls", {"path": "/srv"}),
        ("ls", "a b"),
        ("ls", "ls", {"path": "/srv"}),
        ("ls", "c"),
    ]
    back = tmp_path / "back.jsonl"
    report(run("migrate", target, back, "--json", "--lossy"))
    [line] = back.read_text().splitlines()
    written = [
        {k: v for k, v in one.items() if k != "memctl"} for one in json.loads(line)["messages"]
    ]
    assert written == messages


def test_llamaindex_calls_of_other_apis_are_read(run: Run, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/m.db?layout=llamaindex"
    anthropic = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "/srv"}}
    text = {"block_type": "text", "text": "a b"}

    def said(role: str, *parts: Any, **more: Any) -> dict[str, Any]:
        return {"role": role, "additional_kwargs": more, "blocks": list(parts)}

    put(
        place,
        "llamaindex",
        anthropic=[
            said("assistant", tool_calls=[anthropic]),
            said("tool", text, tool_call_id="c1"),
        ],
        function=[said("assistant", function_call=FUNCTION), said("function", text, name="ls")],
    )
    found = blocks(place, "llamaindex")
    assert found["anthropic"] == [("c1", "ls", {"path": "/srv"}), ("c1", "a b")]
    assert found["function"] == [("ls", "ls", {"path": "/srv"}), ("ls", "a b")]
    assert codes(run, place, "anthropic") == codes(run, place, "function") == {}


# OpenAI Agents


def reasoning(id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": id, "summary": []}


def calls(id: str, item: str | None = None) -> dict[str, Any]:
    own = {} if item is None else {"id": item}
    return {"type": "function_call", "call_id": id, "name": "ls", "arguments": "{}"} | own


def output(id: str, text: str = "a b") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


def answer(id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": id, "content": content}


USER = {"role": "user", "content": "list"}
HEALTHY = [
    USER,
    reasoning("rs_1"),
    calls("c1", "fc_1"),
    calls("c2", "fc_2"),
    output("c1"),
    output("c2"),
    reasoning("rs_2"),
    answer("msg_1", "two"),
]
ITEMS: dict[str, tuple[list[dict[str, Any]], dict[str, int], list[dict[str, Any]]]] = {
    "healthy": (HEALTHY, {}, HEALTHY),
    "reasoning before a user": (
        [USER, reasoning("rs_9"), *HEALTHY],
        {"lone-reasoning": 1},
        [USER, *HEALTHY],
    ),
    "reasoning at the end": (
        [*HEALTHY, reasoning("rs_9")],
        {"lone-reasoning": 1},
        HEALTHY,
    ),
    "an item twice": (
        [*HEALTHY, reasoning("rs_9"), answer("msg_1", "two")],
        {"repeated-item": 1},
        HEALTHY,
    ),
    "an id twice": (
        [*HEALTHY, answer("msg_1", "three")],
        {"repeated-item": 1},
        [*HEALTHY, answer("msg_1", "three")],
    ),
    "a call twice": (
        [USER, reasoning("rs_1"), calls("c1", "fc_1"), calls("c1", "fc_2"), output("c1")],
        {"repeated-tool-call": 1},
        [USER, calls("c1", "fc_2"), output("c1")],
    ),
    "an empty answer": (
        [USER, reasoning("rs_1"), answer("msg_1", ""), USER],
        {"empty-assistant-message": 1},
        [USER, USER],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_openai_agents_items_are_examined_and_repaired(run: Run, tmp_path: Path, name: str) -> None:
    items, found, left = ITEMS[name]
    place = f"sqlite:///{tmp_path}/m.db?layout=openai-agents"
    put(place, "openai-agents", s=items)
    assert codes(run, place, "s") == found
    done = run("doctor", place, "--repair", "--yes", "--json")
    assert documents(place)["s"] == left
    assert codes(run, place, "s") == ({} if left != items else found)
    if left != items:
        report(run("undo", json.loads(done.stdout)["run"], "--store", place, "--json"))
        assert documents(place)["s"] == items


@pytest.mark.slow
def test_openai_agents_reasoning_goes_with_its_item(run: Run, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/m.db?layout=openai-agents"
    put(place, "openai-agents", s=HEALTHY)
    report(run("delete", place, "--id", "fc_1", "--with-tool-pairs", "--yes", "--json"))
    assert documents(place)["s"] == [USER, HEALTHY[3], HEALTHY[5], *HEALTHY[6:]]
    report(run("delete", place, "--id", "msg_1", "--with-tool-pairs", "--yes", "--json"))
    assert documents(place)["s"] == [USER, HEALTHY[3], HEALTHY[5]]
    report(run("undo", "--yes", "--json"))
    report(run("delete", place, "--id", "rs_2", "--keep-tool-pairs", "--yes", "--json"))
    assert documents(place)["s"][-2:] == HEALTHY[-2:]


# ADK


def test_adk_events_without_content_are_nothing_to_repair(run: Run, tmp_path: Path) -> None:
    """They change the state of the session: ADK does not send them to the model."""
    place = f"sqlite:///{tmp_path}/m.db?layout=adk&app=a"

    def event(id: str, seconds: int, **fields: Any) -> dict[str, Any]:
        about = {"id": id, "author": "friday", "invocation_id": "i", "timestamp": 1.7e9 + seconds}
        return about | fields

    called = {"function_call": {"id": "c1", "name": "ls", "args": {}}}
    pending = {"function_response": {"id": "c1", "name": "ls", "response": {"status": "pending"}}}
    given = {"function_response": {"id": "c1", "name": "ls", "response": {"result": "a b"}}}
    events = [
        event("e1", 1, actions={"state_delta": {"a": 1}}),
        event("e2", 2, content={"parts": [called], "role": "model"}, long_running_tool_ids=["c1"]),
        event("e3", 3, content={"parts": [pending], "role": "user"}),
        event("e4", 4, content={"parts": [{"text": "wait"}], "role": "model"}),
        event("e5", 5, content={"parts": [given], "role": "user"}),
    ]
    put(place, "adk", s=events)
    assert codes(run, place, "s", "--repair", "--yes") == {}
    assert [one["id"] for one in documents(place)["s"]] == ["e1", "e2", "e3", "e4", "e5"]


# Pairs of calls whose ids repeat


def test_pairs_of_a_reused_id_are_deleted_one_by_one(run: Run, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/m.db?layout=langchain"
    own = [{"name": "ls", "args": {}, "id": "c1", "type": "tool_call"}]

    def found_by(id: str) -> dict[str, Any]:
        return {"type": "tool", "data": TOOL["data"] | {"id": id}}

    put(
        place,
        "langchain",
        s=[
            *(ai(tool_calls=own, id="m1"), found_by("r1"), DONE),
            *(ai(tool_calls=own, id="m2"), found_by("r2"), DONE),
        ],
    )
    found = report(run("doctor", place, "--json"))
    assert [one["code"] for one in found["findings"]] == ["reused-call-id"]
    report(run("delete", place, "--id", "m1", "--with-tool-pairs", "--yes", "--json"))
    left = documents(place)["s"]
    assert [one["data"].get("id") for one in left] == [None, "m2", "r2", None]
