"""A message as text for a summarizer: who said what, with placeholders for media.

Thinking is left out: AgentScope's formatters do not send it to models, either.
"""

from __future__ import annotations

import json

from msgspec import Struct

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


class TranscriptMessage(Struct, frozen=True):
    """A message as text for a summarizer, with the ids of its tool calls and tool results.

    ``texts`` has the text of each block, None for a block that is left out.
    """

    turn: Turn
    calls: tuple[str, ...]
    results: tuple[str, ...]
    texts: list[str | None]


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
        role, text = _role(view), blocks[0].text
        return TranscriptMessage(Turn(role, _speaker(view, role), text), (), (), [text])
    texts = [_text(block) for block in blocks]
    lines = [text for text in texts if text is not None]
    if huge:
        lines.append(f"[a message of {size:,} bytes, its long texts left out]")
    calls = tuple(block.id for block in blocks if isinstance(block, ToolCallBlock))
    results = tuple(block.id for block in blocks if isinstance(block, ToolResultBlock))
    role = _role(view)
    speaker = _speaker(view, role)
    if results and len(results) == len(blocks):
        role = "tool"
    return TranscriptMessage(Turn(role, speaker, "\n".join(lines)), calls, results, texts)


def _role(view: MessageView) -> str:
    return "user" if view.role is None else view.role


def _speaker(view: MessageView, role: str) -> str:
    name, time = view.name, view.time
    who = f"{role} {name}" if name not in (None, "", role) else role
    line = f"{who}, {time}" if time else who
    return " ".join(line[:_LONGEST_SPEAKER].split())


def _text(block: Block) -> str | None:
    if isinstance(block, (TextBlock, HintBlock)):
        return block.text
    if isinstance(block, ToolResultBlock):
        texts = [text for inner in block.output if (text := _text(inner)) is not None]
        return f"[result of {block.name}] " + "\n".join(texts)
    if isinstance(block, ToolCallBlock):
        return f"[calls {block.name}] {json.dumps(block.input, ensure_ascii=False)}"
    if isinstance(block, MediaBlock):
        return f"[{block.kind}{_media(block)}]"
    return None if isinstance(block, ThinkingBlock) else f"[{block.kind}]"


def _media(block: MediaBlock) -> str:
    """Return the address of media, or type and size, or ""."""
    if block.url is not None:
        return "" if block.url.startswith("data:") else f": {block.url[:_LONGEST_URL]}"
    return f": {block.media_type}, {block.size:,} bytes" if block.media_type else ""
