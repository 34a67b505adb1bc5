"""Conversations with tools, healthy and broken."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from memctl.model import StoredMessage

OLD = datetime(2025, 3, 1, 12)
Marked = tuple[dict[str, Any], list[str]]


def said(
    id: str,
    content: Any,
    role: str = "assistant",
    marks: tuple[str, ...] = (),
    *,
    at: datetime = OLD,
) -> Marked:
    """Return a message of AgentScope, and its marks."""
    name = {"user": "Alice", "assistant": "Friday", "system": "system"}[role]
    message = {"id": id, "name": name, "role": role, "content": content, "metadata": {}}
    return {**message, "timestamp": at.isoformat(" ", "milliseconds")}, list(marks)


def call(id: str, *tools: str, **about: Any) -> Marked:
    """Return a message in which the agent calls tools."""
    blocks = [{"type": "tool_use", "id": tool, "name": "search", "input": {}} for tool in tools]
    return said(id, blocks, **about)


def result(id: str, tool: str, output: Any = "found", **about: Any) -> Marked:
    """Return a tool result, as AgentScope writes it."""
    block = {"type": "tool_result", "id": tool, "name": "search", "output": output}
    return said(id, [block], "system", **about)


def nameless(id: str, tool: str) -> Marked:
    """Return a message in which the agent calls a tool without a name."""
    return said(id, [{"type": "tool_use", "id": tool, "name": "", "input": {}}])


def cut(id: str, tool: str) -> Marked:
    """Return a message in which the agent calls a tool with truncated arguments."""
    return said(id, [{"type": "tool_use", "id": tool, "name": "search", "input": '{"q": "Ky'}])


def with_fields(id: str, **fields: Any) -> Marked:
    """Return a reply with empty content and with fields of an application."""
    message, marks = said(id, "")
    return message | fields, marks


STOPPED = "The tool call has been interrupted by the user."
ASK = said("q", "where?", "user")
REPLY = said("r", "there")
HEALTHY = [
    ASK,
    said("t", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "let me see"}]),
    call("c1", "t1", "t2"),
    result("r1", "t1"),
    result("r2", "t2", [{"type": "text", "text": "found"}]),
    call("c2", "t3"),
    result("r3", "t3"),
    REPLY,
]

BROKEN: dict[str, list[tuple[list[Marked], list[str]]]] = {
    "tool-call-without-result": [
        ([ASK, call("bad", "t1"), REPLY], ["bad"]),
        ([ASK, call("bad", "t1", "t2"), result("r1", "t2"), REPLY], ["bad"]),
        ([ASK, call("bad", "t1")], ["bad"]),
    ],
    "tool-result-without-call": [
        ([ASK, result("bad", "t1"), REPLY], ["bad"]),
        ([ASK, call("c1", "t1", marks=("compressed",)), result("bad", "t1"), REPLY], ["bad"]),
    ],
    "tool-result-before-call": [
        ([ASK, result("bad", "t1"), call("c1", "t1"), REPLY], ["bad"]),
        (
            [said("bad", [*call("", "t1")[0]["content"], *result("", "t1")[0]["content"]])],
            ["bad"],
        ),
    ],
    "repeated-tool-call": [
        ([ASK, call("bad", "t1"), call("c2", "t1"), result("r1", "t1"), REPLY], ["bad"]),
        ([ASK, call("bad", "t1", "t1"), result("r1", "t1"), REPLY], ["bad"]),
    ],
    "repeated-tool-result": [
        ([ASK, call("c1", "t1"), result("r1", "t1"), result("bad", "t1"), REPLY], ["bad"]),
        ([ASK, call("c1", "t1"), result("bad", "t1", STOPPED), result("r1", "t1")], ["bad"]),
        ([ASK, call("c1", "t1"), result("r1", "t1"), result("bad", "t1", STOPPED)], ["bad"]),
        ([ASK, call("c1", "t1"), result("r1", "t1"), result("bad", "t1", "other")], ["bad"]),
    ],
    "reused-call-id": [
        (
            [call("c1", "t1"), result("r1", "t1"), call("bad", "t1"), result("r2", "t1", "b")],
            ["bad"],
        ),
    ],
    "incomplete-tool-call": [
        ([ASK, call("bad", ""), REPLY], ["bad"]),
        ([ASK, nameless("bad", "t1"), result("r1", "t1"), REPLY], ["bad"]),
        ([ASK, nameless("bad", "t1"), REPLY], ["bad"]),
        ([ASK, call("c1", "t1"), result("bad", ""), result("r1", "t1"), REPLY], ["bad"]),
    ],
    "invalid-arguments": [
        ([ASK, cut("bad", "t1"), result("r1", "t1"), REPLY], ["bad"]),
    ],
    "unread-message": [
        ([ASK, with_fields("bad", metadata={"answer": 42})], ["bad"]),
    ],
    "tool-result-apart": [
        ([call("c1", "t1"), ASK, result("bad", "t1"), REPLY], ["bad"]),
        ([call("c1", "t1"), call("c2", "t2"), result("bad", "t1"), result("r2", "t2")], ["bad"]),
    ],
    "empty-assistant-message": [
        ([ASK, said("bad", "")], ["bad"]),
        ([ASK, said("bad", " \n")], ["bad"]),
        ([ASK, said("bad", [])], ["bad"]),
        ([ASK, said("bad", [{"type": "text", "text": ""}])], ["bad"]),
    ],
    "oversized-tool-result": [
        ([call("c1", "t1"), result("bad", "t1", "x" * 100_001)], ["bad"]),
        (
            [
                call("c1", "t1"),
                result("bad", "t1", [{"type": "text", "text": "会" * 40_000}]),
            ],
            ["bad"],
        ),
        ([call("c1", "t1"), result("bad", "t1", "x" * 3_000_000)], ["bad"]),
    ],
    "leftover-hint": [
        ([ASK, said("bad", "do it", "user", ("hint",)), REPLY], ["bad"]),
        ([ASK, REPLY, said("bad", "do it", "user", ("hint",))], ["bad"]),
    ],
}
"""Histories with one fault each, and the ids of the faulty messages, by the code of the fault."""

MISSHAPEN: dict[str, Any] = {
    "no name": {"id": "bad", "role": "user", "content": "a"},
    "no role": {"id": "bad", "name": "n", "content": "a"},
    "no content": {"id": "bad", "name": "n", "role": "user"},
    "no text or list": {"id": "bad", "name": "n", "role": "user", "content": {"type": "text"}},
    "null": {"id": "bad", "name": "n", "role": "user", "content": None},
    "another role": {"id": "bad", "name": "n", "role": "tool", "content": "a"},
    "a text for a block": {"id": "bad", "name": "n", "role": "user", "content": ["a"]},
    "no type": {"id": "bad", "name": "n", "role": "user", "content": [{"text": "a"}]},
    "no text": {"id": "bad", "name": "n", "role": "user", "content": [{"type": "text"}]},
    "no id of a call": {
        "id": "bad",
        "name": "n",
        "role": "assistant",
        "content": [{"type": "tool_use", "name": "search", "input": {}}],
    },
}
"""Messages that AgentScope cannot load or send."""


def recent(minutes: float) -> datetime:
    """Return the time a number of minutes ago."""
    return datetime.now() - timedelta(minutes=minutes)


def entry(marked: Marked) -> StoredMessage:
    """Return the message as a store yields it."""
    message, marks = marked
    return StoredMessage(message.get("id", ""), json.dumps(message).encode(), tuple(marks))


def entries(history: list[Marked]) -> list[StoredMessage]:
    """Return the messages of a whole history."""
    return [entry(marked) for marked in history]
