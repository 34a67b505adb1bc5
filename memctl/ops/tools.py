"""Tool calls and their results in messages.

Blocks of type ``tool_use`` and ``tool_result`` that share an id (``message/_message_block.py`` of
AgentScope 1.x); model APIs refuse a history that has one without the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from memctl import codec
from memctl.model import Entry

_TYPES = ("tool_use", "tool_result")
_OTHER = dict(zip(_TYPES, reversed(_TYPES), strict=True))
_NAME, _ESCAPED = b"tool_", b"\\u00"
"""What a message with such a block cannot do without: the name, or letters of it in escapes."""

_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
_PLAIN_ID = re.compile(rb"[\w.:+=-]+", re.ASCII)
"""An id that stands in JSON as it is, unless letters of it are in escapes."""
_IDS = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


def tool_blocks(text: bytes) -> Iterator[tuple[str, str]]:
    """The type and the id of each tool block of a message.

    Raises:
        ValueError: the message is not JSON.
    """
    if _NAME not in text and _ESCAPED not in text:
        return
    message = codec.outline(text)
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") in _TYPES:
            id = block.get("id")
            if isinstance(id, str):
                yield block["type"], id


def tool_ids(entry: Entry) -> list[str]:
    """The ids of the calls that a message makes or answers; each once."""
    return list(dict.fromkeys(id for _, id in tool_blocks(entry.message)))


class OtherHalves:
    """Finds messages that have the other half of some calls, without parsing most of them."""

    def __init__(self, halves: Iterable[tuple[str, str]]) -> None:
        """``halves`` are ids, each with the type of block that is known."""
        self._others = {(_OTHER[kind], id) for id, kind in halves}
        self._ids = frozenset(id.encode("utf-8", "surrogatepass") for _, id in self._others)
        self._plain = all(map(_PLAIN_ID.fullmatch, self._ids))

    def __call__(self, message: bytes) -> bool:
        """Whether the JSON text of a message has one.

        Raises:
            ValueError: it is not JSON.
        """
        return self._may_have(message) and not self._others.isdisjoint(tool_blocks(message))

    def _may_have(self, message: bytes) -> bool:
        escaped = _ESCAPED in message and _ESCAPED_ASCII.search(message) is not None
        if _NAME not in message or escaped or not self._plain:
            return escaped or _NAME in message
        return not self._ids.isdisjoint(_IDS.findall(message))


class Calls:
    """The calls and results of some messages of one memory."""

    def __init__(self) -> None:
        self._seen: dict[str, frozenset[str]] = {}

    def add(self, entries: list[Entry]) -> None:
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
