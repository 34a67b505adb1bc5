"""The messages of AgentScope 1.x.

Sources: ``Msg.to_dict`` and ``from_dict`` in ``message/_message_base.py`` (what is stored, and what
loads), ``message/_message_block.py`` (blocks) and ``formatter/*`` (what is sent) of agentscope
1.0.21.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from memctl import jsonio
from memctl.dialects import agentscope
from memctl.dialects.agentscope import (
    CONTENT,
    ID,
    NAME,
    RESULT,
    ROLE,
    ROLES,
    AgentScopeDialect,
    AgentScopeView,
)
from memctl.dialects.view import (
    Block,
    HintBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)

TIMESTAMP = "timestamp"
CALL = "tool_use"

MEDIA = ("image", "audio", "video")
_NEEDED = {"text": ("text",), CALL: ("id", "name"), RESULT: ("id", "output")}
"""The keys of a block that AgentScope reads without asking whether they are there."""

_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 22


class AgentScope1View(AgentScopeView):
    """A message of AgentScope 1.x."""

    __slots__ = ()
    time_field = TIMESTAMP
    fields = frozenset({ID, NAME, ROLE, TIMESTAMP, CONTENT, "metadata", "invocation_id"})

    @property
    def blocks(self) -> list[Block]:
        return _blocks(self.value.get(CONTENT))

    @property
    def fault(self) -> str:
        for name in (NAME, ROLE, CONTENT):
            if name not in self.value:
                return f"no {name}"
        if self.value[ROLE] not in ROLES:
            return "its role is none of user, assistant, system"
        content = self.value[CONTENT]
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


def _blocks(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [TextBlock(content, content)]
    return [_block(block) for block in content] if isinstance(content, list) else []


def _block(block: Any) -> Block:
    if not isinstance(block, dict):
        return UnknownBlock("?", {"type": "?", "value": block})
    kind = block.get("type")
    match kind:
        case "text":
            return TextBlock(agentscope.string(block.get("text")), block)
        case "thinking":
            return ThinkingBlock(agentscope.string(block.get("thinking")), block)
        case "tool_use":
            name = agentscope.string(block.get("name"))
            return ToolCallBlock(agentscope.block_id(block), name, block.get("input"), block)
        case "tool_result":
            name = agentscope.string(block.get("name"))
            output = partial(_blocks, block.get("output"))
            return ToolResultBlock(agentscope.block_id(block), name, output, block)
        case "image" | "audio" | "video":
            return _media(kind, block)
        case _:
            return UnknownBlock(str(block.get("type", "?")), block)


def _media(kind: str, block: dict[str, Any]) -> MediaBlock:
    source = block.get("source")
    if not isinstance(source, dict):
        return MediaBlock(kind, value=block)
    if source.get("type") == "url":
        return MediaBlock(kind, agentscope.string(source.get("url")), value=block)
    data = source.get("data")
    media_type = agentscope.string(source.get("media_type")) or "?"
    return MediaBlock(kind, None, media_type, data if isinstance(data, str) else "", block)


class AgentScope1(AgentScopeDialect):
    """The dialect of AgentScope 1.x."""

    name = "agentscope1"
    view = AgentScope1View
    call = CALL

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        message: dict[str, Any] = {
            ID: id,
            NAME: name,
            ROLE: role,
            CONTENT: content
            if isinstance(content, str)
            else [self.stored_block(one) for one in content],
            "metadata": {},
            TIMESTAMP: moment.isoformat(" ", "milliseconds"),
        }
        return id, jsonio.dumps(message)

    def stored_block(self, block: Block) -> dict[str, Any]:
        match block:
            case TextBlock(text) | HintBlock(text):
                return {"type": "text", "text": text}
            case ThinkingBlock(text):
                return {"type": "thinking", "thinking": text}
            case ToolCallBlock(id, name, input):
                return {"type": CALL, "id": id, "name": name, "input": input}
            case ToolResultBlock(id, name, output):
                plain = len(output) == 1 and isinstance(output[0], TextBlock)
                stored = (
                    output[0].text  # type: ignore[union-attr]
                    if plain
                    else [self.stored_block(one) for one in output]
                )
                return {"type": RESULT, "id": id, "name": name, "output": stored}
            case MediaBlock(kind, url, media_type, data):
                if url is not None:
                    return {"type": kind, "source": {"type": "url", "url": url}}
                source = {"type": "base64", "media_type": media_type, "data": data}
                return {"type": kind, "source": source}
            case UnknownBlock(_, value):
                return dict(value)

    def summary_message(self, summary: str) -> bytes:
        return jsonio.dumps({NAME: "user", ROLE: "user", CONTENT: summary})


AGENTSCOPE1 = AgentScope1()
