"""A memory as Markdown: for reading, not for bringing back.

Everything comes in pieces, so that a huge message is not held several times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from memctl import codec
from memctl.location import visible
from memctl.model import Memory, StoredMessage
from memctl.output.conversation import blocks, media
from memctl.output.markdown_text import escaped, harmless

_FENCES = re.compile(r"`{3,}")
_SPECIAL = re.compile(r"([\\*_\[\]|~#])")
_SPACES = "\n\t\u3000\u00a0"
"""What is layout, in code and in Chinese, though it counts as not printable."""
_SPACE = re.compile(f"([{_SPACES}])")
_PIECE = 64 * 1024
_PARSED = 256 * 1024
"""Characters of a text whose markup is looked at: in a larger one all of it is escaped."""


def heading(memory: Memory) -> Iterator[str]:
    """The title of a memory, and its summary as a quotation."""
    key = memory.key
    part = f" ({inline(key.part)})" if key.part else ""
    yield f"# {inline(key.user)} / {inline(key.session)}{part}\n"
    if memory.summary:
        yield "\n"
        yield from _quoted(memory.summary)


def message(entry: StoredMessage) -> Iterator[str]:
    """A message: a heading of who and when, then its blocks, tools folded away.

    Its text is a quotation, out of which no markup of its own can reach.
    """
    value = codec.loads(entry.message)
    marks = "".join(f" {code(mark)}" for mark in entry.marks)
    name = inline(str(value.get("name") or value.get("role") or "?"))
    when = inline(str(value.get("timestamp") or ""))
    yield f"\n## {name}{' — ' if when else ''}{when}{marks}\n"
    for block in blocks(value.get("content")):
        yield "\n"
        yield from _block(block)


def _block(block: dict[str, Any]) -> Iterator[str]:
    match block.get("type"):
        case "text":
            return _quoted(str(block.get("text", "")))
        case "thinking":
            return _folded("thinking", [str(block.get("thinking", ""))])
        case "tool_use":
            body = json.dumps(block.get("input"), ensure_ascii=False, indent=2)
            return _folded(f"→ {block.get('name', '')}", [body])
        case "tool_result":
            return _folded(f"← {block.get('name', '')}", list(_result(block)))
        case "image" | "audio" | "video" as kind:
            return iter([f"*{kind}: {inline(media(block.get('source')))}*\n"])
        case kind:
            return _folded(str(kind), [json.dumps(block, ensure_ascii=False, indent=2)])


def _result(block: dict[str, Any]) -> Iterator[str]:
    for inner in blocks(block.get("output")):
        text = inner.get("text")
        yield (
            text if isinstance(text, str) else f"[{inner.get('type')}] {media(inner.get('source'))}"
        )


def _folded(summary: str, texts: list[str]) -> Iterator[str]:
    yield f"<details><summary>{_html(summary)}</summary>\n\n"
    longest = max(
        (len(found[0]) for text in texts for found in _FENCES.finditer(text)),
        default=2,
    )
    fence = "`" * (longest + 1)
    yield f"{fence}\n"
    for text in texts:
        yield from _pieces(text)
        yield "\n"
    yield f"{fence}\n\n</details>\n"


def _quoted(text: str) -> Iterator[str]:
    if len(text) <= _PARSED:
        for line in harmless("".join(_pieces(text)).split("\n")):
            yield f"> {line}\n" if line else ">\n"
        return
    # Lines cost several times the size of a large text, and parsing it more.
    yield "> "
    for piece in _pieces(text):
        yield escaped(piece).replace("\n", "\n> ")
    yield "\n"


def _pieces(text: str) -> Iterator[str]:
    """A text with line ends of one kind, and with everything shown that could steer a terminal."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        while text[end - 1 : end] in ("\r", "!"):
            end += 1  # not apart from what they may belong to
        yield _cleaned(text[start:end].replace("\r\n", "\n"))
        start = end


def _cleaned(piece: str) -> str:
    if piece.isprintable():
        return piece
    return "".join(
        part if part in _SPACES or part.isprintable() else visible(part)
        for part in _SPACE.split(piece)
    )


def inline(text: str) -> str:
    """Text that is only text, on one line of Markdown."""
    return _html(_SPECIAL.sub(r"\\\1", text)).replace("`", "'")


def code(text: str) -> str:
    """Text as code, on one line of Markdown."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _html(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;")
