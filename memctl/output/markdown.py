"""A memory as Markdown: for reading, not for bringing back.

Everything comes in pieces, so that a huge message is not held several times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from memctl import codec
from memctl.location import visible
from memctl.model import Entry, Memory
from memctl.output.conversation import blocks, media
from memctl.output.markdown_text import escaped, harmless

_FENCES = re.compile(r"`{3,}")
_SPECIAL = re.compile(r"([\\*_\[\]|~#])")
_SPACES = "\t\u3000\u00a0"
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


def message(entry: Entry) -> Iterator[str]:
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
        for line in _lines(text):
            yield f"{line}\n"
    yield f"{fence}\n\n</details>\n"


def _quoted(text: str) -> Iterator[str]:
    lines: Iterable[str] = _lines(text)
    # Only a text that is held in lines, and so costs several times its size, can be parsed.
    lines = harmless(list(lines)) if len(text) <= _PARSED else map(escaped, lines)
    for line in lines:
        yield f"> {line}\n" if line else ">\n"


def _lines(text: str) -> Iterator[str]:
    """The lines of a text, one after the other; what could steer a terminal is shown."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield _cleaned(text[start:end].removesuffix("\r"))
        start = end + 1
    yield _cleaned(text[start:])


def _cleaned(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(
        part if part in _SPACES else visible(part)
        for start in range(0, len(line), _PIECE)
        for part in _SPACE.split(line[start : start + _PIECE])
    )


def inline(text: str) -> str:
    """Text that is only text, on one line of Markdown."""
    return _html(_SPECIAL.sub(r"\\\1", text)).replace("`", "'")


def code(text: str) -> str:
    """Text as code, on one line of Markdown."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _html(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;")
