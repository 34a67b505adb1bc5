"""A model's server on loopback for the agents of real frameworks; keeps what they send.

It speaks OpenAI's Chat Completions and Responses, and Gemini's ``generateContent``.  If the last
message is one of the user that begins with the name of a tool, such as ``weather Kyoto``, the model
calls this tool; else it answers ``Answer N.``, where N counts the requests.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.summarizers.server import ModelServer, Reply, Request

CALLS: dict[str, dict[str, Any]] = {
    "weather": {"city": "Kyoto"},
    "pay": {"amount": 200},
    "book": {"seat": "12A"},
    "call": {"number": 7},
}
"""The tools that the model calls, with the arguments."""


class Said(NamedTuple):
    """An answer of the model: a text, or the call of a tool."""

    number: int
    tool: str = ""

    @property
    def text(self) -> str:
        return f"Answer {self.number}."


class RecordingServer(ModelServer):
    """A model that answers agents; ``requests`` has what they sent."""

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        number = len(self.requests)
        kind = next(kind for kind in _KINDS if kind in request.path)
        asked, reply = _KINDS[kind]
        word = asked(request.body).partition(" ")[0]
        return Reply(reply(Said(number, word if word in CALLS else "")))


def _text(content: Any) -> str:
    """Return the first text of a content, a text or a list of parts."""
    if isinstance(content, str):
        return content
    return next((part["text"] for part in content or () if "text" in part), "")


def _chat_question(body: dict[str, Any]) -> str:
    last = body["messages"][-1]
    return _text(last["content"]) if last["role"] == "user" else ""


def _chat(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.tool:
        function = {"name": said.tool, "arguments": json.dumps(CALLS[said.tool])}
        call = {"id": f"call_{said.number}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    finish = "tool_calls" if said.tool else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    about = {"id": f"chat_{said.number}", "object": "chat.completion", "created": 1790000000}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return about | {"model": "m", "choices": [choice], "usage": usage}


def _responses_question(body: dict[str, Any]) -> str:
    last = body["input"] if isinstance(body["input"], str) else body["input"][-1]
    if isinstance(last, str):
        return last
    return _text(last["content"]) if last.get("role") == "user" else ""


def _responses(said: Said) -> dict[str, Any]:
    text = {"type": "output_text", "text": said.text, "annotations": []}
    item: dict[str, Any] = {"id": f"msg_{said.number}", "type": "message", "role": "assistant"}
    item |= {"status": "completed", "content": [text]}
    if said.tool:
        item = {"id": f"fc_{said.number}", "type": "function_call", "status": "completed"}
        item |= {"call_id": f"call_{said.number}", "name": said.tool}
        item |= {"arguments": json.dumps(CALLS[said.tool])}
    return _response(said.number, [item])


def _response(number: int, output: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"id": f"resp_{number}", "object": "response", "created_at": 1790000000}
    about |= {"status": "completed", "model": "m", "output": output, "tools": []}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    return about | {"usage": usage, "parallel_tool_calls": True, "tool_choice": "auto"}


def _compact(said: Said) -> dict[str, Any]:
    item = {"type": "compaction", "id": f"cmp_{said.number}", "encrypted_content": "gAAA"}
    return _response(said.number, [item]) | {"object": "response.compaction"}


def _gemini_question(body: dict[str, Any]) -> str:
    last = body["contents"][-1]
    return _text(last["parts"]) if last["role"] == "user" else ""


def _gemini(said: Said) -> dict[str, Any]:
    part: dict[str, Any] = {"text": said.text}
    if said.tool:
        part = {"functionCall": {"name": said.tool, "args": CALLS[said.tool]}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}


_KINDS = {
    "/chat/completions": (_chat_question, _chat),
    "/responses/compact": (_responses_question, _compact),
    "/responses": (_responses_question, _responses),
    ":generateContent": (_gemini_question, _gemini),
}
"""The ends of the paths that the server knows: what was asked, and how it answers."""
