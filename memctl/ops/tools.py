"""Tool calls and their results in messages.

Blocks of type ``tool_use`` and ``tool_result`` that share an id (``message/_message_block.py`` of
AgentScope 1.x); model APIs refuse a history that has one without the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from memctl import codec
from memctl.model import Entry

_TYPES = ("tool_use", "tool_result")
_NAME, _ESCAPED = b"tool_", b"\\u00"
"""What a message with such a block cannot do without: the name, or letters of it in escapes."""


def tool_blocks(entry: Entry) -> Iterator[tuple[str, str]]:
    """The type and the id of each tool block of a message.

    Raises:
        ValueError: the message is not JSON.
    """
    if _NAME not in entry.message and _ESCAPED not in entry.message:
        return
    message = codec.outline(entry.message)
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") in _TYPES:
            id = block.get("id")
            if isinstance(id, str):
                yield block["type"], id


def tool_ids(entry: Entry) -> list[str]:
    """The ids of the calls that a message makes or answers; each once."""
    return list(dict.fromkeys(id for _, id in tool_blocks(entry)))


class Calls:
    """The calls and results of some messages of one memory."""

    def __init__(self) -> None:
        self._seen: dict[str, frozenset[str]] = {}

    def add(self, entries: list[Entry]) -> None:
        """Takes the next messages."""
        for entry in entries:
            for kind, id in tool_blocks(entry):
                self._seen[id] = self._seen.get(id, frozenset()) | {kind}

    def clear(self) -> None:
        """Begins another memory."""
        self._seen.clear()

    def single(self) -> dict[str, str]:
        """The calls without a result among these messages, and the results without a call.

        By id, with the half that is here.
        """
        return {id: min(kinds) for id, kinds in self._seen.items() if len(kinds) < len(_TYPES)}
