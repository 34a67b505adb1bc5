"""Tool calls and their results in messages.

Blocks of type ``tool_use`` and ``tool_result`` that share an id (``message/_message_block.py`` of
AgentScope 1.x); model APIs refuse a history that has one without the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from memctl import codec
from memctl.model import StoredMessage

_TYPES = ("tool_use", "tool_result")
_OTHER = dict(zip(_TYPES, reversed(_TYPES), strict=True))
_NAME, _ESCAPED = b"tool_", b"\\u00"
"""What a message with such a block cannot do without: the name, or letters of it in escapes."""

_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
_PLAIN_ID = re.compile(rb"[\w.:+=-]+", re.ASCII)
"""An id that stands in JSON as it is, unless letters of it are in escapes."""
_TOGETHER = 8 * 1024 * 1024
"""Bytes of messages that are looked at as one."""
_IDS = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


def tool_blocks(text: bytes) -> Iterator[tuple[str, str]]:
    """The type and the id of each tool block of a message.

    Raises:
        ValueError: the message is not JSON.
    """
    if _NAME not in text and not (_ESCAPED in text and _ESCAPED_ASCII.search(text)):
        return
    message = codec.outline(text)
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") in _TYPES:
            id = block.get("id")
            if isinstance(id, str):
                yield block["type"], id


def tool_ids(entry: StoredMessage) -> list[str]:
    """The ids of the calls that a message makes or answers; each once."""
    return list(dict.fromkeys(id for _, id in tool_blocks(entry.message)))


class ToolPairMatcher:
    """Finds messages that have the other half of some calls, without parsing most of them.

    There may be millions, so what tells that there is none is told of many at once, and in C.
    """

    def __init__(self, halves: Iterable[tuple[str, str]]) -> None:
        """``halves`` are ids, each with the type of block that is known."""
        self._others = {(_OTHER[kind], id) for id, kind in halves}
        self._ids: dict[bytes, set[bytes]] = {}
        for kind, id in self._others:
            name = id.encode("utf-8", "surrogatepass")
            self._ids.setdefault(kind.encode(), set()).add(name)
        self._plain = all(_PLAIN_ID.fullmatch(id) for ids in self._ids.values() for id in ids)

    def __call__(self, messages: Sequence[bytes]) -> Iterator[int]:
        """The places of those that have one, given the JSON texts of messages.

        Raises:
            ValueError: one is not JSON.
        """
        for at in self._suspects(messages):
            if not self._others.isdisjoint(tool_blocks(messages[at])):
                yield at

    def _suspects(self, messages: Sequence[bytes]) -> list[int]:
        """The places of those that may have one, by what stands in their texts."""
        # One byte is found much faster than several, and most texts have none such.
        slashed = [at for at, text in enumerate(messages) if b"\\" in text]
        escaped = [at for at in slashed if _ESCAPED in messages[at]]
        found: set[int] = set()
        if any(map(_ESCAPED_ASCII.search, _joined([messages[at] for at in escaped]))):
            found.update(at for at in escaped if _ESCAPED_ASCII.search(messages[at]))
        named = [at for at, text in enumerate(messages) if _NAME in text]
        for kind, ids in self._ids.items():
            having = [at for at in named if kind in messages[at]]
            if self._plain and not _have(ids, [messages[at] for at in having]):
                continue
            found.update(at for at in having if not self._plain or _have(ids, [messages[at]]))
        return sorted(found)


def _have(ids: set[bytes], texts: list[bytes]) -> bool:
    """Whether one of these ids, or a part of a text that looks like it, is among the texts."""
    return not all(ids.isdisjoint(_IDS.findall(text)) for text in _joined(texts))


def _joined(texts: list[bytes]) -> list[bytes]:
    """The texts as one, if that is not too large."""
    return [b"\n".join(texts)] if sum(map(len, texts)) <= _TOGETHER else texts


class ToolPairTracker:
    """The calls and results of some messages of one memory."""

    def __init__(self) -> None:
        self._seen: dict[str, frozenset[str]] = {}

    def add(self, entries: list[StoredMessage]) -> None:
        """Takes the next messages."""
        for entry in entries:
            for kind, id in tool_blocks(entry.message):
                self._seen[id] = self._seen.get(id, frozenset()) | {kind}

    def clear(self) -> None:
        """Begins another memory."""
        self._seen.clear()

    def single(self) -> dict[str, str]:
        """The calls without a result among these messages, and the results without a call.

        By id, with the half that is here.
        """
        return {id: min(kinds) for id, kinds in self._seen.items() if len(kinds) < len(_TYPES)}
