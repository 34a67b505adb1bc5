"""A memory as Markdown: for reading, not for bringing back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from memctl import codec
from memctl.location import visible
from memctl.model import Entry, Memory
from memctl.output.conversation import blocks, media

_FENCES = re.compile(r"`{3,}")


def heading(memory: Memory) -> str:
    """The title of a memory, and its summary as a quotation."""
    text = f"# {_inline(memory.key.user)} / {_inline(memory.key.session)}\n"
    if memory.summary:
        quoted = "\n".join("> " + line for line in _clean(memory.summary).split("\n"))
        text += f"\n{quoted}\n"
    return text


def message(entry: Entry) -> str:
    """A message: a heading of who and when, then its blocks, tools folded away."""
    value = codec.loads(entry.message)
    marks = "".join(f" `{_inline(mark)}`" for mark in entry.marks)
    name = _inline(str(value.get("name") or value.get("role") or "?"))
    when = _inline(str(value.get("timestamp") or ""))
    parts = [f"## {name} — {when}{marks}"]
    parts += [_block(block) for block in blocks(value.get("content"))]
    return "\n" + "\n\n".join(parts) + "\n"


def _block(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return _clean(str(block.get("text", "")))
        case "thinking":
            return _folded("thinking", _fenced(str(block.get("thinking", ""))))
        case "tool_use":
            body = json.dumps(block.get("input"), ensure_ascii=False, indent=2)
            return _folded(f"→ {block.get('name', '')}", _fenced(body))
        case "tool_result":
            return _folded(f"← {block.get('name', '')}", _fenced("\n".join(_result(block))))
        case "image" | "audio" | "video" as kind:
            return f"*{kind}: {_inline(media(block.get('source')))}*"
        case kind:
            return _folded(str(kind), _fenced(json.dumps(block, ensure_ascii=False, indent=2)))


def _result(block: dict[str, Any]) -> Iterator[str]:
    for inner in blocks(block.get("output")):
        text = inner.get("text")
        yield (
            text if isinstance(text, str) else f"[{inner.get('type')}] {media(inner.get('source'))}"
        )


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{_inline(summary)}</summary>\n\n{body}\n\n</details>"


def _fenced(text: str) -> str:
    longest = max((len(fence) for fence in _FENCES.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{_clean(text)}\n{fence}"


def _clean(text: str) -> str:
    """Text with its lines kept and everything that could steer a terminal shown."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _inline(text: str) -> str:
    return visible(text).replace("<", "&lt;").replace("`", "'")
