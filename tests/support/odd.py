"""Unexpected messages that frameworks write, for conversations of every framework.

Each function returns the possible n-th messages of a dialect: texts, calls and results with a few
ids that repeat, are empty or null, truncated arguments, replies without text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from memctl.dialects.registry import DIALECTS
from memctl.dialects.rows import RowDialect
from memctl.model import StoredMessage

Value = dict[str, Any]
CUT = '{"path": "/sr'
OUTPUTS = ("a b", "c", "The tool call has been interrupted by the user.", "")
TIME = "2025-03-01T12:{:02}:00"


def _agentscope(n: int, call: str, image: str) -> list[Value]:
    def said(role: str, *blocks: Any, **more: Any) -> Value:
        name = {"user": "Alice", "assistant": "Friday"}.get(role, "system")
        content = [
            {"type": "text", "text": one, "id": f"b{n}"} if isinstance(one, str) else one
            for one in blocks
        ]
        return {"id": f"m{n}", "name": name, "role": role, "content": content} | more

    def use(id: Any, name: Any = "ls", input: Any = None) -> Value:
        given = input if input is not None else "{}" if call == "tool_call" else {}
        return {"type": call, "id": id, "name": name, "input": given}

    def result(id: Any, output: Any = "a b") -> Value:
        return {"type": "tool_result", "id": id, "name": "ls", "output": output}

    answering = "assistant" if call == "tool_call" else "system"
    return [
        said("user", f"question {n}"),
        said("assistant", f"answer {n}"),
        said("assistant"),
        said("assistant", " "),
        said("assistant", {"type": "thinking", "thinking": f"thought {n}"}),
        said("assistant", metadata={"answer": n}),
        said("assistant", another=n),
        said("assistant", {"type": image, "source": {"type": "url", "url": "https://example.com"}}),
        said("assistant", use("c1")),
        said("assistant", f"look {n}", use("c1"), use("c2")),
        said("assistant", use("c1"), use("c1")),
        said("assistant", use("c2", input=CUT)),
        said("assistant", use("")),
        said("assistant", use("c2", name="")),
        said("assistant", use(None, name=None)),
        said("assistant", use("c1"), result("c1"), use("c1"), result("c1", "c")),
        said(answering, result(""), f"and {n}"),
        said(answering, result("c1"), result("c1")),
        said(answering, result("c1"), result("c2", "c")),
        *(said(answering, result("c1", output)) for output in OUTPUTS),
        said(answering, result("c2"), another=n),
    ]


def agentscope1(n: int) -> list[Value]:
    """Return messages of AgentScope 1.x."""
    time = TIME.format(n).replace("T", " ") + ".000"
    return [
        {"timestamp": time, "metadata": {}} | one for one in _agentscope(n, "tool_use", "image")
    ]


def agentscope2(n: int) -> list[Value]:
    """Return messages of AgentScope 2.x."""
    about: Value = {
        "created_at": TIME.format(n),
        "finished_at": None,
        "metadata": {},
        "usage": None,
    }
    found = [about | one for one in _agentscope(n, "tool_call", "data")]
    return [*found, *({**found[2], name: {"a": n}} for name in ("structured_output", "error"))]


def runtime(n: int) -> list[Value]:
    """Return messages of agentscope-runtime."""

    def message(kind: str, role: str, *contents: Value, **more: Any) -> Value:
        about = {"original_id": f"m{n}", "original_name": "n", "metadata": {}}
        return {"id": f"m{n}", "object": "message", "type": kind, "role": role} | {
            "content": list(contents),
            "metadata": about | more,
        }

    def tool(**data: Any) -> Value:
        return {"type": "data", "data": data}

    return [
        message("message", "user", {"type": "text", "text": f"question {n}"}),
        message("message", "assistant", {"type": "text", "text": f"answer {n}"}),
        message("message", "assistant"),
        message("message", "assistant", answer=n),
        message("reasoning", "assistant", {"type": "text", "text": f"thought {n}"}),
        *(
            message("plugin_call", "assistant", tool(call_id=id, name="ls", arguments=arguments))
            for id, arguments in (("c1", "{}"), ("c2", CUT), ("", "{}"))
        ),
        *(
            message("plugin_call_output", "tool", tool(call_id="c1", name="ls", output=output))
            for output in OUTPUTS
        ),
    ]


def _functions(*calls: tuple[Any, Any, str]) -> list[Value]:
    return [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]


_CALLS = [
    _functions(("c1", "ls", "{}")),
    _functions(("c1", "ls", "{}"), ("c2", "cat", "")),
    _functions(("c1", "ls", "{}"), ("c1", "ls", "{}")),
    _functions(("c2", "ls", CUT)),
    _functions(("", "", "")),
    _functions((None, None, "{}")),
]


def openai(n: int) -> list[Value]:
    """Return messages of chat completions, including the API before tools."""

    def said(role: str, content: Any = None, **more: Any) -> Value:
        return {"role": role, "content": content} | more

    return [
        said("user", f"question {n}"),
        said("assistant", f"answer {n}"),
        said("assistant", ""),
        said("assistant"),
        said("assistant", audio={"id": f"audio_{n}"}),
        said("assistant", refusal=f"no {n}"),
        said("assistant", reasoning_content=f"thought {n}"),
        *(said("assistant", tool_calls=calls) for calls in _CALLS),
        said("assistant", f"look {n}", tool_calls=_CALLS[2]),
        said("assistant", function_call={"name": "ls", "arguments": "{}"}),
        said("function", f"found {n}", name="ls"),
        *(said("tool", output, tool_call_id="c1") for output in OUTPUTS),
        said("tool", f"found {n}", tool_call_id=None),
    ]


def langchain(n: int) -> list[Value]:
    """Return messages of LangChain, including older versions and LangChain.js."""

    def said(kind: str, content: Any = "", **more: Any) -> Value:
        return {"type": kind, "data": {"content": content, "type": kind} | more}

    own = [{"name": "ls", "args": {}, "id": "c1", "type": "tool_call"}]
    bad = [{"name": "ls", "args": CUT, "id": "c2", "error": "x", "type": "invalid_tool_call"}]
    block = {"type": "tool_use", "id": "c1", "name": "ls", "input": {}}
    return [
        said("human", f"question {n}"),
        said("ai", f"answer {n}"),
        said("ai"),
        said("ai", response_metadata={"finish_reason": "stop"}),
        said("ai", additional_kwargs={"refusal": None}),
        said("ai", additional_kwargs={"refusal": f"no {n}"}),
        said("ai", additional_kwargs={"audio": {"id": n}}),
        *(said("ai", additional_kwargs={"tool_calls": calls}) for calls in _CALLS),
        said("ai", tool_calls=own, additional_kwargs={"tool_calls": _CALLS[0]}),
        said("ai", tool_calls=[*own, *own]),
        said("ai", [block, {"type": "text", "text": f"look {n}"}], tool_calls=own),
        said("ai", [block, block], tool_calls=[*own, *own]),
        said("ai", tool_calls=[], invalid_tool_calls=bad),
        said("ai", additional_kwargs={"function_call": {"name": "ls", "arguments": "{}"}}),
        said("function", f"found {n}", name="ls"),
        *(said("tool", output, tool_call_id="c1") for output in OUTPUTS),
        said("tool", f"found {n}", tool_call_id=None, artifact={"a": n}),
    ]


def openai_agents(n: int) -> list[Value]:
    """Return items of the OpenAI Agents SDK."""
    text = {"type": "output_text", "text": f"answer {n}", "annotations": []}

    def call(of: Any, **more: Any) -> Value:
        return {"type": "function_call", "call_id": of, "name": "ls", "arguments": "{}"} | more

    def answer(id: str, **more: Any) -> Value:
        role = {"role": "assistant", "type": "message", "status": "completed"}
        return role | {"id": id, "content": [text]} | more

    return [
        {"role": "user", "content": f"question {n}"},
        answer(f"msg_{n}"),
        answer("msg_0"),
        answer("msg_1", content=[]),
        answer("__fake_id__"),
        {"type": "reasoning", "id": f"rs_{n}", "summary": []},
        {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": "hm"}]},
        call("c1", id=f"fc_{n}"),
        call("c1", id="fc_0"),
        call("c2"),
        call("c2", arguments=CUT),
        call(""),
        call("c2", name=""),
        {"type": "custom_tool_call", "call_id": "c1", "name": "py", "input": "print(1)"},
        {"type": "web_search_call", "id": f"ws_{n}", "status": "completed"},
        *(
            {"type": "function_call_output", "call_id": "c1", "output": output}
            for output in OUTPUTS
        ),
        {"type": "function_call_output", "call_id": "c2", "output": f"found {n}"},
    ]


def llamaindex(n: int) -> list[Value]:
    """Return messages of LlamaIndex, including versions before blocks."""

    def said(role: str, *blocks: Value, **more: Any) -> Value:
        return {"role": role, "blocks": list(blocks), "additional_kwargs": more}

    def text(value: str) -> Value:
        return {"block_type": "text", "text": value}

    def block(id: Any) -> Value:
        return {"block_type": "tool_call", "tool_call_id": id, "tool_name": "ls"} | {
            "tool_kwargs": {}
        }

    anthropic = [{"type": "tool_use", "id": "c1", "name": "ls", "input": {}}]
    return [
        said("user", text(f"question {n}")),
        said("assistant", text(f"answer {n}")),
        said("assistant"),
        said("assistant", audio={"id": n}),
        *(said("assistant", text(""), tool_calls=calls) for calls in _CALLS),
        said("assistant", tool_calls=anthropic),
        said("assistant", block("c1"), tool_calls=_CALLS[0]),
        said("assistant", block("c1"), block("c1"), text(f"look {n}")),
        said("assistant", function_call={"name": "ls", "arguments": "{}"}),
        said("function", text(f"found {n}"), name="ls"),
        {"role": "assistant", "content": f"old {n}", "additional_kwargs": {}},
        *(said("tool", text(output), tool_call_id="c1") for output in OUTPUTS),
    ]


def adk(n: int) -> list[Value]:
    """Return events of Google's Agent Development Kit."""

    def event(author: str, *parts: Value, **more: Any) -> Value:
        about = {"id": f"e{n}", "author": author, "invocation_id": "i", "timestamp": 1.7e9 + n}
        role = "user" if author == "user" else "model"
        return about | {"content": {"parts": list(parts), "role": role}, "actions": {}} | more

    def call(id: Any, name: str = "ls") -> Value:
        return {"function_call": {"id": id, "name": name, "args": {}}}

    def result(id: Any, output: str) -> Value:
        response = {"id": id, "name": "ls", "response": {"result": output}}
        return {"function_response": response}

    return [
        event("user", {"text": f"question {n}"}),
        event("friday", {"text": f"answer {n}"}),
        event("friday"),
        event("friday", {"text": ""}),
        event("friday", content=None, actions={"state_delta": {"a": n}}),
        event("friday", error_code="429", error_message=f"busy {n}", content=None),
        event("friday", {"executable_code": {"code": "1", "language": "PYTHON"}}),
        event("friday", call("c1"), call("c2")),
        event("friday", call("c1"), call("c1")),
        event("friday", call("c1"), {"text": f"look {n}"}, long_running_tool_ids=["c1"]),
        event("friday", call(None)),
        event("friday", result("c2", "c"), result("c1", "a b")),
        *(event("friday", result("c1", output)) for output in OUTPUTS),
    ]


def agno(n: int) -> list[Value]:
    """Return messages of Agno's runs."""

    def said(role: str, content: Any = None, **more: Any) -> Value:
        about = {"id": f"m{n}", "role": role, "created_at": 1_700_000_000 + n}
        return about | ({} if content is None else {"content": content}) | more

    return [
        said("user", f"question {n}"),
        said("assistant", f"answer {n}"),
        said("assistant"),
        said("assistant", image_output={"id": n, "url": "https://example.com/a.png"}),
        said("assistant", provider_data={"response_id": n}),
        *(said("assistant", tool_calls=calls) for calls in _CALLS),
        said("assistant", f"look {n}", tool_calls=_CALLS[2]),
        *(said("tool", output, tool_call_id="c1", tool_name="ls") for output in OUTPUTS),
    ]


def role_content(n: int) -> list[Value]:
    """Return rows of a user's own table."""
    found: list[Value] = []
    for one in agentscope1(n):
        row = {"id": one["id"], "role": one["role"], "content": one["content"]}
        others = one.keys() - row.keys() - {"name", "timestamp", "metadata"}
        metadata = one["metadata"] | {name: one[name] for name in others}
        found.append(row | ({"metadata": metadata} if metadata else {}))
    return [*found, {"id": f"m{n}", "role": "assistant", "content": None}]


ODD: dict[str, Callable[[int], list[Value]]] = {
    "agentscope1": agentscope1,
    "agentscope2": agentscope2,
    "runtime": runtime,
    "openai": openai,
    "langchain": langchain,
    "openai-agents": openai_agents,
    "llamaindex": llamaindex,
    "adk": adk,
    "agno": agno,
    "role-content": role_content,
}
"""A function for each dialect that returns the possible n-th messages of a conversation."""


def entries(dialect: str, choices: list[int]) -> list[StoredMessage]:
    """Return a conversation; each choice is the number of a message of the dialect."""
    known = DIALECTS[dialect]
    found = []
    for n, choice in enumerate(choices):
        possible = ODD[dialect](n)
        value = possible[choice % len(possible)]
        if isinstance(known, RowDialect) and known.documents:
            value = {"content": value}
            if dialect in ("openai-agents", "llamaindex"):
                value["time"] = f"{TIME.format(n)}.000000+00:00"
        id = known.message_id(value)
        assert id is not None
        found.append(StoredMessage(id, json.dumps(value).encode()))
    return found
