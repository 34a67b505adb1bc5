"""The messages of OpenAI's chat completions, used by training files and many programs.

Source: ``types/chat/chat_completion_message_param.py`` of openai 3.  The format has no fields for
id, time and marks.  memctl stores these data, and notes for an exact way back, under the key
``memctl``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memctl.dialects.agentscope import ID, string
from memctl.dialects.conversion import Message
from memctl.dialects.roles import ROLES
from memctl.dialects.rows import (
    METADATA,
    TIME,
    ConversationDialect,
    DocumentView,
    calls_of,
    media_at,
    named_call,
    openai_call,
    output_blocks,
    output_text,
    place_of,
)
from memctl.dialects.view import (
    NOTES,
    Block,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.json import jsonio

KEY = "memctl"
"""The key for data without a field of OpenAI, in a message or a conversation."""
_TOOL = ("tool", "function")
_FIELDS = frozenset(
    {
        *("role", "content", "name", "refusal", "reasoning_content", "reasoning", "annotations"),
        *("tool_calls", "tool_call_id", "function_call", "weight", KEY),
    }
)


class OpenAIView(DocumentView):
    """A view of a message in the format of OpenAI's chat completions."""

    __slots__ = ()
    known = _FIELDS

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.role else "it has no role")

    @property
    def blocks(self) -> list[Block]:
        message = self.document
        found = output_blocks(message.get("content"), _block)
        if message.get("role") in _TOOL:
            name = self.name or ""
            # A message with the role ``function`` is the result of a call without an id.
            id = name if message["role"] == "function" else string(message.get("tool_call_id"))
            return [ToolResultBlock(id, name, lambda: found, message)]
        if isinstance(message.get("refusal"), str):
            found.append(TextBlock(message["refusal"], message["refusal"]))
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thoughts, str) and thoughts:  # DeepSeek, Qwen, OpenRouter and others
            found.insert(0, ThinkingBlock(thoughts, thoughts))
        calls = calls_of(message.get("tool_calls"))
        return [*found, *calls] if calls else [*found, *named_call(message.get("function_call"))]


def _block(part: dict[str, Any]) -> Block | None:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text, part)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return media_at("image", url, part)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}}:
            return MediaBlock("audio", None, f"audio/{format}", data, part)
        case {"type": "file", "file": {"file_data": str(place)}}:
            return media_at("file", place, part)
    return None


class OpenAI(ConversationDialect):
    """The dialect of OpenAI's chat completions.

    ``Memory.extra`` is a JSON object with the keys of a conversation except the messages, such as
    ``tools``.
    """

    name = "openai"
    framework = "OpenAI's API"
    keeps_extra = True
    view = OpenAIView
    holds_marks = True
    tool_words = (b"tool_call", b"function")
    note_key = KEY
    offloads = True

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        match media:
            case MediaBlock("image") | MediaBlock("file", None):
                return place == "user"
            case MediaBlock("audio", None, "audio/wav" | "audio/mp3"):
                return place == "user"
        return False

    def settings(self, extra: str, user: str, session: str) -> bytes:  # noqa: ARG002
        return jsonio.canonical(extra.encode("utf-8", "surrogatepass")) if extra else b""

    def pack(self, value: Message) -> Any:
        content = value.get("content")
        about = {name: value[name] for name in (ID, TIME) if name in value}
        notes = (value.get(METADATA) or {}).get(NOTES)
        about |= {"notes": notes} if notes else {}
        return {**content, KEY: about} if about and isinstance(content, dict) else content

    def unpack_message(self, message: Any) -> Message:
        """Return the row for a message of a file; data under its key ``memctl`` become fields."""
        about = message.get(KEY) if isinstance(message, dict) else None
        if not isinstance(about, dict):
            return {"content": message}
        content = {name: one for name, one in message.items() if name != KEY}
        found: Message = {
            name: about[name] for name in (ID, TIME) if isinstance(about.get(name), str)
        }
        if isinstance(about.get("notes"), dict):
            found[METADATA] = {NOTES: about["notes"]}
        return found | {"content": content}

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        # OpenAI's messages have no field for reasoning.
        kept = [block for block in blocks if not isinstance(block, ThinkingBlock)]
        return super().contents(role, name, kept)

    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        said = [block for block in blocks if not isinstance(block, ToolCallBlock)]
        calls = [openai_call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        role = "assistant" if calls else role if role in ROLES else "user"
        plain = role != "user" or all(isinstance(block, TextBlock) for block in said)
        content: Any = [_part(block) for block in said]
        if plain and (len(said) < 2 or role == "system"):
            content = output_text(said) if said or not calls else None
        message: dict[str, Any] = {"role": role, "content": content}
        if name and name != role:
            message["name"] = name
        return message | ({"tool_calls": calls} if calls else {})

    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        text = output_text(result.output)
        return {"role": "tool", "tool_call_id": result.id, "content": text}


def _part(block: Block) -> dict[str, Any]:
    match block:
        case MediaBlock("image"):
            return {"type": "image_url", "image_url": {"url": place_of(block)}}
        case MediaBlock("audio", None, str(media_type), data):
            format = media_type.partition("/")[2]
            return {"type": "input_audio", "input_audio": {"data": data or "", "format": format}}
        case MediaBlock("file", None):
            return {"type": "file", "file": {"filename": "file", "file_data": place_of(block)}}
    return {"type": "text", "text": output_text([block])}


OPENAI = OpenAI(frozenset({ID, TIME, METADATA}))
