"""The conversion between messages of agentscope-runtime and messages of AgentScope 1.x.

The runtime's adapter (``adapters/agentscope/message.py`` of 1.0.5) splits a message of AgentScope
into consecutive messages with the same ``original_id``.
"""

from __future__ import annotations

from typing import Any

from memctl import jsonio
from memctl.dialects.agentscope import CONTENT, ID, NAME, NO_TIME, ROLE, ROLES
from memctl.dialects.agentscope1 import AGENTSCOPE1, TIMESTAMP, AgentScope1View
from memctl.dialects.conversion import Joint, Message
from memctl.dialects.runtime import RUNTIME, RuntimeView, type_of
from memctl.dialects.view import (
    Block,
    MediaBlock,
    TextBlock,
    ToolCallBlock,
    UnknownBlock,
)


class RuntimeVersions(Joint):
    """The conversion between messages of agentscope-runtime and of AgentScope 1.x."""

    fine = RUNTIME
    coarse = AGENTSCOPE1

    def belongs(self, group: list[Message], message: Message) -> bool:
        original = _original_id(group[0])
        return original is not None and original == _original_id(message)

    def id(self, parts: list[Message], id: str) -> str:
        return _original_id(parts[0]) or id

    def join(self, parts: list[Message], id: str) -> Message:
        views = [RuntimeView(part) for part in parts]
        role = views[0].role
        role = "system" if role == "tool" else role if role in ROLES else "assistant"
        blocks = [block for view in views for block in view.blocks]
        content: Any = [_stored(block) for view in views for block in view.blocks]
        if role == "user" and len(blocks) == 1 and isinstance(blocks[0], TextBlock):
            content = blocks[0].text
        metadata = views[0].metadata.get("metadata")
        return {
            ID: id,
            NAME: views[0].name or role,
            ROLE: role,
            CONTENT: content,
            "metadata": dict(metadata) if isinstance(metadata, dict) else {},
            TIMESTAMP: NO_TIME,  # the runtime keeps no time
        }

    def split(self, whole: Message) -> list[Message]:
        view = AgentScope1View(whole)
        parts: list[Message] = []
        kind = ""
        for block in view.blocks:
            now = type_of(block)
            if now != kind or now.startswith("plugin_call"):
                parts.append(_part(view, now, len(parts)))
                kind = now
            parts[-1][CONTENT].append(RUNTIME.stored_block(_plain(block)))
        return parts or [_part(view, "message", 0)]


def _original_id(message: Message) -> str | None:
    metadata = message.get("metadata")
    found = metadata.get("original_id") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else None


def _stored(block: Block) -> dict[str, Any]:
    if isinstance(block, MediaBlock) and block.kind == "file":
        source = {"type": "base64", "media_type": block.media_type or "?", "data": block.data}
        if block.url is not None:
            source = {"type": "url", "url": block.url}
        return {"type": "file", "source": source}
    if isinstance(block, ToolCallBlock) and not isinstance(block.input, dict):
        block = block._replace(input={})
    if isinstance(block, UnknownBlock):
        return {"type": "text", "text": jsonio.dumps(block.value).decode()}
    return AGENTSCOPE1.stored_block(block)


def _plain(block: Block) -> Block:
    """Return the block; an UnknownBlock becomes a TextBlock."""
    if isinstance(block, UnknownBlock):
        return TextBlock(jsonio.dumps(block.value).decode())
    return block


def _part(view: AgentScope1View, kind: str, number: int) -> Message:
    id = view.id or ""
    return {
        "sequence_number": None,
        "object": "message",
        "status": "completed",
        "error": None,
        ID: f"{id}-{number}" if number else id,
        "type": kind,
        ROLE: view.role or "assistant",
        CONTENT: [],
        "code": None,
        "message": None,
        "usage": None,
        "metadata": {
            "original_id": id,
            "original_name": view.name,
            "metadata": dict(view.metadata),
        },
    }


RUNTIME_VERSIONS = RuntimeVersions()
