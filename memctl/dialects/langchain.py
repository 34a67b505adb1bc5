"""The messages of LangChain, in the format of ``message_to_dict`` of langchain-core 1.x.

Sources: ``langchain_core/messages/`` of langchain-core 1.7 (``{"type": ..., "data": {...}}`` and
the content blocks), and ``messages_from_dict``.  ``messages_from_dict`` reads only ``type`` and
``data``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from memctl.dialects.agentscope import ROLE, string
from memctl.dialects.roles import role_of
from memctl.dialects.rows import (
    ConversationDialect,
    DocumentView,
    calls_of,
    media_at,
    named_call,
    output_blocks,
    output_text,
    place_of,
)
from memctl.dialects.view import (
    Block,
    MediaBlock,
    Swap,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    object_at,
    others,
    renamed,
    text_of,
)
from memctl.location import visible

_SPOKEN = ("chat", "ChatMessageChunk")
"""The types of messages with a role of their own."""
_FUNCTIONS = ("function", "FunctionMessageChunk")
_RESULTS = ("tool", "ToolMessageChunk", *_FUNCTIONS)
_FIELDS = frozenset(
    {
        *("content", "type", "role", "name", "id", "example", "additional_kwargs"),
        *("response_metadata", "usage_metadata", "tool_calls", "invalid_tool_calls"),
        *("tool_call_chunks", "chunk_position", "tool_call_id", "artifact", "status"),
    }
)
_MORE = frozenset({"tool_calls", "function_call", "refusal", "reasoning_content"})
"""The fields of ``additional_kwargs`` read by the view."""
_TYPES = {"user": "human", "assistant": "ai", "system": "system"}
_CALL = "tool_call"
_TYPES_READ = frozenset(
    {
        *("human", "ai", "system", "chat", "function", "tool", "remove"),
        *("HumanMessageChunk", "AIMessageChunk", "SystemMessageChunk", "ChatMessageChunk"),
        *("FunctionMessageChunk", "ToolMessageChunk", "generic", "developer"),
    }
)
"""The types of ``messages_from_dict``, and two more of LangChain.js; others fail to load."""


class LangChainView(DocumentView):
    """A view of a message of LangChain."""

    __slots__ = ()
    known = frozenset({"type", "data"})

    @property
    def data(self) -> dict[str, Any]:
        """The fields of the message; empty if the message has none."""
        return object_at(self.document, "data")

    @property
    def _more(self) -> dict[str, Any]:
        """Fields of the model's API that LangChain has no field for."""
        return object_at(self.data, "additional_kwargs")

    @property
    def unknown(self) -> dict[str, Any]:
        return super().unknown | others(self.data, _FIELDS) | others(self._more, _MORE)

    @property
    def role(self) -> str | None:
        kind = text_of(self.document, "type")
        return role_of(text_of(self.data, ROLE) if kind in _SPOKEN else kind)

    @property
    def name(self) -> str | None:
        return text_of(self.data, "name")

    @property
    def fault(self) -> str:
        if found := super().fault:
            return found
        kind = self.document.get("type")
        if not isinstance(kind, str):
            return "it has no type"
        if kind not in _TYPES_READ:
            return f"LangChain knows no type {visible(kind)!r}"
        return "" if "content" in self.data else "it has no content"

    @property
    def blocks(self) -> list[Block]:
        if self.fault and self.document:
            return [UnknownBlock("?", self.document)]
        data, more = self.data, self._more
        content = data.get("content")
        found = output_blocks(content, _block, texts=True) if content != "" else []
        kind = self.document.get("type")
        if kind in _RESULTS:
            name = string(data.get("name"))
            # A FunctionMessage is the result of a call without an id.
            id = name if kind in _FUNCTIONS else string(data.get("tool_call_id"))
            return [ToolResultBlock(id, name, lambda: found, data)]
        thoughts, refusal = more.get("reasoning_content"), more.get("refusal")
        if isinstance(thoughts, str) and thoughts:
            found.insert(0, ThinkingBlock(thoughts, thoughts))
        if isinstance(refusal, str) and refusal:
            found.append(TextBlock(refusal, refusal))
        calls = calls_of(data.get("tool_calls"), found)
        calls += calls_of(data.get("invalid_tool_calls"), found)
        if not (data.get("tool_calls") or data.get("invalid_tool_calls")):  # as LangChain does
            calls = calls_of(more.get("tool_calls"), found) or named_call(more.get("function_call"))
        return [*found, *calls] or [TextBlock("", "")]


class LangChainJsView(LangChainView):
    """A view of a message of LangChain.js."""

    __slots__ = ()
    known = _FIELDS

    @property
    def data(self) -> dict[str, Any]:
        return self.document


def _block(block: dict[str, Any]) -> Block | None:
    match block.get("type"):
        case "text":
            return TextBlock(string(block.get("text")), block)
        case "reasoning" | "thinking" as kind:
            return ThinkingBlock(string(block.get(kind)), block)
        case "tool_call" | "tool_use" as kind:
            input = block.get("args" if kind == _CALL else "input")
            return ToolCallBlock(string(block.get("id")), string(block.get("name")), input, block)
        case "image_url":
            place = block.get("image_url")
            return media_at("image", place.get("url") if isinstance(place, dict) else place, block)
        case "image" | "audio" | "video" | "file" as kind:
            data = block.get("base64") or block.get("data")
            return media_at(kind, block.get("url"), block, block.get("mime_type"), data)
    return None


class LangChain(ConversationDialect):
    """The dialect of LangChain's chat message histories."""

    name = "langchain"
    framework = "LangChain"
    view = LangChainView
    tool_words = (b"tool_call", b"function")
    id_path: ClassVar[tuple[str, ...]] = ("data", "id")
    note_key = "memctl"
    offloads = True

    def linked(self, media: dict[str, Any], url: str) -> Swap | None:
        for name in "base64", "data":
            if isinstance(media.get(name), str):
                kind = {"source_type": "url"} if "source_type" in media else {}
                return Swap(media, renamed(media, {name: "url"}, {"url": url} | kind))
        return None

    def inlined(self, media: dict[str, Any], media_type: str, data: str) -> Swap | None:  # noqa: ARG002
        if not isinstance(media.get("url"), str):
            return None
        name, kind = "base64", {}
        if "source_type" in media:
            name, kind = "data", {"source_type": "base64"}
        return Swap(media, renamed(media, {"url": name}, {name: data} | kind))

    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        said = [block for block in blocks if not isinstance(block, ToolCallBlock)]
        calls = [_call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        kind = "ai" if calls else _TYPES.get(role, "human")
        own = {"tool_calls": calls, "invalid_tool_calls": [], "usage_metadata": None}
        return _message(kind, _content(said), name or None, own if kind == "ai" else {})

    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        more = {"tool_call_id": result.id, "artifact": None, "status": "success"}
        media = any(isinstance(block, MediaBlock) for block in result.output)
        content = _content(result.output) if media else output_text(result.output)
        return _message("tool", content, result.name or None, more)


class LangChainJs(LangChain):
    """The dialect of LangChain.js in PostgreSQL, also used by the chat memory of n8n.

    The fields of a message are next to ``type``, not in ``data``.  Source:
    ``dist/stores/message/postgres.js`` of @langchain/community 1.
    """

    name = "langchain-js"
    view = LangChainJsView
    id_path = ("id",)

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        found = super().contents(role, name, blocks)
        return [{"type": one["type"], **one["data"]} for one in found]


def _message(kind: str, content: Any, name: str | None, more: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"content": content, "additional_kwargs": {}, "response_metadata": {}}
    return {"type": kind, "data": data | {"type": kind, "name": name, "id": None} | more}


def _call(call: ToolCallBlock) -> dict[str, Any]:
    args = call.input if isinstance(call.input, dict) else {}
    return {"name": call.name, "args": args, "id": call.id, "type": _CALL}


def _content(blocks: Sequence[Block]) -> Any:
    """Return blocks as the content of a LangChain message."""
    if not blocks:
        return ""
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
        return blocks[0].text
    return [_stored(block) for block in blocks]


def _stored(block: Block) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text):
            return {"type": "reasoning", "reasoning": text}
        case MediaBlock("image"):
            return {"type": "image_url", "image_url": {"url": place_of(block)}}
        case MediaBlock(kind, None, media_type, data):
            return {"type": kind, "base64": data or "", "mime_type": media_type}
        case MediaBlock(kind, url):
            return {"type": kind, "url": url}
        case _:
            return {"type": "text", "text": output_text([block])}


LANGCHAIN = LangChain()
LANGCHAIN_JS = LangChainJs()
