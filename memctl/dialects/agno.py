"""The messages of Agno's runs, in the format of Agno's sessions.

Source: ``models/message.py`` and ``media.py`` of agno 3.1.10.  ``Message.to_dict`` drops unknown
fields.  So notes are in ``provider_data``: models ignore keys unknown to them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from memctl.dialects.agentscope import decoded, string
from memctl.dialects.roles import ROLES
from memctl.dialects.rows import (
    ConversationDialect,
    DocumentView,
    calls_of,
    chat_part,
    media_at,
    openai_call,
    output_blocks,
    output_text,
    utc_of,
)
from memctl.dialects.view import (
    Block,
    MediaBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    object_at,
    others,
)
from memctl.json import jsonio
from memctl.model import Memory

_MEDIA = {"images": "image", "audio": "audio", "videos": "video", "files": "file"}
_READ = frozenset(
    {
        *("id", "role", "name", "content", "images", "audio", "videos", "files"),
        *("tool_call_id", "tool_name", "tool_args", "tool_calls", "tool_call_error"),
        *("reasoning_content", "created_at", "updated_at", "metrics", "references"),
        *("stop_after_tool_call", "add_to_agent_memory", "from_history", "temporary"),
    }
)
_TIMES = ("created_at", "updated_at")
_FIELDS = {kind: field for field, kind in _MEDIA.items()}


class AgnoView(DocumentView):
    """A view of a message of Agno."""

    __slots__ = ()
    known = _READ

    @property
    def id(self) -> str | None:
        return AGNO.own_id(self.content)

    @property
    def time(self) -> str | None:
        return utc_of(self.document.get("created_at"))

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.role else "it has no role")

    @property
    def blocks(self) -> list[Block]:
        message = self.document
        found = output_blocks(message.get("content"), chat_part)
        for field, kind in _MEDIA.items():
            if isinstance(media := message.get(field), list):
                found += output_blocks(media, partial(_media, kind=kind))
        if message.get("role") == "tool":
            id, name = string(message.get("tool_call_id")), string(message.get("tool_name"))
            return [ToolResultBlock(id, name, lambda: found, message)]
        thoughts = message.get("reasoning_content")
        if isinstance(thoughts, str) and thoughts:
            found.insert(0, ThinkingBlock(thoughts, thoughts))
        return [*found, *calls_of(message.get("tool_calls"))]


def _media(value: dict[str, Any], kind: str) -> Block:
    place, media_type = value.get("url") or value.get("filepath"), value.get("mime_type")
    return media_at(kind, place, value, string(media_type) or None, value.get("content"))


class Agno(ConversationDialect):
    """The dialect of Agno's sessions."""

    name = "agno"
    framework = "Agno"
    holds_summary = True
    summary_setting = "add_session_summary_to_context"
    view = AgnoView
    keeps_extra = True
    tool_words = (b"tool",)
    id_path = ("id",)
    seconds = "created_at", int
    note_field, note_key = "provider_data", "memctl"

    def is_default(self, extra: str, user: str, session: str) -> bool:
        return not self.settings(extra, user, session)

    def settings(self, extra: str, user: str, session: str) -> bytes:  # noqa: ARG002
        found = decoded(extra) if extra else {}
        if not isinstance(found, dict):
            return extra.encode("utf-8", "surrogatepass")
        kept, aside = others(object_at(found, "session"), _TIMES), found.get("aside")
        return jsonio.dumps([kept, aside]) if kept or aside else b""

    def waits(self, memory: Memory) -> bool:
        found = decoded(memory.extra) if '"PAUSED"' in memory.extra else {}
        aside = found.get("aside") if isinstance(found, dict) else None
        runs = aside if isinstance(aside, list) else ()
        return any(
            isinstance(run, dict) and (run.get("columns") or {}).get("status") == "PAUSED"
            for run in runs
        )

    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        calls = [openai_call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        thoughts = [block.text for block in blocks if isinstance(block, ThinkingBlock)]
        media = [block for block in blocks if isinstance(block, MediaBlock)]
        texts = [
            output_text([block])
            for block in blocks
            if not isinstance(block, ToolCallBlock | ThinkingBlock | MediaBlock)
        ]
        role = "assistant" if calls else role if role in ROLES else "user"
        message: dict[str, Any] = {"role": role}
        if len(texts) > 1:
            message["content"] = [{"type": "text", "text": text} for text in texts]
        elif texts or not (calls or thoughts or media):
            message["content"] = "".join(texts)
        if name and name != role:
            message["name"] = name
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return message | _kept(media)

    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        media = [block for block in result.output if isinstance(block, MediaBlock)]
        message = {
            "role": "tool",
            "content": output_text(result.output),
            "tool_call_id": result.id,
        }
        return message | ({"tool_name": result.name} if result.name else {}) | _kept(media)


def _kept(media: Sequence[MediaBlock]) -> dict[str, Any]:
    """Return the fields of an Agno message that hold media."""
    fields: dict[str, Any] = {}
    for one in media:
        stored: dict[str, Any] = {"mime_type": one.media_type} if one.media_type else {}
        stored |= {"content": one.data or ""} if one.url is None else {"url": one.url}
        fields.setdefault(_FIELDS.get(one.kind, "files"), []).append(stored)
    return fields


AGNO = Agno()
