"""The messages of agentscope-runtime's services.

Sources in agentscope-runtime 1.0.5: ``engine/schemas/agent_schemas.py`` (storing and loading) and
``adapters/agentscope/message.py`` (conversion from and to AgentScope).  The adapter splits a
message of AgentScope into several messages.  Their ``metadata`` holds ``original_id`` and
``original_name`` of the original message.  The time of the original message is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from memctl.dialects.agentscope import (
    CONTENT,
    ID,
    ROLE,
    AgentScopeDialect,
    AgentScopeView,
    decoded,
    string,
)
from memctl.dialects.agentscope1 import AGENTSCOPE1, AgentScope1View
from memctl.dialects.rows import media_at, place_of
from memctl.dialects.view import (
    TOOL,
    Block,
    HintBlock,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSide,
    UnknownBlock,
    held,
    object_at,
    others,
    text_of,
)
from memctl.json import jsonio

_CALL_TYPES = ("plugin_call", "function_call", "component_call", "mcp_call")
_OUTPUT = "_output"
_SIDES = dict.fromkeys(_CALL_TYPES, ToolSide.CALL) | {
    name + _OUTPUT: ToolSide.RESULT for name in _CALL_TYPES
}
_ROLES = ("user", "assistant", "system", "tool", None)
_CONTENTS = ("text", "image", "data", "audio", "file", "refusal")
_ABOUT = ("original_id", "original_name", "metadata")
"""The metadata fields written by the services themselves."""


class RuntimeView(AgentScopeView):
    """A view of a message of agentscope-runtime."""

    __slots__ = ()
    known = frozenset(
        {
            *(ID, ROLE, CONTENT, "object", "type", "status", "metadata", "usage", "error"),
            *("code", "message", "sequence_number"),
        }
    )

    @property
    def name(self) -> str | None:
        return text_of(self.metadata, "original_name")

    @property
    def time(self) -> None:
        return None

    @property
    def unread(self) -> dict[str, Any]:
        about = self.metadata
        return held(others(about, _ABOUT), object_at(about, "metadata"), self.unknown)

    @property
    def kind(self) -> str:
        """The type of the message, such as ``reasoning`` or ``plugin_call``."""
        return string(self.value.get("type", "message"))

    @property
    def blocks(self) -> list[Block]:
        kind, found = self.kind, self.value.get(CONTENT)
        blocks = [_block(kind, one) for one in found] if isinstance(found, list) else []
        error = self.value.get("message")
        if kind == "error" and isinstance(error, str):
            blocks.append(TextBlock(error, {"type": "text", "text": error}))
        return blocks

    @property
    def fault(self) -> str:
        if self.value.get(ROLE) not in _ROLES:
            return "its role is not one of user, assistant, system, tool"
        content = self.value.get(CONTENT)
        if content is None:
            return ""
        if not isinstance(content, list):
            return "its content is not a list"
        for one in content:
            if not isinstance(one, dict) or one.get("type") not in _CONTENTS:
                return "a part of its content has no type known to agentscope-runtime"
        return ""

    texts, searchable = MessageView.texts, MessageView.searchable
    is_tool_output = MessageView.is_tool_output


def _block(kind: str, content: Any) -> Block:
    if not isinstance(content, dict):
        return UnknownBlock("?", {"type": "?", "value": content})
    data = content.get("data")
    match content.get("type"):
        case "text" if kind == "reasoning":
            return ThinkingBlock(string(content.get("text")), content)
        case "text":
            return TextBlock(string(content.get("text")), content)
        case "refusal":
            return TextBlock(string(content.get("refusal")), content)
        case "data" if isinstance(data, dict) and kind in _SIDES:
            return _tool_block(_SIDES[kind], data, content)
        case "data":
            return TextBlock(jsonio.dumps(data).decode(), content)
        case "image":
            return _media("image", string(content.get("image_url")), "", content)
        case "audio":
            return _media("audio", string(data), string(content.get("format")), content)
        case "file":
            place = content.get("file_url") or content.get("file_data")
            return _media("file", string(place), "", content)
        case other:
            return UnknownBlock(string(other) or "?", content)


def _tool_block(side: ToolSide, data: dict[str, Any], content: dict[str, Any]) -> Block:
    id, name = string(data.get("call_id")), string(data.get("name"))
    if side is ToolSide.CALL:
        return ToolCallBlock(id, name, decoded(data.get("arguments")), content)
    return ToolResultBlock(id, name, partial(_output, data.get("output")), content)


def _output(value: Any) -> list[Block]:
    """Return the blocks of a tool output."""
    found = decoded(value)
    blocks = AgentScope1View({CONTENT: found}).blocks if isinstance(found, list) else []
    if blocks and not any(isinstance(block, UnknownBlock) for block in blocks):
        return blocks
    text = value if isinstance(value, str) else jsonio.dumps(value).decode()
    return [TextBlock(text, text)]


def _media(kind: str, place: str, format: str, content: dict[str, Any]) -> MediaBlock:
    """Return the block for an image, audio or file.

    ``place`` is a URL, a ``data:`` URL or base64 data.  ``content`` is the stored part.
    """
    if "://" in place or (place.startswith("data:") and "," in place):
        return media_at(kind, place, content)
    media_type = format if "/" in format or not format else f"{kind}/{format}"
    return media_at(kind, None, content, media_type, place)


def message_of(
    original: str,
    name: str | None,
    role: str,
    kind: str,
    contents: list[Any],
    metadata: dict[str, Any],
    number: int = 0,
) -> dict[str, Any]:
    """Return the message with the number ``number`` of those that stand for an original message.

    ``original``, ``name`` and ``metadata`` are the id, the name and the metadata of the original.
    """
    return {
        "sequence_number": None,
        "object": "message",
        "status": "completed",
        "error": None,
        ID: f"{original}-{number}" if number else original,
        "type": kind,
        ROLE: role,
        CONTENT: contents,
        "code": None,
        "message": None,
        "usage": None,
        "metadata": {"original_id": original, "original_name": name, "metadata": metadata},
    }


def _tool_data(id: str, name: str, **more: str) -> dict[str, Any]:
    return {"type": "data", "data": {"call_id": id, "name": name} | more}


class Runtime(AgentScopeDialect):
    """The dialect of agentscope-runtime's services."""

    name = "runtime"
    keeps_extra = True
    holds_summary = False
    results_follow = False
    view = RuntimeView
    call = "plugin_call"

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return place != TOOL or AGENTSCOPE1.holds_media(media, place)

    def author(
        self,
        role: str,
        name: str,
        content: str | Sequence[Block],
        moment: datetime,  # noqa: ARG002 - these messages have no time
    ) -> tuple[str, bytes]:
        blocks = [TextBlock(content)] if isinstance(content, str) else content
        id = f"msg_{uuid.uuid4()}"
        kind = next(map(type_of, blocks), "message")
        stored = [self.stored_block(one) for one in blocks]
        return id, jsonio.dumps(message_of(id, name, role, kind, stored, {}))

    def stored_block(self, block: Block) -> dict[str, Any]:
        stored: dict[str, Any]
        match block:
            case TextBlock(text) | HintBlock(text) | ThinkingBlock(text):
                stored = {"type": "text", "text": text}
            case ToolCallBlock(id, name, input):
                stored = _tool_data(id, name, arguments=jsonio.dumps(input).decode())
            case ToolResultBlock(id, name, [TextBlock(text)]):
                stored = _tool_data(id, name, output=text)
            case ToolResultBlock(id, name, output):
                blocks = [AGENTSCOPE1.stored_block(one) for one in output]
                stored = _tool_data(id, name, output=jsonio.dumps(blocks).decode())
            case MediaBlock("image"):
                stored = {"type": "image", "image_url": place_of(block)}
            case MediaBlock("audio", _, media_type):
                stored = {"type": "audio", "data": place_of(block), "format": media_type}
            case MediaBlock():
                stored = {"type": "file", "file_url": place_of(block)}
            case UnknownBlock(_, value):
                stored = {"type": "data", "data": value}
        return {"object": "content", "delta": False, "index": None} | stored

    def output_bytes(self, result: ToolResultBlock) -> int:
        output = object_at(result.value or {}, "data").get("output")
        return len(string(output).encode("utf-8", "surrogatepass"))

    def summary_message(self, summary: str) -> bytes:
        text = {"type": "text", "text": summary}
        return jsonio.dumps({"type": "message", ROLE: "user", CONTENT: [text]})

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        if b"_call" not in text and b"\\u" not in text:
            return
        message = jsonio.outline(text)
        side = _SIDES.get(str(message.get("type"))) if isinstance(message, dict) else None
        content = message.get(CONTENT) if side is not None else None
        for one in content if isinstance(content, list) else ():
            id = object_at(one, "data").get("call_id") if isinstance(one, dict) else None
            if side is not None and isinstance(id, str) and id:
                yield side, id


def type_of(block: Block) -> str:
    """Return the type of a message of agentscope-runtime for this kind of block."""
    match block:
        case ThinkingBlock():
            return "reasoning"
        case ToolCallBlock():
            return "plugin_call"
        case ToolResultBlock():
            return "plugin_call_output"
        case _:
            return "message"


RUNTIME = Runtime()
