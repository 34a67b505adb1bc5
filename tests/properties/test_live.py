"""A copy has what the framework reads, in every dialect; the way back has all.

Messages that were taken back, or for which a summary stands, say nothing in the copy; notes keep
them where the target has notes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.dialects.adk import ADK
from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.claude_code import CLAUDE_CODE
from memctl.dialects.codex import CODEX
from memctl.dialects.live import live
from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import COMPRESSED, Dialect, Unread
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey, StoredMessage
from tests.properties.test_conversion import convert

MEMORY = Memory(MemoryKey("u", "s"))
TARGETS = [one for one in DIALECTS.values() if not one.facts]


def event(number: int, turn: int, text: str = "", **actions: Any) -> StoredMessage:
    author = "user" if number % 2 else "clerk"
    value: dict[str, Any] = {
        "id": f"e{number}",
        "author": author,
        "invocation_id": f"turn-{turn}",
        "timestamp": 1000.0 + number,
        "actions": actions,
    }
    if text:
        role = "user" if author == "user" else "model"
        value["content"] = {"role": role, "parts": [{"text": text}]}
    return StoredMessage(f"e{number}", json.dumps({"content": value}).encode())


def summary(number: int, start: int, end: int) -> StoredMessage:
    content = {"role": "model", "parts": [{"text": f"summary {start} to {end}"}]}
    times = {"start_timestamp": 1000.0 + start, "end_timestamp": 1000.0 + end}
    return event(number, 0, compaction=times | {"compacted_content": content})


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[StoredMessage], list[str]]:
    """Draw a session of ADK, and the texts that ADK sends."""
    steps = draw(st.lists(st.sampled_from(["say", "rewind", "compact"]), min_size=1, max_size=8))
    events: list[StoredMessage] = []
    said: list[tuple[int, int, str]] = []
    """The turn, the number and the text of each event that ADK reads; a summary has no turn."""
    starts: dict[int, int] = {}
    """The first event for which each summary stands."""
    turn = 0
    for step in steps:
        number = len(events) + 1
        if step == "rewind" and (turns := sorted({of for of, _, _ in said if of})):
            to = draw(st.sampled_from(turns))
            events.append(event(number, 0, rewind_before_invocation_id=f"turn-{to}"))
            first = min(at for of, at, _ in said if of == to)
            said = [one for one in said if one[1] < first]
        elif step == "compact" and said and said[-1][0]:
            first = draw(st.sampled_from([at for of, at, _ in said if of]))
            last = said[-1][1]
            events.append(summary(number, first, last))
            said = [one for one in said if starts.get(one[1], one[1]) < first]
            said.append((0, number, f"summary {first} to {last}"))
            starts[number] = first
        else:
            turn += 1
            for at in (number, number + 1):
                events.append(event(at, turn, f"text {at}"))
                said.append((turn, at, f"text {at}"))
    return events, [text for _, _, text in said]


def texts(dialect: Dialect, entries: list[StoredMessage]) -> list[str]:
    return [text for one in entries for text in dialect.parse(one.message).texts() if text]


@given(sessions())
def test_what_adk_reads(session: tuple[list[StoredMessage], list[str]]) -> None:
    entries, said = session
    found = live(ADK, entries)
    assert sorted([*found.order, *found.unread]) == list(range(len(entries)))
    assert texts(ADK, [entries[at] for at in found.order]) == said


@pytest.mark.parametrize(
    "target", [one for one in TARGETS if one is not ADK], ids=lambda one: one.name
)
@given(sessions())
def test_a_copy_has_what_adk_reads(
    target: Dialect, session: tuple[list[StoredMessage], list[str]]
) -> None:
    entries, said = session
    place = target.holds_summary and not target.summary_setting
    memory, copied = convert(ADK, target, MEMORY, entries, summaries=place)
    summaries = (memory.summary or "").split("\n\n") if memory.summary else []
    assert [one for one in texts(target, copied) if one != "[not read]"] == said[len(summaries) :]
    assert summaries == said[: len(summaries)]
    first = next((at for at, one in enumerate(said) if "summary" not in one), len(said) - 1)
    assert len(summaries) == (max(first, 0) if place else 0)
    if target.holds_notes:
        back = convert(target, ADK, memory, copied)[1]
        assert plain(back) == plain(entries)


def said(number: int, *marks: str) -> StoredMessage:
    value = {"id": f"m{number}", "name": "ada", "role": "user", "content": f"text {number}"}
    more = {"metadata": {}, "timestamp": f"2026-01-01 00:00:{number:02}.000"}
    return StoredMessage(f"m{number}", json.dumps(value | more).encode(), marks)


@pytest.mark.parametrize(
    "target", [one for one in TARGETS if not one.holds_marks], ids=lambda one: one.name
)
@given(st.lists(st.booleans(), max_size=6), st.booleans())
def test_a_copy_has_what_agentscope_reads(
    target: Dialect, compressed: list[bool], summed: bool
) -> None:
    entries = [said(at, *([COMPRESSED] if one else [])) for at, one in enumerate(compressed)]
    given_ = replace(MEMORY, summary="In short." if summed else "")
    memory, copied = convert(AGENTSCOPE1, target, given_, entries)
    wanted = [f"text {at}" for at, one in enumerate(compressed) if not one]
    first = ["In short."] if summed and not target.holds_summary else []
    assert [text for text in texts(target, copied) if text != "[not read]"] == first + wanted
    if target.holds_notes:
        memory, back = convert(target, AGENTSCOPE1, memory, copied)
        assert (memory.summary or "") == given_.summary
        assert plain(back) == plain(entries)


def plain(entries: list[StoredMessage]) -> list[tuple[str, bytes, tuple[str, ...]]]:
    return [(one.id, jsonio.canonical(one.message), one.marks) for one in entries]


def test_a_call_compacted_before_its_answer_comes_back_with_the_answer() -> None:
    call = {"function_call": {"id": "c", "name": "book", "args": {}}}
    answer = {"function_response": {"id": "c", "name": "book", "response": {"ok": True}}}
    entries = [event(1, 1, "Book."), event(2, 1), summary(3, 1, 2), event(5, 2)]
    for at, part in ((1, call), (3, answer)):
        value = jsonio.loads(entries[at].message)
        value["content"]["content"] = {"role": "model", "parts": [part]}
        entries[at] = entries[at]._replace(message=jsonio.dumps(value))
    found = live(ADK, entries)
    assert found.order == [2, 1, 3]
    assert found.unread == {0: Unread.COMPACTED}


def test_a_large_event_is_read() -> None:
    """An outline has no long texts, and ADK sends no event without a text."""
    assert live(ADK, [event(1, 1, "x" * 2_000_000)]).unread == {}


IDS = st.sampled_from(["a", "b", "c", "d", "e", None])
TEXTS = st.sampled_from(["", "Hi"])
CONTENTS = TEXTS | st.lists(
    st.builds(dict, type=st.just("text"), text=TEXTS)
    | st.builds(dict, type=st.just("tool_use"), id=IDS, name=TEXTS)
    | st.builds(dict, type=st.just("tool_result"), tool_use_id=IDS, content=TEXTS),
    max_size=2,
)
PRESERVED = st.builds(dict, uuids=st.lists(IDS), anchorUuid=IDS)
CLAUDE_LINES = st.builds(
    dict,
    type=st.sampled_from(["user", "assistant", "attachment", "system", "last-prompt", "mode"]),
    uuid=IDS,
    parentUuid=IDS,
    leafUuid=IDS,
    isSidechain=st.booleans(),
    isCompactSummary=st.booleans(),
    subtype=st.sampled_from(["compact_boundary", None]),
    compactMetadata=st.builds(dict, preservedMessages=PRESERVED),
    rendered=CONTENTS,
    message=st.builds(dict, id=IDS, content=CONTENTS),
)
CODEX_LINES = st.builds(
    dict,
    type=st.sampled_from(["session_meta", "response_item", "compacted", "event_msg"]),
    payload=st.builds(
        dict,
        type=st.sampled_from(
            ["message", "reasoning", "user_message", "item_completed", "thread_rolled_back"]
        ),
        role=st.sampled_from(["user", "assistant", "developer"]),
        content=CONTENTS,
        num_turns=st.integers(0, 3),
        item=st.builds(dict, type=st.sampled_from(["UserMessage", "Plan"])),
        replacement_history=st.none() | st.lists(st.builds(dict, role=TEXTS, content=TEXTS)),
    ),
) | st.builds(dict, type=st.just("event_msg"), ordinal=st.integers(), payload=st.builds(dict))


@given(st.lists(CLAUDE_LINES, max_size=12))
def test_lines_of_claude_code_without_texts_say_what_is_sent(lines: list[dict[str, Any]]) -> None:
    agrees(CLAUDE_CODE, lines)


@given(st.lists(CODEX_LINES, max_size=12))
def test_lines_of_codex_without_texts_say_what_is_sent(lines: list[dict[str, Any]]) -> None:
    agrees(CODEX, lines)


def agrees(dialect: Dialect, lines: list[dict[str, Any]]) -> None:
    texts = [jsonio.dumps({"content": line}) for line in lines]
    texts += [jsonio.dumps({"file": "a.jsonl", "content": line}) for line in lines[:2]]
    whole = dialect.live([dialect.parse(text) for text in texts])
    assert dialect.live([dialect.live_view(text) for text in texts]) == whole
