"""The parts of messages as texts for readers, for every format."""

from __future__ import annotations

import json
from typing import Any

from memctl.dialects.view import (
    Block,
    HintBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.location import visible
from memctl.text.numbers import size

_ADDRESS = 120
_LONGEST_ADDRESS = 4096
"""The largest number of characters of a media address to show (``_ADDRESS``) and to read."""


def media(block: MediaBlock) -> str:
    """Return the address of media, or type and size if embedded."""
    if block.url is not None or block.media_type is None:
        text = block.url or ""
        line = visible(" ".join(text[:_LONGEST_ADDRESS].split()))
        return line if len(line) <= _ADDRESS else line[: _ADDRESS - 1].rstrip() + "…"
    return f"{visible(block.media_type)}, {size(block.size)}"


def kind_of(block: Block) -> str:
    """Return the kind of a block in one word; that of an unknown block is its type."""
    match block:
        case TextBlock():
            return "text"
        case ThinkingBlock():
            return "thinking"
        case HintBlock():
            return "hint"
        case ToolCallBlock():
            return "call"
        case ToolResultBlock():
            return "result"
        case _:
            return block.kind


def folded_texts(block: Block) -> list[str]:
    """Return the texts of a block that a reader unfolds: thinking, a tool call, its result.

    A block of an unknown type is its JSON.
    """
    match block:
        case ThinkingBlock(text) | HintBlock(text):
            return [text]
        case ToolCallBlock():
            return [indented(block.input)]
        case ToolResultBlock():
            return [_result(one) for one in block.output]
        case _:
            return [] if block.value is None else [indented(block.value)]


def _result(block: Block) -> str:
    match block:
        case TextBlock(text) | ThinkingBlock(text) | HintBlock(text):
            return text
        case MediaBlock():
            return f"[{block.kind}] {media(block)}"
        case ToolCallBlock() | ToolResultBlock():
            return f"[{block.name}]"
        case _:
            return f"[{block.kind}]"


def indented(value: Any) -> str:
    """Return a value as JSON on several lines."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=2)
    except RecursionError:
        return "(nested too deep to be shown)"
