"""The events of Google's Agent Development Kit, in the format of the kit's sessions.

Source: ``events/event.py`` of google-adk 2.13 and ``Content`` of google-genai 2.34.  Events refuse
unknown fields.  So notes are in ``custom_metadata``, a field for applications.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from memctl import jsonio
from memctl.dialects.agentscope import string
from memctl.dialects.rows import DocumentView, RowDialect, output_text, text_of, utc_of
from memctl.dialects.view import (
    TOOL,
    Block,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)

_ACTIONS = (
    *("state_delta", "artifact_delta"),
    *("requested_auth_configs", "requested_tool_confirmations"),
)
_AUTHORS = ("user", "system")
"""The authors of events that are no agents.

ADK keeps instructions in the agent, and has no messages of the system.  In a copy they are events
of an author ``system``: ADK shows such an event to its agents as words of another agent.
"""
_REQUESTS = ("adk_request_confirmation", "adk_request_credential", "adk_request_input")
"""The calls by which ADK asks the user; no model sees such a call.

Source: ``utils/_function_call_names.py``.
"""


def event_time(event: Any) -> str | None:
    """Return the time of an event as ISO text in UTC; None if the event has no time."""
    return utc_of(event.get("timestamp")) if isinstance(event, dict) else None


class AdkView(DocumentView):
    """A view of an event of Google's Agent Development Kit."""

    __slots__ = ()
    known = frozenset({"id", "author", "content", "timestamp", "invocation_id"})

    @property
    def _content(self) -> dict[str, Any]:
        found = self.document.get("content")
        return found if isinstance(found, dict) else {}

    @property
    def id(self) -> str | None:
        return text_of(self.document, "id")

    @property
    def role(self) -> str | None:
        if any(isinstance(block, ToolResultBlock) for block in self.blocks):
            return "system"
        author = self.document.get("author")
        return author if author in _AUTHORS else "assistant"

    @property
    def name(self) -> str | None:
        return text_of(self.document, "author")

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.name is not None else "it has no author")

    @property
    def time(self) -> str | None:
        return event_time(self.document)

    @property
    def blocks(self) -> list[Block]:
        parts = self._content.get("parts")
        found = [_block(part) for part in parts] if isinstance(parts, list) else []
        stopped = self.document.get("long_running_tool_ids")
        ids = stopped if isinstance(stopped, list) else ()
        return [
            block._replace(waits=True)
            if isinstance(block, ToolCallBlock) and (block.id in ids or block.name in _REQUESTS)
            else block
            for block in found
        ]


def _block(part: Any) -> Block:
    if not isinstance(part, dict):
        return UnknownBlock("?", {"type": "?", "value": part})
    match part:
        case {"text": str(text), "thought": True}:
            return ThinkingBlock(text, part)
        case {"text": str(text)}:
            return TextBlock(text, part)
        case {"function_call": dict(call)}:
            return ToolCallBlock(_id(call), string(call.get("name")), call.get("args"), part)
        case {"function_response": dict(result)}:
            output = _output(result.get("response"))
            return ToolResultBlock(_id(result), string(result.get("name")), lambda: output, part)
        case {"inline_data": dict(blob)}:
            media_type = string(blob.get("mime_type")) or "?"
            data = string(blob.get("data")).replace("-", "+").replace("_", "/")
            return MediaBlock(_kind(media_type), None, media_type, data, part)
        case {"file_data": dict(file)}:
            media_type = string(file.get("mime_type"))
            return MediaBlock(
                _kind(media_type), string(file.get("file_uri")), media_type or None, None, part
            )
    return UnknownBlock(next(iter(part), "?"), part)


def _id(part: dict[str, Any]) -> str:
    return string(part.get("id"))


def _kind(media_type: str) -> str:
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def _output(response: Any) -> list[Block]:
    """Return the response of a tool as blocks; no block for None."""
    match response:
        case {"result": str(text)} | {"output": str(text)} if len(response) == 1:
            return [TextBlock(text, response)]
        case None:
            return []
    return [TextBlock(jsonio.dumps(response).decode(), response)]


class Adk(RowDialect):
    """The dialect of the sessions of Google's Agent Development Kit."""

    name = "adk"
    framework = "Google ADK"
    view = AdkView
    keeps_extra = True
    tool_words = (b"function_",)
    results_follow = False
    depends_on_later = True
    last_result_counts = True
    skips_empty = True
    note_field, note_key = "custom_metadata", "memctl"
    offloads = True

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return place != TOOL

    def is_request(self, call: ToolCallBlock) -> bool:
        return call.name in _REQUESTS

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {"text": text}

    def own_id(self, content: Any) -> str | None:
        found = content.get("id") if isinstance(content, dict) else None
        return found if isinstance(found, str) else None

    def set_own_id(self, content: Any, id: str) -> bool:
        content["id"] = id
        return True

    def rows(
        self, role: str, name: str, time: str | None, blocks: Sequence[Block]
    ) -> list[dict[str, Any]]:
        found = super().rows(role, name, time, blocks)
        if time:
            for row in found:
                row["content"]["timestamp"] = datetime.fromisoformat(time).timestamp()
        return found

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        results = [block for block in blocks if isinstance(block, ToolResultBlock)]
        spoken = "user" if role == "user" or results else "model"
        author = role if role in _AUTHORS and not results else name or role
        event: dict[str, Any] = {
            "content": {"parts": [_stored(block) for block in blocks], "role": spoken},
            "invocation_id": "",
            "author": author,
            "actions": {field: {} for field in _ACTIONS},
            "id": "",
        }
        return [event]


def _stored(block: Block) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text):
            return {"text": text, "thought": True}
        case ToolCallBlock(id, name, input):
            args = input if isinstance(input, dict) else {}
            return {"function_call": {"id": id, "args": args, "name": name}}
        case ToolResultBlock(id, name, output):
            response = {"result": output_text(output)}
            return {"function_response": {"id": id, "name": name, "response": response}}
        case MediaBlock(_, None, media_type, data):
            return {"inline_data": {"data": data or "", "mime_type": media_type or "?"}}
        case MediaBlock(_, url, media_type):
            return {"file_data": {"file_uri": url, "mime_type": media_type or "?"}}
        case _:
            return {"text": output_text([block])}


ADK = Adk()
