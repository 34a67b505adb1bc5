"""The common parts of the messages of AgentScope 1.x and 2.x.

Messages of both versions are JSON objects with ``id``, ``name``, ``role``, ``content`` and
``metadata``.  The content is a list of blocks with a ``type`` (``message/`` of agentscope 1.0.21
and 2.0.11).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, ClassVar, Self

from memctl.dialects.roles import ROLES
from memctl.dialects.view import (
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    MessageView,
    PairMatcher,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSide,
    UnknownBlock,
    call_text,
)
from memctl.json import jsonio

ID, NAME, ROLE, CONTENT = "id", "name", "role", "content"
"""The fields that stores look up without parsing the rest of a message."""

RESULT = "tool_result"
CALLS = ("tool_use", "tool_call")
"""The block types of tool calls in 1.x and in 2.x."""
NO_TIME = ""
"""The stored time of a message without a time.

Both versions load the empty text: 2.x keeps the empty text, 1.x shows the time of loading.
``TablestoreMemory`` of 1.x also writes the empty text.
"""


class AgentScopeView(MessageView):
    """The base class of views of a message in the format of AgentScope."""

    __slots__ = ()

    @property
    def time(self) -> str | None:
        return super().time or None

    @property
    def fault(self) -> str:
        for name in (NAME, ROLE, CONTENT):
            if name not in self.value:
                return f"no {name}"
        if self.value[ROLE] not in ROLES:
            return "its role is not one of user, assistant, system"
        return self._fault_of(self.value[CONTENT])

    def _fault_of(self, content: Any) -> str:  # noqa: ARG002 - only some versions look into it
        """Return the reason why AgentScope cannot load a content; empty if it can."""
        return ""

    def texts(self) -> Iterator[str]:
        content = self.value.get(CONTENT)
        if isinstance(content, str):
            yield content
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield from _texts(block)

    @property
    def is_tool_output(self) -> bool:
        content = self.value.get(CONTENT)
        blocks = content if isinstance(content, list) else ()
        return bool(blocks) and all(
            isinstance(block, dict) and block.get("type") == RESULT for block in blocks
        )

    def searchable(self) -> str:
        content = self.value.get(CONTENT)
        if isinstance(content, str):
            return content
        found: list[str] = []
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                text = block.get("text")
                if isinstance(text, str) and len(block) == _PLAIN_TEXT:
                    found.append(text)
                    continue
                found += _texts(block)
                if block.get("type") in CALLS:
                    found.append(call_text(string(block.get("name")), block.get("input")))
        return "\n".join(found)


_PLAIN_TEXT = 2
"""The number of fields of a plain text block: ``type`` and ``text``."""


def _texts(block: dict[str, Any]) -> Iterator[str]:
    for name in ("text", "thinking", "hint", "output"):
        value = block.get(name)
        if isinstance(value, str):
            yield value
        elif name in ("hint", "output") and isinstance(value, list):
            for inner in value:
                if isinstance(inner, dict):
                    yield from _texts(inner)


def string(value: Any) -> str:
    """Return any value as a text; None becomes an empty text."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


def decoded(value: Any) -> Any:
    """Return the value of a JSON text; anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return jsonio.loads(value.encode("utf-8", "surrogatepass"))
    except ValueError:
        return value


def block_id(block: dict[str, Any]) -> str:
    """Return the id of a block as a text; an empty text if the block has no id."""
    id = block.get("id")
    if isinstance(id, str):
        return id
    return "" if id is None else repr(id)


OwnBlock = Callable[[dict[str, Any]], Block | None]
"""Parses a block of a type specific to one version or framework; None for any unknown type."""


def block_or_unknown(block: Any, own: OwnBlock, key: str = "type") -> Block:
    """Return the block that ``own`` parses, else an unknown block with its type from ``key``."""
    if not isinstance(block, dict):
        return UnknownBlock("?", {"type": "?", "value": block})
    return own(block) or UnknownBlock(string(block.get(key)) or "?", block)


def blocks(content: Any, own: OwnBlock) -> list[Block]:
    """Return the blocks of the content of a message or of a tool output.

    A text becomes one TextBlock.  ``own`` parses the block types that only one version of
    AgentScope has.  The result is empty if ``content`` is neither a text nor a list.
    """
    if isinstance(content, str):
        return [TextBlock(content, content)]
    known = partial(_block, own=own)
    found = content if isinstance(content, list) else ()
    return [block_or_unknown(block, known) for block in found]


def _block(block: dict[str, Any], own: OwnBlock) -> Block | None:
    match block.get("type"):
        case "text":
            return TextBlock(string(block.get("text")), block)
        case "thinking":
            return ThinkingBlock(string(block.get("thinking")), block)
        case "tool_result":
            output = partial(blocks, block.get("output"), own)
            return ToolResultBlock(block_id(block), string(block.get("name")), output, block)
    return own(block)


def _bytes(value: Any) -> int:
    """Return the size of all texts in a JSON value, at any depth, in bytes of UTF-8."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return 0


class AgentScopeDialect(Dialect):
    """The base class of dialects with messages in the format of AgentScope."""

    call: ClassVar[str]
    """The block type of a tool call."""

    def output_bytes(self, result: ToolResultBlock) -> int:
        return _bytes(result.value.get("output")) if isinstance(result.value, dict) else 0

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        if _TOOL not in text and not may_escape(text):
            return
        message = jsonio.outline(text)
        content = message.get(CONTENT) if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in (self.call, RESULT):
                id = block.get("id")
                if isinstance(id, str) and id:
                    yield ToolSide.CALL if block["type"] == self.call else ToolSide.RESULT, id

    def pair_matcher(self, halves: Iterable[tuple[str, ToolSide]]) -> PairMatcher:
        return _PairMatcher(self, halves)

    @abstractmethod
    def stored_block(self, block: Block) -> dict[str, Any]:
        """Return a block as the JSON object that AgentScope stores."""


class AgentScopeVersion(AgentScopeDialect):
    """The base class of the dialects of AgentScope 1.x and 2.x."""

    shows_losses = True

    local_times = True
    answered: ClassVar[dict[str, Any]] = {}
    """Further fields of a new tool result, besides id, name and output."""

    def in_zone(self, zone: tzinfo) -> Self:
        found = copy(self)
        found.zone = zone
        found.view = type(self.view.__name__, (self.view,), {"__slots__": (), "zone": zone})
        return found

    time_form: ClassVar[tuple[str, str]] = "T", "auto"
    """The arguments of ``datetime.isoformat`` for a time."""

    def timestamp(self, moment: datetime) -> str:
        """Return a local time of this machine as the framework writes its local time."""
        with suppress(OverflowError):  # the first or the last day that Python knows
            moment = moment.astimezone(self.zone).replace(tzinfo=None) if self.zone else moment
        return moment.isoformat(*self.time_form)

    def stored_block(self, block: Block) -> dict[str, Any]:
        match block:
            case TextBlock(text):
                return {"type": "text", "text": text}
            case ThinkingBlock(text):
                return {"type": "thinking", "thinking": text}
            case ToolResultBlock(id, name, [TextBlock(output)]):
                stored: Any = output
            case ToolResultBlock(id, name, output):
                stored = [self.stored_block(one) for one in output]
            case UnknownBlock(_, value):
                return dict(value)
            case _:
                return self._stored(block)
        return {"type": RESULT, "id": id, "name": name, "output": stored} | self.answered

    @abstractmethod
    def _stored(self, block: HintBlock | ToolCallBlock | MediaBlock) -> dict[str, Any]:
        """Return a block that each version of AgentScope stores differently."""


_TOOL, _ESCAPED = b"tool_", b"\\u00"
"""Every message with a tool block contains ``_TOOL``, or ``_ESCAPED`` if letters are escaped."""
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")


def may_escape(text: bytes) -> bool:
    """Return whether a JSON text may have an escaped ASCII letter."""
    return _ESCAPED in text and _ESCAPED_ASCII.search(text) is not None


_PLAIN_ID = re.compile(rb"[\w.:+=-]+", re.ASCII)
"""An id that JSON need not escape."""
_TOGETHER = 8 * 1024 * 1024
"""The maximum bytes of messages to search as one text."""
_IDS = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


class _PairMatcher:
    """Finds the messages with the other halves of tool calls."""

    def __init__(self, dialect: AgentScopeDialect, halves: Iterable[tuple[str, ToolSide]]) -> None:
        self._dialect = dialect
        self._others = {(side.other, id) for id, side in halves}
        self._ids: dict[bytes, set[bytes]] = {}
        types = {ToolSide.CALL: dialect.call, ToolSide.RESULT: RESULT}
        for side, id in self._others:
            name = id.encode("utf-8", "surrogatepass")
            self._ids.setdefault(types[side].encode(), set()).add(name)
        self._plain = all(_PLAIN_ID.fullmatch(id) for ids in self._ids.values() for id in ids)

    def __call__(self, messages: Sequence[bytes]) -> Iterator[int]:
        for index in self._candidates(messages):
            if not self._others.isdisjoint(self._dialect.tool_sides(messages[index])):
                yield index

    def _candidates(self, messages: Sequence[bytes]) -> list[int]:
        """Return the indexes of the messages that may match."""
        # The search for one byte is much faster, and most texts contain no backslash.
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
    """Return whether any of the JSON texts may have a field ``id`` with one of the ids."""
    return not all(ids.isdisjoint(_IDS.findall(text)) for text in _joined(texts))


def _joined(texts: list[bytes]) -> list[bytes]:
    """Return a list with the joined texts as one text; ``texts`` itself if they are large."""
    return [b"\n".join(texts)] if sum(map(len, texts)) <= _TOGETHER else texts
