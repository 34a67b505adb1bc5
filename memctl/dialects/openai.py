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
from memctl.dialects.rows import (
    METADATA,
    TIME,
    DocumentView,
    RowDialect,
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
    UnknownBlock,
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


def _block(part: Any) -> Block:
    if not isinstance(part, dict):
        return UnknownBlock("?", {"type": "?", "value": part})
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return TextBlock(text, part)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return media_at("image", url, part)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}}:
            return MediaBlock("audio", None, f"audio/{format}", data, part)
        case {"type": "file", "file": {"file_data": str(place)}}:
            return media_at("file", place, part)
    return UnknownBlock(string(part.get("type")) or "?", part)


class OpenAI(RowDialect):
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
        found: list[Any] = []
        said: list[Block] = []
        calls: list[ToolCallBlock] = []
        for block in blocks:
            match block:
                case ToolResultBlock(id, _, output):
                    text = output_text(output)
                    found.append({"role": "tool", "tool_call_id": id, "content": text})
                case ToolCallBlock():
                    calls.append(block)
                case ThinkingBlock():
                    continue  # OpenAI's messages have no field for reasoning
                case _:
                    said.append(block)
        if said or calls or not found:
            found.insert(0, _message(role, name, said, calls))
        return found


def _message(
    role: str, name: str, said: Sequence[Block], calls: Sequence[ToolCallBlock]
) -> dict[str, Any]:
    role = "assistant" if calls else role if role in ("user", "assistant", "system") else "user"
    plain = role != "user" or all(isinstance(block, TextBlock) for block in said)
    text = output_text(said) if len(said) < 2 or role == "system" else None
    content: Any = text if plain and text is not None else [_part(block) for block in said]
    message: dict[str, Any] = {"role": role, "content": content}
    if name and name != role:
        message["name"] = name
    if calls:
        if not said:
            message["content"] = None
        message["tool_calls"] = [openai_call(call) for call in calls]
    return message


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
