"""A message as text for a summarizer: who said what, with placeholders for media.

Thinking is left out: AgentScope's formatters do not send it to models, either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from memctl.dialects.view import (
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.ops.report import HUGE_BYTES
from memctl.summarizer import Turn

_LONGEST_URL = 200
_LONGEST_SPEAKER = 200


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message as text for a summarizer, with the ids of its tool calls and tool results."""

    turn: Turn
    calls: tuple[str, ...]
    results: tuple[str, ...]


def transcribe(text: bytes, dialect: Dialect) -> TranscriptMessage:
    """Turn a message, given as JSON text, into text for a summarizer.

    The long texts of a huge message are left out.

    Raises:
        ValueError: the message is not a JSON object.
    """
    huge = len(text) >= HUGE_BYTES
    view = dialect.outline(text) if huge else dialect.parse(text)
    return transcribe_view(view, view.blocks, len(text))


def transcribe_view(view: MessageView, blocks: list[Block], size: int) -> TranscriptMessage:
    """Turn a message with these blocks into text for a summarizer, as ``transcribe`` does.

    ``size`` is that of its JSON text.  From ``HUGE_BYTES`` on, ``view`` is an outline.
    """
    huge = size >= HUGE_BYTES
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock) and not huge:
        role = _role(view)
        return TranscriptMessage(Turn(role, _speaker(view, role), blocks[0].text), (), ())
    lines = block_lines(blocks)
    if huge:
        lines.append(f"[a message of {size:,} bytes, its long texts left out]")
    calls = tuple(block.id for block in blocks if isinstance(block, ToolCallBlock))
    results = tuple(block.id for block in blocks if isinstance(block, ToolResultBlock))
    role = _role(view)
    speaker = _speaker(view, role)
    if results and len(results) == len(blocks):
        role = "tool"
    return TranscriptMessage(Turn(role, speaker, "\n".join(lines)), calls, results)


def _role(view: MessageView) -> str:
    return "user" if view.role is None else view.role


def _speaker(view: MessageView, role: str) -> str:
    name, time = view.name, view.time
    who = f"{role} {name}" if name not in (None, "", role) else role
    line = f"{who}, {time}" if time else who
    return " ".join(line[:_LONGEST_SPEAKER].split())


def block_lines(blocks: list[Block]) -> list[str]:
    """Return the texts for a summarizer of the blocks that have one."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, (TextBlock, HintBlock)):
            lines.append(block.text)
        elif isinstance(block, ToolResultBlock):
            lines.append(f"[result of {block.name}] " + "\n".join(block_lines(block.output)))
        elif isinstance(block, ToolCallBlock):
            given = json.dumps(block.input, ensure_ascii=False)
            lines.append(f"[calls {block.name}] {given}")
        elif isinstance(block, MediaBlock):
            lines.append(f"[{block.kind}{_media(block)}]")
        elif not isinstance(block, ThinkingBlock):
            lines.append(f"[{block.kind}]")
    return lines


def _media(block: MediaBlock) -> str:
    """Return the address of media, or type and size, or ""."""
    if block.url is not None:
        return "" if block.url.startswith("data:") else f": {block.url[:_LONGEST_URL]}"
    return f": {block.media_type}, {block.size:,} bytes" if block.media_type else ""
