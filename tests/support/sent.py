"""The requests of agents to their models, and the contexts that memctl shows, in one form.

A message is a pair of a role and its parts.  A part is ``("text", text)``, ``("image", base64 or
URL)``, ``("call", N, name, arguments)``, ``("result", N, text)`` or ``("item", type)``.  N is the
number of the call: some frameworks send other ids than they store, or none.  The role of a result
is ``tool``.  Empty texts and reasoning are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from memctl.dialects.view import (
    Block,
    Dialect,
    MediaBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)

Part = tuple[Any, ...]
Message = tuple[str, list[Part]]


def shown(messages: Iterable[Any], dialect: Dialect) -> list[Message]:
    """Return messages that memctl shows."""
    found: list[Message] = []
    for message in messages:
        view = dialect.parse(json.dumps(message).encode())
        parts = [part for block in view.blocks for part in _shown(block)]
        role = view.role if view.role in ("user", "assistant") else "assistant"
        found.append(("tool" if any(one[0] == "result" for one in parts) else role, parts))
    return _numbered(found)


def _shown(block: Block) -> list[Part]:
    match block:
        case TextBlock(text):
            return [("text", text)] if text else []
        case MediaBlock("image", url, _, data):
            return [("image", url or data)]
        case ToolCallBlock(id, name, input):
            return [("call", id or name, name, input)]
        case ToolResultBlock(id, name, output):
            texts = [one.text for one in output if isinstance(one, TextBlock)]
            return [("result", id or name, "".join(texts))]
        case UnknownBlock(kind):
            return [("item", kind)]
    return []


def _numbered(messages: Iterable[Message]) -> list[Message]:
    """Return messages with the numbers of calls in the place of their ids."""
    numbers: dict[str, int] = {}
    count = 0
    found: list[Message] = []
    for role, parts in messages:
        done: list[Part] = []
        for kind, *rest in parts:
            if kind == "call":
                count += 1
                numbers[rest[0]] = count
            if kind in ("call", "result"):
                rest[0] = numbers.get(rest[0])
            done.append((kind, *rest))
        found.append((role, done))
    return found


def _texts(*texts: str) -> list[Part]:
    return [("text", text) for text in texts if text]


def _image(url: str) -> Part:
    return "image", url.rpartition("base64,")[2]


def chat(messages: list[Any]) -> list[Message]:
    """Return messages of OpenAI's Chat Completions, without instructions."""
    found: list[Message] = []
    for message in messages:
        content = message.get("content") or ""
        given = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts: list[Part] = []
        for part in given:
            if part["type"] == "image_url":
                parts.append(_image(part["image_url"]["url"]))
            else:
                parts += _texts(part["text"])
        if message["role"] == "tool":
            parts = [("result", message["tool_call_id"], "".join(one[1] for one in parts))]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = json.loads(function["arguments"])
            parts.append(("call", call["id"], function["name"], arguments))
        if message["role"] not in ("system", "developer"):
            found.append((message["role"], parts))
    return _numbered(found)


def responses(items: list[Any]) -> list[Message]:
    """Return items of OpenAI's Responses."""
    return _numbered(map(_item, items))


def _item(item: Any) -> Message:
    match item.get("type", "message"):
        case "function_call":
            arguments = json.loads(item["arguments"])
            return "assistant", [("call", item["call_id"], item["name"], arguments)]
        case "function_call_output":
            return "tool", [("result", item["call_id"], item["output"])]
        case "message":
            content = item["content"]
            given = [{"text": content}] if isinstance(content, str) else content
            parts = [
                part
                for one in given
                for part in (
                    [_image(one["image_url"])] if "image_url" in one else _texts(one["text"])
                )
            ]
            return item["role"], parts
        case kind:
            return "assistant", [("item", kind)] if kind != "reasoning" else []


def gemini(contents: list[Any]) -> list[Message]:
    """Return contents of Gemini."""
    found: list[Message] = []
    for content in contents:
        role = "assistant" if content["role"] == "model" else "user"
        parts: list[Part] = []
        for part in content["parts"]:
            match part:
                case {"functionCall": {"name": name, "args": args, **call}}:
                    parts.append(("call", call.get("id", name), name, args))
                case {"functionResponse": {"name": name, "response": response, **result}}:
                    role = "tool"
                    text = response.get("result") if len(response) == 1 else None
                    if not isinstance(text, str):
                        text = json.dumps(response, separators=(",", ":"), ensure_ascii=False)
                    parts.append(("result", result.get("id", name), text))
                case {"inlineData": {"data": str(data)}}:
                    parts.append(("image", data.replace("-", "+").replace("_", "/")))
                case {"text": text}:
                    parts += _texts(text)
        found.append((role, parts))
    return _numbered(found)


def langchain(messages: list[Any]) -> list[Message]:
    """Return messages of LangChain, as ``messages_to_dict`` gives them."""
    roles = {"human": "user", "ai": "assistant"}
    found: list[Message] = []
    for message in messages:
        kind, data = message["type"], message["data"]
        content = data["content"]
        given = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts: list[Part] = []
        for part in given:
            if part["type"] == "image_url":
                parts.append(_image(part["image_url"]["url"]))
            else:
                parts += _texts(part["text"])
        if kind == "tool":
            parts = [("result", data["tool_call_id"], "".join(one[1] for one in parts))]
        for call in data.get("tool_calls") or ():
            parts.append(("call", call["id"], call["name"], call["args"]))
        found.append((roles.get(kind, kind), parts))
    return _numbered(found)


def llamaindex(messages: list[Any]) -> list[Message]:
    """Return messages of LlamaIndex, as ``ChatMessage.model_dump`` gives them."""
    found: list[Message] = []
    for message in messages:
        parts: list[Part] = []
        for block in message["blocks"]:
            match block:
                case {"block_type": "tool_call", "tool_call_id": id, "tool_name": name}:
                    parts.append(("call", id, name, block["tool_kwargs"]))
                case {"block_type": "image", "image": data}:
                    parts.append(("image", data))
                case {"text": text}:
                    parts += _texts(text)
        if message["role"] == "tool":
            id = message["additional_kwargs"]["tool_call_id"]
            parts = [("result", id, "".join(one[1] for one in parts))]
        found.append((message["role"], parts))
    return _numbered(found)
