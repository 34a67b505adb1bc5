"""A message as text for a summarizer: who said what, with placeholders for what is no text.

Block types as in ``message/_message_block.py`` of agentscope 1.0.21.  Thinking is left out, as
AgentScope's formatters leave it out of what a model gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memctl import codec
from memctl.ops.report import HUGE_BYTES
from memctl.summarizer import Turn

_LONGEST_URL = 200
_LONGEST_SPEAKER = 200


@dataclass(frozen=True, slots=True)
class Said:
    """A message: its text, and the ids of the tool calls that it makes and that it answers."""

    turn: Turn
    calls: tuple[str, ...]
    results: tuple[str, ...]


def said(text: bytes) -> Said:
    """What the JSON text of a message says; of a huge one without its long texts.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = codec.loads(text) if len(text) < HUGE_BYTES else codec.outline(text)
    if not isinstance(message, dict):
        raise ValueError("a message is not a JSON object")
    content = message.get("content")
    if isinstance(content, str) and len(text) < HUGE_BYTES:
        return Said(Turn(str(message.get("role", "user")), _speaker(message), content), (), ())
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    known = [block for block in blocks if isinstance(block, dict)]
    lines = [line for block in known for line in _lines(block)]
    if len(text) >= HUGE_BYTES:
        lines.append(f"[a message of {len(text):,} bytes, its long texts left out]")
    kinds = {block.get("type") for block in known}
    role = "tool" if kinds == {"tool_result"} else str(message.get("role", "user"))
    return Said(
        Turn(role, _speaker(message), "\n".join(lines)),
        tuple(_ids(known, "tool_use")),
        tuple(_ids(known, "tool_result")),
    )


def _speaker(message: dict[str, Any]) -> str:
    role, name = str(message.get("role", "user")), message.get("name")
    who = f"{role} {name}" if isinstance(name, str) and name not in ("", role) else role
    when = message.get("timestamp")
    line = f"{who}, {when}" if isinstance(when, str) and when else who
    return " ".join(line[:_LONGEST_SPEAKER].split())


def _ids(blocks: list[dict[str, Any]], kind: str) -> Iterator[str]:
    for block in blocks:
        if block.get("type") == kind and isinstance(block.get("id"), str):
            yield block["id"]


def _lines(block: dict[str, Any]) -> Iterator[str]:
    kind = block.get("type")
    match kind:
        case "text":
            if isinstance(block.get("text"), str):
                yield block["text"]
        case "thinking":
            pass
        case "tool_use":
            given = json.dumps(block.get("input"), ensure_ascii=False)
            yield f"[calls {block.get('name')}] {given}"
        case "tool_result":
            yield f"[result of {block.get('name')}] {_output(block.get('output'))}"
        case "image" | "audio" | "video":
            yield f"[{kind}{_media(block.get('source'))}]"
        case _:
            yield f"[{kind}]"


def _output(output: Any) -> str:
    if isinstance(output, str):
        return output
    blocks = output if isinstance(output, list) else []
    return "\n".join(line for block in blocks if isinstance(block, dict) for line in _lines(block))


def _media(source: Any) -> str:
    """What is known of an image or the like without its data."""
    if not isinstance(source, dict):
        return ""
    if source.get("type") == "url":
        url = str(source.get("url", ""))
        return "" if url.startswith("data:") else f": {url[:_LONGEST_URL]}"
    kind, data = source.get("media_type"), source.get("data")
    length = len(data) * 3 // 4 if isinstance(data, str) else 0
    return f": {kind}, {length:,} bytes"
