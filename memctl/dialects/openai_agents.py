"""The items of the OpenAI Agents SDK: input and output of the Responses API.

Source: ``types/responses/response_input_item_param.py`` of openai 3.  The sessions of openai-agents
0.24 store the items unchanged.  The API refuses unknown fields, so an item cannot carry notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from memctl.dialects.agentscope import CONTENT, decoded, string
from memctl.dialects.conversion import Message
from memctl.dialects.roles import role_of
from memctl.dialects.rows import (
    EXTRA,
    DocumentView,
    RowDialect,
    arguments_text,
    media_at,
    output_blocks,
    output_text,
    place_of,
)
from memctl.dialects.view import (
    Block,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    held,
    object_at,
    others,
)
from memctl.json import jsonio

_CALL, _OUTPUT = "function_call", "function_call_output"
_REASONING, _MESSAGE = "reasoning", "message"
_COMPACTION = "compaction"
"""An item that stands for earlier items, and that only OpenAI can read."""
_ENCRYPTED = "encrypted item"
_FAKE_ID = "__fake_id__"
"""The id of all items of models without the Responses API (``models/fake_id.py``)."""


def is_envelope(item: dict[str, Any]) -> bool:
    """Return whether an item is encrypted, by the SDK's ``EncryptedSession``.

    The key depends on the name of the session, so an item cannot be decrypted after the session was
    renamed.  Source: ``_is_encrypted_envelope`` of ``extensions/memory/encrypt_session.py``.
    """
    return item.get("__enc__") == 1 and {"payload", "kid", "v"} <= item.keys()


class OpenAIAgentsView(DocumentView):
    """A view of an item of the OpenAI Agents SDK."""

    __slots__ = ()
    known = frozenset({"id", "type", "role", "content", "status", "phase"})

    @property
    def id(self) -> str | None:
        return OPENAI_AGENTS.own_id(self.content)

    @property
    def unread(self) -> dict[str, Any]:
        # All fields of the other items belong to a call, a result or reasoning.
        if self.kind == _MESSAGE:
            return super().unread
        return held(object_at(self.value, EXTRA))

    @property
    def kind(self) -> str:
        """The type of the item, or ``?``; ``message`` for a message without the field ``type``."""
        item = self.document
        return string(item.get("type")) or (_MESSAGE if "role" in item else "?")

    @property
    def role(self) -> str | None:
        found = self.document.get("role")
        if isinstance(found, str):
            return role_of(found)
        if is_envelope(self.document):
            return None
        if self.kind == _COMPACTION:
            return _COMPACTION
        return "system" if self.kind.endswith("_output") else "assistant"

    @property
    def name(self) -> None:
        return None

    @property
    def fault(self) -> str:
        if (found := super().fault) or self.kind != "?" or is_envelope(self.document):
            return found
        return "it has neither a type nor a role"

    @property
    def blocks(self) -> list[Block]:
        item = self.document
        if is_envelope(item):
            return [UnknownBlock(_ENCRYPTED)]
        id, name = string(item.get("call_id")), string(item.get("name"))
        output = partial(output_blocks, item.get("output"), _block)
        match self.kind:
            case "message" if isinstance(text := item.get("content"), str):
                return [TextBlock(text, item)]
            case "message":
                return output_blocks(item.get("content"), _block)
            case "function_call":
                return [ToolCallBlock(id, name, decoded(item.get("arguments")), item)]
            case "function_call_output":
                return [ToolResultBlock(id, "", output, item)]
            case "reasoning":
                parts = [*_list(item.get("summary")), *_list(item.get("content"))]
                texts = [string(one.get("text")) for one in parts if isinstance(one, dict)]
                return [ThinkingBlock("\n".join(texts), item)]
            case "image_generation_call" if isinstance(item.get("result"), str):
                media_type = f"image/{string(item.get('output_format')) or 'png'}"
                return [MediaBlock("image", None, media_type, item["result"], item)]
            # Of further tools: custom tools, shell, computer, patches.
            case kind if kind.endswith("_call_output") and isinstance(item.get("call_id"), str):
                return [ToolResultBlock(id, "", output, item)]
            case kind if kind.endswith("_call") and isinstance(item.get("call_id"), str):
                input = others(item, _ABOUT_CALL)
                return [ToolCallBlock(id, name or kind.removesuffix("_call"), input, item)]
            case kind:
                return [UnknownBlock(kind, item)]


_OUTPUTS = {
    _CALL: _OUTPUT,
    "custom_tool_call": "custom_tool_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "tool_search_call": "tool_search_output",
}
"""The types of the outputs of calls, by the types of the calls."""


def _identity(item: dict[str, Any]) -> str:
    """Return the id by which the SDK recognizes an item; empty for a message and without an id."""
    kind = item.get("type", _MESSAGE)
    if "role" in item or kind == _MESSAGE:
        return ""
    names = ["id", "call_id", "approval_request_id"]
    if kind in _OUTPUTS or kind in _OUTPUTS.values():
        names.insert(0, "call_id")
    found = (item.get(name) for name in names)
    return next((id for id in found if isinstance(id, str) and id != _FAKE_ID), "")


_ABOUT_CALL = ("type", "id", "call_id", "name", "status")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _block(part: dict[str, Any]) -> Block | None:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return TextBlock(string(part.get("text")), part)
        case "refusal":
            return TextBlock(string(part.get("refusal")), part)
        case "input_image" if isinstance(part.get("image_url"), str):
            return media_at("image", part["image_url"], part)
        case "input_audio" if isinstance(part.get("input_audio"), dict):
            sound = part["input_audio"]
            media_type = f"audio/{string(sound.get('format')) or '?'}"
            return MediaBlock("audio", None, media_type, string(sound.get("data")), part)
        case "input_file" if part.get("file_url") or part.get("file_data"):
            return media_at("file", part.get("file_url") or part.get("file_data"), part)
    return None


class OpenAIAgents(RowDialect):
    """The dialect of the sessions of the OpenAI Agents SDK."""

    name = "openai-agents"
    framework = "the OpenAI Agents SDK"
    view = OpenAIAgentsView
    tool_words = (b"_call",)
    results_follow = False
    may_wait = True
    depends_on_later = True
    holds_items = True
    encrypts = True
    offloads = True

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:
        if "result" in media:  # the item of a picture that a model made
            return {"role": "assistant", CONTENT: text}
        return {"type": "input_text", "text": text}

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return place != "assistant"

    def is_encrypted(self, text: bytes) -> bool:
        return b'"__enc__"' in text and is_envelope(OpenAIAgentsView(jsonio.loads(text)).document)

    def leads(self, view: MessageView) -> bool:
        return isinstance(view, OpenAIAgentsView) and view.kind == _REASONING

    def asked(self, views: Sequence[MessageView]) -> dict[int, int]:
        """Return the places of the items that a run sends of its session, with the items.

        A run sends no call without an output, nor reasoning before such a call.  Of several items
        with one id, it sends the last; that of a call, or of reasoning, in the place of the first.

        Source: ``prepare_input_with_session`` of ``run_internal/session_persistence.py`` of
        openai-agents 0.24, and what it calls of ``run_internal/items.py``.
        """
        items = [view.document for view in views if isinstance(view, OpenAIAgentsView)]
        answered = {(item.get("type"), item.get("call_id")) for item in items}
        found: dict[int, int] = {}
        places: dict[tuple[str, str], int] = {}
        stays = True
        for at in reversed(range(len(items))):
            kind, id = string(items[at].get("type")), items[at].get("call_id")
            output = _OUTPUTS.get(kind)
            if kind != _REASONING:
                named = isinstance(id, str) or kind != "tool_search_call"
                stays = not (output and named) or (output, id) in answered
            if not stays:
                continue
            name = kind, _identity(items[at])
            last = places.get(name) if name[1] else None
            if last is None:
                found[at] = at
            elif output or kind == _REASONING:
                found[at] = found.pop(last)
            else:
                continue
            places[name] = at
        return dict(sorted(found.items()))

    def is_answerable(self, call: ToolCallBlock) -> bool:
        return isinstance(call.value, dict) and call.value.get("type") == _CALL

    def own_id(self, content: Any) -> str | None:
        found = content.get("id") if isinstance(content, dict) else None
        return found if isinstance(found, str) and found not in ("", _FAKE_ID) else None

    def continues(self, group: list[Message], message: Message) -> bool:
        """Return whether an item belongs to the same reply as the items of ``group`` before it.

        A reply has reasoning, a message and calls, in this order.
        """
        order = (_REASONING, _MESSAGE, _CALL)
        before, now = OpenAIAgentsView(group[-1]), OpenAIAgentsView(message)
        if any(one.role != "assistant" or one.kind not in order for one in (before, now)):
            return False
        was, rank = order.index(before.kind), order.index(now.kind)
        return was < rank or was == rank == order.index(_CALL)

    def rows(
        self, role: str, name: str, time: str | None, blocks: Sequence[Block]
    ) -> list[Message]:
        # In whole seconds, as SQLite writes times.  With a fraction, an item might sort after an
        # item that the SDK adds later in the same second.
        whole = None if time is None else f"{time[:19]}.000000+00:00"
        return super().rows(role, name, whole, blocks)

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:  # noqa: ARG002
        found: list[Any] = []
        said: list[dict[str, Any]] = []
        for block in blocks:
            match block:
                case ToolCallBlock(id, called, input):
                    arguments = arguments_text(input)
                    item = {"type": _CALL, "call_id": id, "name": called, "arguments": arguments}
                case ToolResultBlock(id, _, output):
                    item = {"type": _OUTPUT, "call_id": id, "output": _output(output)}
                case ThinkingBlock():
                    continue  # the API takes reasoning only with the id assigned by the API
                case _:
                    said.append(_part(block, role))
                    if len(said) == 1:
                        found.append(said)
                    continue
            found.append(item)
        if not found:
            found.append([_part(TextBlock(""), role)])
        return [_message(one, role) if isinstance(one, list) else one for one in found]


def _message(parts: list[dict[str, Any]], role: str) -> dict[str, Any]:
    role = role if role in ("user", "assistant", "system") else "user"
    plain = len(parts) == 1 and parts[0]["type"] in ("input_text", "output_text")
    return {"role": role, CONTENT: parts[0]["text"] if plain else parts}


def _part(block: Block, role: str) -> dict[str, Any]:
    match block:
        case MediaBlock("image"):
            return {"type": "input_image", "detail": "auto", "image_url": place_of(block)}
        case MediaBlock(_, None):
            return {"type": "input_file", "filename": "file", "file_data": place_of(block)}
        case MediaBlock(_, url):
            return {"type": "input_file", "file_url": url}
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": output_text([block])}


def _output(blocks: Sequence[Block]) -> Any:
    """Return the output of a tool as a text, or as parts if it has media."""
    if any(isinstance(block, MediaBlock) for block in blocks):
        return [_part(block, "user") for block in blocks]
    return output_text(blocks)


OPENAI_AGENTS = OpenAIAgents(frozenset({"time"}))
