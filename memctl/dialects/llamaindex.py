"""The messages of LlamaIndex, in the format of ``ChatMessage.model_dump(mode="json")``.

Source: ``base/llms/types.py`` of llama-index-core 0.14.25.  Tool calls are blocks, or calls of the
OpenAI API in ``additional_kwargs``.  LlamaIndex ignores unknown fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memctl.dialects.agentscope import block_or_unknown, decoded, string
from memctl.dialects.roles import ROLES
from memctl.dialects.rows import (
    EXTRA,
    ConversationDialect,
    DocumentView,
    calls_of,
    media_at,
    named_call,
    output_text,
)
from memctl.dialects.view import (
    Block,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Unread,
    object_at,
    others,
    text_of,
)

_TOOL = ("tool", "function")
_ROLES_READ = ("system", "developer", "user", "assistant", *_TOOL, "chatbot", "model")
"""The roles of ``MessageRole``; LlamaIndex fails to load a message with another one."""
_DATA = {"image": "image", "audio": "audio", "video": "video", "document": "data"}
"""The field with the base64 data, by the type of a block of media."""
_MORE = frozenset({"name", "tool_call_id", "tool_calls", "function_call"})
"""The fields of ``additional_kwargs`` read by the view."""


class LlamaIndexView(DocumentView):
    """A view of a message of LlamaIndex."""

    __slots__ = ()
    known = frozenset({"role", "content", "blocks", "additional_kwargs"})

    @property
    def unknown(self) -> dict[str, Any]:
        return super().unknown | others(self._more, _MORE)

    @property
    def fault(self) -> str:
        return super().fault or (
            "" if self.document.get("role") in _ROLES_READ else "it has no role of LlamaIndex"
        )

    @property
    def name(self) -> str | None:
        return None if self.document.get("role") in _TOOL else text_of(self._more, "name")

    @property
    def _more(self) -> dict[str, Any]:
        return object_at(self.document, "additional_kwargs")

    @property
    def blocks(self) -> list[Block]:
        document, more = self.document, self._more
        stored = document.get("blocks")
        if isinstance(stored, list):
            found = [block_or_unknown(one, _block, "block_type") for one in stored]
        else:  # the format before 0.12
            found = [TextBlock(string(document.get("content")), document.get("content"))]
        if document.get("role") in _TOOL:
            name = string(more.get("name"))
            # Without an id, the message is the result of a ``function_call``.
            id = string(more.get("tool_call_id")) or name
            return [ToolResultBlock(id, name, lambda: found, document)]
        calls = calls_of(more.get("tool_calls"), found) or named_call(more.get("function_call"))
        return [*found, *calls] or [TextBlock("", "")]


def _block(block: dict[str, Any]) -> Block | None:
    match block.get("block_type"):
        case "text":
            return TextBlock(string(block.get("text")), block)
        case "thinking":
            return ThinkingBlock(string(block.get("content")), block)
        case "tool_call":
            input = decoded(block.get("tool_kwargs"))
            id, name = string(block.get("tool_call_id")), string(block.get("tool_name"))
            return ToolCallBlock(id, name, input, block)
        case str(kind) if kind in _DATA:
            media_type = string(block.get(f"{kind}_mimetype")) or None
            if kind == "audio" and isinstance(block.get("format"), str):
                media_type = f"audio/{block['format']}"
            data, place = block.get(_DATA[kind]), block.get("url") or block.get("path")
            kind = "file" if kind == "document" else kind
            return media_at(kind, place, block, media_type, data)
    return None


class LlamaIndex(ConversationDialect):
    """The dialect of LlamaIndex's chat stores."""

    name = "llamaindex"
    framework = "LlamaIndex"
    view = LlamaIndexView
    tool_words = (b"tool", b"function")
    note_key = "memctl"
    leaves_out = True
    offloads = True

    def left_out(self, view: MessageView) -> Unread | None:
        """Return why ``Memory`` does not read a message: it archives messages for its blocks.

        Source: ``get_messages`` of ``storage/chat_store/sql.py``, which ``memory/memory.py`` calls
        with the status ``active``.
        """
        extra = view.value.get(EXTRA)
        if isinstance(extra, dict) and extra.get("status", "active") != "active":
            return Unread.COMPACTED
        return super().left_out(view)

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {"block_type": "text", "text": text}

    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        role = role if role in ROLES else "user"
        return _message(role, {"name": name} if name and name != role else {}, blocks)

    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        more = {"tool_call_id": result.id} | ({"name": result.name} if result.name else {})
        return _message("tool", more, result.output)


def _message(role: str, more: dict[str, str], blocks: Sequence[Block]) -> dict[str, Any]:
    return {"role": role, "additional_kwargs": more, "blocks": [_stored(one) for one in blocks]}


def _stored(block: Block) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text):
            own: dict[str, Any] = {"num_tokens": None, "additional_information": {}}
            return {"block_type": "thinking", "content": text} | own
        case ToolCallBlock(id, name, input):
            called = {"tool_call_id": id, "tool_name": name, "tool_kwargs": input}
            return {"block_type": "tool_call"} | called
        case MediaBlock(kind, url, media_type, data):
            kind = kind if kind in _DATA else "document"
            about = {f"{kind}_mimetype": media_type}
            if kind == "audio":
                about = {"format": media_type.partition("/")[2] if media_type else None}
            return {"block_type": kind, _DATA[kind]: data, "path": None, "url": url} | about
        case _:
            return {"block_type": "text", "text": output_text([block])}


LLAMAINDEX = LlamaIndex(frozenset({"time"}), orders_by_time=True)
