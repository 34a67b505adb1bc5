"""The messages of AgentScope 1.x.

Sources in agentscope 1.0.21: ``Msg.to_dict`` and ``from_dict`` in ``message/_message_base.py``
(storing and loading), ``message/_message_block.py`` (blocks) and ``formatter/*`` (sending).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from memctl.dialects import agentscope
from memctl.dialects.agentscope import (
    CONTENT,
    ID,
    NAME,
    RESULT,
    ROLE,
    AgentScopeVersion,
    AgentScopeView,
)
from memctl.dialects.view import (
    TOOL,
    Block,
    HintBlock,
    MediaBlock,
    Swap,
    ToolCallBlock,
    object_at,
    others,
    renamed,
)
from memctl.json import jsonio

TIMESTAMP = "timestamp"
CALL = "tool_use"

MEDIA = ("image", "audio", "video")
_NEEDED = {"text": ("text",), CALL: ("id", "name"), RESULT: ("id", "output")}
"""The required keys of a block: AgentScope reads them without a check."""

_ODD_TYPE = re.compile(rb'"type"\s*+:\s*+(?!"(?:text|thinking|tool_use|tool_result|url|base64)")')
"""Occurs in each message with a block of another type, unless letters are escaped."""
_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 22


class AgentScope1View(AgentScopeView):
    """A view of a message of AgentScope 1.x."""

    __slots__ = ()
    time_field = TIMESTAMP
    known = frozenset({ID, NAME, ROLE, TIMESTAMP, CONTENT, "metadata", "invocation_id"})

    @property
    def blocks(self) -> list[Block]:
        return agentscope.blocks(self.value.get(CONTENT), _own)

    def _fault_of(self, content: Any) -> str:
        if isinstance(content, str):
            return ""
        if not isinstance(content, list):
            return "its content is neither a string nor a list of blocks"
        for block in content:
            if not isinstance(block, dict) or "type" not in block:
                return "a block of its content has no type"
            needed = _NEEDED.get(block["type"] if isinstance(block["type"], str) else "", ())
            for name in needed:
                if name not in block:
                    return f"a {block['type']} block lacks {' or '.join(needed)}"
        return ""


def message_of(
    id: str, name: str, role: str, content: Any, timestamp: str, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Return a message of AgentScope 1.x."""
    return {
        ID: id,
        NAME: name,
        ROLE: role,
        CONTENT: content,
        "metadata": metadata,
        TIMESTAMP: timestamp,
    }


def _own(block: dict[str, Any]) -> Block | None:
    match block.get("type"):
        case "tool_use":
            name = agentscope.string(block.get("name"))
            return ToolCallBlock(agentscope.block_id(block), name, block.get("input"), block)
        case "image" | "audio" | "video" | "file" as kind:
            return media_of(block, kind)
    return None


def media_kind(media_type: str) -> str:
    """Return the type of a block of media with this media type."""
    kind = media_type.partition("/")[0]
    return kind if kind in MEDIA else "file"


def media_of(block: dict[str, Any], kind: str | None = None) -> MediaBlock:
    """Return the media of a block with a source, of this kind.

    In 2.x, ``kind`` is None: the media type decides, which a URL has there, too.
    """
    source = block.get("source")
    if not isinstance(source, dict):
        return MediaBlock(kind or "data", value=block)
    media_type = agentscope.string(source.get("media_type")) or "?"
    found = kind or media_kind(media_type)
    if source.get("type") == "url":
        known = None if kind else media_type
        return MediaBlock(found, agentscope.string(source.get("url")), known, value=block)
    data = source.get("data")
    return MediaBlock(found, None, media_type, data if isinstance(data, str) else "", block)


class AgentScope1(AgentScopeVersion):
    """The dialect of AgentScope 1.x."""

    name = "agentscope1"
    view = AgentScope1View
    call = CALL
    offloads = True
    time_form = " ", "milliseconds"

    def linked(self, media: dict[str, Any], url: str) -> Swap | None:
        source = object_at(media, "source")
        if source.keys() != {"type", "media_type", "data"}:
            return None
        kept = others(source, ("media_type",))  # PostgreSQL orders keys by their length
        return Swap(source, renamed(kept, {"data": "url"}, {"type": "url", "url": url}))

    def inlined(self, media: dict[str, Any], media_type: str, data: str) -> Swap | None:
        source = media.get("source")
        if not isinstance(source, dict) or source.keys() != {"type", "url"}:
            return None
        if next(iter(source)) == "url":
            return Swap(source, {"data": data, "type": "base64", "media_type": media_type})
        return Swap(source, {"type": "base64", "media_type": media_type, "data": data})

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return media.kind in MEDIA

    def may_be_lost(self, text: bytes) -> bool:
        return _ODD_TYPE.search(text) is not None or agentscope.may_escape(text)

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        import secrets

        id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        said = content if isinstance(content, str) else [*map(self.stored_block, content)]
        return id, jsonio.dumps(message_of(id, name, role, said, self.timestamp(moment), {}))

    def _stored(self, block: HintBlock | ToolCallBlock | MediaBlock) -> dict[str, Any]:
        match block:
            case HintBlock(text):
                return {"type": "text", "text": text}
            case ToolCallBlock(id, name, input):
                return {"type": CALL, "id": id, "name": name, "input": input}
            case MediaBlock(kind, url, media_type, data):
                if url is not None:
                    return {"type": kind, "source": {"type": "url", "url": url}}
                source = {"type": "base64", "media_type": media_type, "data": data}
                return {"type": kind, "source": source}

    def summary_message(self, summary: str) -> bytes:
        return jsonio.dumps({NAME: "user", ROLE: "user", CONTENT: summary})


AGENTSCOPE1 = AgentScope1()


class _Passing(AgentScope1):
    """Messages of AgentScope 1.x on the way to another dialect."""

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return place != TOOL or media.kind in MEDIA


def passing(blocks: Iterable[Block]) -> list[Block]:
    """Return blocks of another dialect for a message of AgentScope 1.x.

    ``Dialect.fitting`` replaces blocks that the message cannot hold.  Files stay: a further
    conversion may need them, and AgentScope skips them; only in the output of a tool does
    AgentScope fail on a file.
    """
    return [
        block._replace(input={})
        if isinstance(block, ToolCallBlock) and not isinstance(block.input, dict)
        else block
        for block in _Passing().fitting(blocks, "")
    ]
