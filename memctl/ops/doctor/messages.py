"""What one message is to AgentScope: whether it loads, and which tools it calls and answers.

Sources: ``message/_message_base.py`` (what loads), ``formatter/*`` (what is sent) and
``message/_message_block.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from memctl import codec

LARGE_BYTES = 1 << 20
"""From here on the long texts of a message are not looked into: it may be of any size."""

_ROLES = ("user", "assistant", "system")


class ToolCall(NamedTuple):
    """A call of a tool: its id, and the name of the tool."""

    id: str
    name: str


@dataclass(slots=True)
class ExaminedMessage:
    """What is to be known of a message.

    ``fault`` says why AgentScope cannot load or send it.  ``results`` has a pair of id and bytes
    for each tool result; ``only_tools`` tells that nothing stands beside calls and results but
    thinking.
    """

    fault: str = ""
    id: str | None = None
    moment: datetime | None = None
    calls: list[ToolCall] = field(default_factory=list)
    results: list[tuple[str, int]] = field(default_factory=list)
    is_empty: bool = False
    only_tools: bool = True


def examine(text: bytes) -> ExaminedMessage:
    """Looks at the JSON text of a message."""
    try:
        message = codec.outline(text)
    except ValueError as error:
        return ExaminedMessage(fault=f"not JSON: {error}")
    fault = _fault(message)
    if fault:
        return ExaminedMessage(fault=fault)
    id = message.get("id")
    found = ExaminedMessage(id=id if isinstance(id, str) else None, moment=moment(message))
    content = message["content"]
    if isinstance(content, str):
        found.only_tools = False
        found.is_empty = message["role"] == "assistant" and _is_blank(content, text)
        return found
    blank = True
    for block in content:
        match block["type"]:
            case "tool_use":
                found.calls.append(ToolCall(_id(block), str(block["name"])))
                blank = False
            case "tool_result":
                found.results.append((_id(block), _size(block.get("output"), text)))
                blank = False
            case "text":
                said = block["text"]
                if not (isinstance(said, str) and _is_blank(said, text)):
                    blank = found.only_tools = False
            case "thinking":
                blank = False
            case _:
                blank = found.only_tools = False
    found.is_empty = blank and message["role"] == "assistant"
    return found


def moment(message: dict[str, Any]) -> datetime | None:
    """When it was made, in local time without a zone as AgentScope writes it."""
    try:
        found = datetime.fromisoformat(message["timestamp"])
    except (KeyError, TypeError, ValueError):
        return None
    return found.astimezone().replace(tzinfo=None) if found.tzinfo else found


def _fault(message: Any) -> str:
    if not isinstance(message, dict):
        return "no object"
    for name in ("name", "role", "content"):
        if name not in message:
            return f"no {name}"
    if message["role"] not in _ROLES:
        return "its role is none of user, assistant, system"
    content = message["content"]
    if isinstance(content, str):
        return ""
    if not isinstance(content, list):
        return "its content is neither a text nor a list of blocks"
    for block in content:
        if not isinstance(block, dict) or "type" not in block:
            return "a block of its content has no type"
        needed = _NEEDED.get(block["type"] if isinstance(block["type"], str) else "", ())
        if any(name not in block for name in needed):
            return f"a {block['type']} block lacks {' or '.join(needed)}"
    return ""


_NEEDED = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("id", "output")}
"""What AgentScope takes out of a block without asking whether it is there."""


def _is_blank(said: str, text: bytes) -> bool:
    # The long texts of a large message come empty, whatever they say.
    return len(text) < LARGE_BYTES and not said.strip()


def _id(block: dict[str, Any]) -> str:
    id = block["id"]
    return id if isinstance(id, str) else repr(id)


def _size(output: Any, text: bytes) -> int:
    """The bytes of a result; of a large message, those of the whole message."""
    return len(text) if len(text) >= LARGE_BYTES else _bytes(output)


def _bytes(value: Any) -> int:
    """The bytes of the texts in a value, media included."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return 0
