"""The messages of AgentScope 1.x.

Sources: ``Msg.to_dict`` and ``from_dict`` in ``message/_message_base.py`` (what is stored, and what
loads), ``message/_message_block.py`` (blocks) and ``formatter/*`` (what is sent) of agentscope
1.0.21.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from memctl import jsonio
from memctl.dialects.view import (
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    MessageView,
    NotAnObject,
    PairMatcher,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSide,
    UnknownBlock,
)

ID, NAME, ROLE, TIMESTAMP, CONTENT = "id", "name", "role", "timestamp", "content"
"""The fields of a message that stores look for without parsing the rest."""

_FIELDS = frozenset({ID, NAME, ROLE, TIMESTAMP, CONTENT, "metadata", "invocation_id"})
_ROLES = ("user", "assistant", "system")
_MEDIA = ("image", "audio", "video")
_NEEDED = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("id", "output")}
"""The keys of a block that AgentScope reads without asking whether they are there."""

_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 22


class AgentScope1View(MessageView):
    """A message of AgentScope 1.x."""

    __slots__ = ()

    @property
    def id(self) -> str | None:
        found = self.value.get(ID)
        return found if isinstance(found, str) else None

    @property
    def role(self) -> str | None:
        found = self.value.get(ROLE)
        return found if isinstance(found, str) else None

    @property
    def name(self) -> str | None:
        found = self.value.get(NAME)
        return found if isinstance(found, str) else None

    @property
    def time(self) -> str | None:
        found = self.value.get(TIMESTAMP)
        return found if isinstance(found, str) else None

    @property
    def blocks(self) -> list[Block]:
        return _blocks(self.value.get(CONTENT))

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.value.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def unknown(self) -> dict[str, Any]:
        return {name: value for name, value in self.value.items() if name not in _FIELDS}

    @property
    def fault(self) -> str:
        for name in (NAME, ROLE, CONTENT):
            if name not in self.value:
                return f"no {name}"
        if self.value[ROLE] not in _ROLES:
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

    def texts(self) -> Iterator[str]:
        content = self.value.get(CONTENT)
        if isinstance(content, str):
            yield content
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield from _texts(block)


def _texts(block: dict[str, Any]) -> Iterator[str]:
    for name in ("text", "thinking", "output"):
        value = block.get(name)
        if isinstance(value, str):
            yield value
        elif name == "output" and isinstance(value, list):
            for inner in value:
                if isinstance(inner, dict):
                    yield from _texts(inner)


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
            return TextBlock(_string(block.get("text")), block)
        case "thinking":
            return ThinkingBlock(_string(block.get("thinking")), block)
        case "tool_use":
            name = _string(block.get("name"))
            return ToolCallBlock(_block_id(block), name, block.get("input"), block)
        case "tool_result":
            name = _string(block.get("name"))
            output = partial(_blocks, block.get("output"))
            return ToolResultBlock(_block_id(block), name, output, block)
        case "image" | "audio" | "video":
            return _media(kind, block)
        case _:
            return UnknownBlock(str(block.get("type", "?")), block)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


def _block_id(block: dict[str, Any]) -> str:
    id = block.get("id")
    if isinstance(id, str):
        return id
    return "" if id is None else repr(id)


def _bytes(value: Any) -> int:
    """Return the bytes of the texts in a value, media included."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return 0


def _media(kind: str, block: dict[str, Any]) -> MediaBlock:
    source = block.get("source")
    if not isinstance(source, dict):
        return MediaBlock(kind, value=block)
    if source.get("type") == "url":
        return MediaBlock(kind, _string(source.get("url")), value=block)
    data = source.get("data")
    media_type = _string(source.get("media_type")) or "?"
    return MediaBlock(kind, None, media_type, data if isinstance(data, str) else "", block)


def _stored(block: Block) -> dict[str, Any]:
    """Return a block as AgentScope stores it."""
    match block:
        case TextBlock(text) | HintBlock(text):
            return {"type": "text", "text": text}
        case ThinkingBlock(text):
            return {"type": "thinking", "thinking": text}
        case ToolCallBlock(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": input}
        case ToolResultBlock(id, name, output):
            plain = len(output) == 1 and isinstance(output[0], TextBlock)
            stored = output[0].text if plain else [_stored(one) for one in output]  # type: ignore[union-attr]
            return {"type": "tool_result", "id": id, "name": name, "output": stored}
        case MediaBlock(kind, url, media_type, data):
            if url is not None:
                return {"type": kind, "source": {"type": "url", "url": url}}
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": kind, "source": source}
        case UnknownBlock(_, value):
            return dict(value)


class AgentScope1(Dialect):
    """The dialect of AgentScope 1.x."""

    name = "agentscope1"

    def parse(self, text: bytes) -> AgentScope1View:
        value = jsonio.loads(text)
        if not isinstance(value, dict):
            raise NotAnObject("a message is not a JSON object")
        return AgentScope1View(value)

    def outline(self, text: bytes) -> AgentScope1View:
        value = jsonio.outline(text)
        if not isinstance(value, dict):
            raise NotAnObject("a message is not a JSON object")
        return AgentScope1View(value)

    def role_and_time(self, text: bytes) -> tuple[str | None, str | None]:
        value = jsonio.outline(text)
        if not isinstance(value, dict):
            raise NotAnObject("a message is not a JSON object")
        role, time = value.get(ROLE), value.get(TIMESTAMP)
        return role if isinstance(role, str) else None, time if isinstance(time, str) else None

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        message: dict[str, Any] = {
            ID: id,
            NAME: name,
            ROLE: role,
            CONTENT: content if isinstance(content, str) else [_stored(one) for one in content],
            "metadata": {},
            TIMESTAMP: moment.isoformat(" ", "milliseconds"),
        }
        return id, jsonio.dumps(message)

    def output_bytes(self, result: ToolResultBlock) -> int:
        return _bytes(result.value.get("output")) if isinstance(result.value, dict) else 0

    def summary_message(self, summary: str) -> bytes:
        return jsonio.dumps({NAME: "user", ROLE: "user", CONTENT: summary})

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        if _TOOL not in text and not (_ESCAPED in text and _ESCAPED_ASCII.search(text)):
            return
        message = jsonio.outline(text)
        content = message.get(CONTENT) if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in (_CALL, _RESULT):
                id = block.get("id")
                if isinstance(id, str):
                    yield ToolSide.CALL if block["type"] == _CALL else ToolSide.RESULT, id

    def pair_matcher(self, halves: Iterable[tuple[str, ToolSide]]) -> PairMatcher:
        return _PairMatcher(self, halves)


AGENTSCOPE1 = AgentScope1()

_CALL, _RESULT = "tool_use", "tool_result"
_TYPES = {ToolSide.CALL: _CALL, ToolSide.RESULT: _RESULT}
_TOOL, _ESCAPED = b"tool_", b"\\u00"
"""One of them is in every message with such a block: the name, or letters of it in escapes."""
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
_PLAIN_ID = re.compile(rb"[\w.:+=-]+", re.ASCII)
"""An id that stands in JSON as it is, unless letters of it are in escapes."""
_TOGETHER = 8 * 1024 * 1024
"""Bytes of messages that are searched as one."""
_IDS = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


class _PairMatcher:
    """A search for messages with the other half of some calls.

    What rules most of them out is decided for many at once, in C.
    """

    def __init__(self, dialect: AgentScope1, halves: Iterable[tuple[str, ToolSide]]) -> None:
        self._dialect = dialect
        self._others = {(side.other, id) for id, side in halves}
        self._ids: dict[bytes, set[bytes]] = {}
        for side, id in self._others:
            name = id.encode("utf-8", "surrogatepass")
            self._ids.setdefault(_TYPES[side].encode(), set()).add(name)
        self._plain = all(_PLAIN_ID.fullmatch(id) for ids in self._ids.values() for id in ids)

    def __call__(self, messages: Sequence[bytes]) -> Iterator[int]:
        for index in self._candidates(messages):
            if not self._others.isdisjoint(self._dialect.tool_sides(messages[index])):
                yield index

    def _candidates(self, messages: Sequence[bytes]) -> list[int]:
        """Return the indexes of the messages that may match, by the bytes of their texts."""
        # One byte is found much faster than several, and most texts have none such.
        slashed = [index for index, text in enumerate(messages) if b"\\" in text]
        escaped = [index for index in slashed if _ESCAPED in messages[index]]
        found: set[int] = set()
        if any(map(_ESCAPED_ASCII.search, _joined([messages[index] for index in escaped]))):
            found.update(index for index in escaped if _ESCAPED_ASCII.search(messages[index]))
        named = [index for index, text in enumerate(messages) if _TOOL in text]
        for kind, ids in self._ids.items():
            having = [index for index in named if kind in messages[index]]
            if self._plain and not _have(ids, [messages[index] for index in having]):
                continue
            found.update(
                index for index in having if not self._plain or _have(ids, [messages[index]])
            )
        return sorted(found)


def _have(ids: set[bytes], texts: list[bytes]) -> bool:
    """Return whether one of the ids, or a part of a text that looks like it, is in the texts."""
    return not all(ids.isdisjoint(_IDS.findall(text)) for text in _joined(texts))


def _joined(texts: list[bytes]) -> list[bytes]:
    """Return the texts as one, if that is not too large."""
    return [b"\n".join(texts)] if sum(map(len, texts)) <= _TOGETHER else texts
