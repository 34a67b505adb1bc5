"""The losses of a copy in every pair of dialects: reported, with a word in the place of each.

A text of a copy is a text of the source, or such a word.  Words of others never become words of the
assistant.  The copy of a healthy memory is healthy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from memctl.dialects.losses import Losses
from memctl.dialects.registry import DIALECTS
from memctl.dialects.roles import ROLES
from memctl.dialects.view import TOOL, Block, Dialect, TextBlock, ToolResultBlock
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.doctor.check import Limits, MemoryExaminer
from memctl.ops.doctor.findings import KINDS, Severity
from memctl.wrappers.answered import before_waiting
from tests.properties.test_conversion import convert

MEMORY = Memory(MemoryKey("u", "s"), summary="")
WORD = re.compile(r"\[.+\]")
PDF = "JVBERi0xLjQK"
TIME = "2026-03-01T10:00:00.000000+00:00"


def agentscope(role: str, content: Any, id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "name": role, "role": role, "content": content, "metadata": {}} | more


def langchain(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, "data": {"content": content, "type": kind} | more}


def event(author: str, *parts: Any, id: str, **more: Any) -> dict[str, Any]:
    role = "user" if author == "user" else "model"
    return {"id": id, "author": author, "content": {"role": role, "parts": parts}} | more


def runtime(kind: str, role: str, id: str, *content: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, "role": role, "content": list(content)}


def of_tool(call: str, **data: Any) -> dict[str, Any]:
    return {"type": "data", "data": {"call_id": call, "name": "pay"} | data}


ARGS = {"amount": 200}
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
HEALTHY: dict[str, list[Any]] = {
    "agentscope1": [
        agentscope("system", "Be brief.", "0"),
        agentscope("user", "Pay.", "1"),
        agentscope(
            "assistant", [{"type": "tool_use", "id": "c1", "name": "pay", "input": ARGS}], "2"
        ),
        agentscope(
            "system",
            [{"type": "tool_result", "id": "c1", "name": "pay", "output": '{"text": "Visa"}'}],
            "3",
        ),
        agentscope("assistant", [{"type": "text", "text": "Done."}, {"type": "chart"}], "4"),
    ],
    "agentscope2": [
        agentscope("user", [{"type": "text", "text": "Pay."}], "1"),
        agentscope(
            "user",
            [
                {
                    "type": "data",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                }
            ],
            "2",
        ),
        agentscope(
            "assistant",
            [
                {"type": "text", "text": "May I?"},
                {"type": "tool_call", "id": "c1", "name": "pay", "input": "{}", "state": "asking"},
            ],
            "3",
        ),
    ],
    "runtime": [
        runtime("message", "user", "1", {"type": "text", "text": "Pay."}),
        runtime("plugin_call", "assistant", "2", of_tool("c1", arguments="{}")),
        runtime("plugin_call_output", "tool", "3", of_tool("c1", output='{"text": "Visa"}')),
        runtime("message", "assistant", "4", {"type": "text", "text": "Done."}),
    ],
    "langchain": [
        langchain("human", ["Pay.", {"type": "file", "base64": PDF, "mime_type": "a/pdf"}]),
        langchain("ai", "", tool_calls=[{"id": "c1", "name": "pay", "args": ARGS}]),
        langchain("tool", '{"text": "Visa"}', tool_call_id="c1"),
        langchain(
            "ai",
            [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "Y2lwaGVy"},
                {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"q": "x"}},
                {"type": "text", "text": "Done."},
            ],
        ),
    ],
    "openai-agents": [
        {"role": "user", "content": "Pay."},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "Y2lwaGVy"},
        {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}, "status": "completed"},
        {"type": "image_generation_call", "id": "ig_1", "result": "aGk=", "status": "completed"},
        {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}", "id": "f1"},
        {"type": "function_call_output", "call_id": "c1", "output": '{"text": "Visa"}'},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Done."}], "id": "m1"},
        {"type": "function_call", "call_id": "c4", "name": "ship", "arguments": "{}", "id": "f4"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "On."}], "id": "m2"},
        {"type": "function_call_output", "call_id": "c4", "output": "Shipped."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c2", "name": "pay", "arguments": "{}", "id": "f2"},
        {"type": "function_call", "call_id": "c3", "name": "pay", "arguments": "{}", "id": "f3"},
    ],
    "llamaindex": [
        {"role": "user", "blocks": [{"block_type": "document", "data": PDF}]},
        {"role": "assistant", "blocks": [], "additional_kwargs": {"tool_calls": [OPENAI_CALL]}},
        {
            "role": "tool",
            "blocks": [{"block_type": "text", "text": '{"text": "Visa"}'}],
            "additional_kwargs": {"tool_call_id": "c1", "name": "pay"},
        },
        {
            "role": "chatbot",
            "blocks": [{"block_type": "cache"}, {"block_type": "text", "text": "Done."}],
        },
    ],
    "adk": [
        event(
            "user", {"text": "Pay."}, {"inline_data": {"mime_type": "a/pdf", "data": PDF}}, id="1"
        ),
        event("clerk", {"function_call": {"id": "c1", "name": "pay", "args": ARGS}}, id="2"),
        event(
            "clerk",
            {"function_response": {"id": "c1", "name": "pay", "response": {"text": "Visa"}}},
            id="3",
        ),
        event("clerk", {"executable_code": {"code": "1 + 1"}}, {"text": "Done."}, id="4"),
        event(
            "clerk",
            {"function_call": {"id": "c2", "name": "book", "args": {}}},
            id="5",
            long_running_tool_ids=["c2"],
        ),
        event(
            "clerk",
            {"function_response": {"id": "c2", "name": "book", "response": {"status": "?"}}},
            id="6",
        ),
        event("clerk", {"text": "It is on its way."}, id="7"),
        event(
            "user",
            {"function_response": {"id": "c2", "name": "book", "response": {"status": "booked"}}},
            id="8",
        ),
        event(
            "clerk",
            {"function_call": {"id": "c4", "name": "ship", "args": {}}},
            id="10",
            long_running_tool_ids=["c4"],
        ),
        event("clerk", {"text": "I have asked."}, id="11"),
        event("user", {"text": "Fine."}, id="12"),
        event(
            "user",
            {"function_response": {"id": "c4", "name": "ship", "response": {"status": "sent"}}},
            id="13",
        ),
        event(
            "clerk",
            {"function_call": {"id": "c3", "name": "adk_request_confirmation", "args": {}}},
            id="9",
            long_running_tool_ids=["c3"],
        ),
    ],
    "agno": [
        {"role": "user", "content": "Pay.", "id": "1", "files": [{"content": PDF}]},
        {"role": "assistant", "id": "2", "tool_calls": [OPENAI_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"text": "Visa"}', "id": "3"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Done."}, {"type": "x"}],
            "id": "4",
        },
    ],
    "openai": [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "file", "file": {"file_data": f"data:a/pdf;base64,{PDF}"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"text": "Visa"}'},
        {"role": "assistant", "content": "Done.", "audio": {"id": "a"}},
    ],
    "role-content": [
        {"role": "SYSTEM", "content": "Be brief."},
        {"role": "USER", "content": "Pay."},
        {"role": "Bot", "content": [{"type": "text", "text": "Done."}, {"type": "chart"}]},
        {"role": "critic", "content": "Too fast."},
    ],
}
PAIRS = [(source, target) for source in HEALTHY for target in HEALTHY if source != target]


def stored(name: str) -> list[StoredMessage]:
    """Return the healthy memory of a dialect."""
    dialect = DIALECTS[name]
    found = []
    for value in HEALTHY[name]:
        if name == "role-content":
            value = value | {"time": TIME}
        elif name not in ("agentscope1", "agentscope2", "runtime"):
            value = {"content": value}
        found.append(StoredMessage(str(dialect.message_id(value)), json.dumps(value).encode()))
    return found


def codes(dialect: Dialect, entries: list[StoredMessage]) -> list[str]:
    """Return the errors and warnings of a memory."""
    examiner = MemoryExaminer(
        MEMORY, Limits(now=datetime(2030, 1, 1)), repeats=True, dialect=dialect
    )
    examiner.take(Page(MEMORY, entries))
    found = [one.code for one in examiner.faults()]
    return [code for code in found if KINDS[code].severity is not Severity.NOTICE]


def lines(blocks: list[Block]) -> Iterator[tuple[bool, str]]:
    """Yield the lines of all texts, each with whether it is in the output of a tool."""
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            yield from ((True, line) for _, line in lines(block.output))
        elif isinstance(block, TextBlock):
            yield from ((False, line) for line in block.text.splitlines())


def said(dialect: Dialect, entries: list[StoredMessage]) -> list[tuple[str, str]]:
    """Return the lines of all texts, each with the role of the speaker, or ``tool``."""
    views = [dialect.parse(one.message) for one in entries]
    return [
        (TOOL if in_tool else str(view.role), line)
        for view in views
        for in_tool, line in lines(view.blocks)
    ]


@pytest.mark.parametrize("name", HEALTHY)
def test_the_memories_are_healthy(name: str) -> None:
    assert codes(DIALECTS[name], stored(name)) == []


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_copy_says_nothing_that_its_source_does_not_say(source: str, target: str) -> None:
    there, here = DIALECTS[source], DIALECTS[target]
    entries = stored(source)
    copied = convert(there, here, MEMORY, entries)[1]
    assert codes(here, copied) == []
    before, after = said(there, entries), said(here, copied)
    words = {line for _, line in after if WORD.fullmatch(line)}
    spoken = {(role if role in (*ROLES, TOOL) else "user", line) for role, line in before}
    assert {one for one in after if one[1] not in words} <= spoken
    losses = Losses(there, here, MEMORY)
    for one in entries:
        losses.add(one.message)
    # AgentScope 1.x keeps a file, and skips the file when it sends the message.
    shown = losses.contents.keys() - ({"file"} if target == "agentscope1" else set())
    assert bool(words) == bool(shown or losses.waiting or losses.open_calls)
    unheld = [role for role, line in before if role not in (*ROLES, TOOL) and line]
    assert set(losses.roles) == set(unheld) - {"compaction"}
    if here.holds_notes:
        back = convert(here, there, MEMORY, copied)[1]
        assert [jsonio.canonical(one.message) for one in back] == [
            jsonio.canonical(one.message) for one in entries
        ]


def test_a_thread_of_langgraph_before_a_call_that_waits_is_healthy() -> None:
    """LangChain's own tables get these messages, in the same dialect."""
    dialect, entries = DIALECTS["langchain"], stored("langchain")
    thread = replace(MEMORY, waits=True)
    kept = [before_waiting(dialect, thread, entries[:end]) for end in range(len(entries) + 1)]
    assert list(map(len, kept)) == [0, 1, 1, 3, 4], "the second message is a call"
    assert [codes(dialect, some) for some in kept] == [[]] * len(kept)
