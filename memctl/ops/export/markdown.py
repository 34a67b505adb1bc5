"""Memories as Markdown without active HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.live import tags
from memctl.dialects.view import (
    Block,
    CallNames,
    Dialect,
    MediaBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.location import visible
from memctl.model import Memory, Page, StoredMessage
from memctl.ops.export.blocks import folded_texts, kind_of, media
from memctl.ops.export.folder import FolderFormat, IndexedFile, Renderer
from memctl.ops.export.writer import Cover, PageWriter
from memctl.text.numbers import count

_SUSPECT = re.compile(r"<[A-Za-z/!?]|!\[|\](?:\(|:)")
_ACTIVE = frozenset({"html_block", "html_inline", "image"})
_SAFE_LINK = re.compile(r"(?:https?|mailto):|[^:]*(?:[/?#]|\Z)", re.IGNORECASE)
"""A link to a page or an address, or one without a scheme."""


def harmless(lines: list[str]) -> list[str]:
    """Return the lines of a Markdown quotation, with HTML, images and links to scripts escaped.

    Lines without these, or with them only in code, stay unchanged.  If a viewer would still
    interpret some, all lines are escaped.
    """
    if not any(map(_SUSPECT.search, lines)):
        return lines
    active = _active(lines)
    mended = [escaped(line) if n in active else line for n, line in enumerate(lines)]
    return list(map(escaped, lines)) if active and _active(mended) else mended


def _active(lines: list[str]) -> set[int]:
    """Return the indexes of the lines with active HTML, images or links of other schemes."""
    from markdown_it import MarkdownIt  # not needed by other formats

    found: set[int] = set()
    parser = MarkdownIt("commonmark")
    # Not every viewer refuses links to scripts.
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # noqa: ARG005
    for token in parser.parse("\n".join(f"> {line}" for line in lines)):
        children = token.children or ()
        kinds = {token.type} | {child.type for child in children}
        links = (str(child.attrs["href"]) for child in children if child.type == "link_open")
        if kinds & _ACTIVE or not all(map(_SAFE_LINK.match, links)):
            start, end = token.map or (0, len(lines))
            found.update(range(start, end))
    return found


def escaped(text: str) -> str:
    """Return Markdown text in which all HTML, images and links are escaped, even in code."""
    for mark, safe in (("<", "&lt;"), ("![", "!\\["), ("](", "]\\("), ("]:", "]\\:")):
        text = text.replace(mark, safe)
    return text


_FENCES = re.compile(r"`{3,}")
_SPECIAL = re.compile(r"([\\*_\[\]|~#])")
_SPACES = "\n\t\u3000\u00a0"
"""Layout characters of code and of Chinese text, which Python counts as not printable."""
_SPACE = re.compile(f"([{_SPACES}])")
_PIECE = 64 * 1024
_PARSED = 256 * 1024
"""The largest number of characters of a text to parse; in a longer text, all HTML is escaped."""


def heading(memory: Memory) -> Iterator[str]:
    """Yield the title of a memory in Markdown, and its summary as a quotation."""
    key = memory.key
    part = f" ({inline(key.part)})" if key.part else ""
    yield f"# {inline(key.user)} / {inline(key.session)}{part}\n"
    if memory.summary:
        yield "\n"
        yield from _quoted(memory.summary)


def message(
    entry: StoredMessage,
    dialect: Dialect = AGENTSCOPE1,
    unread: str = "",
    calls: CallNames | None = None,
    *,
    named: bool = True,
) -> Iterator[str]:
    """Yield a message in Markdown: a heading with name and time, then the content.

    ``calls`` are those of the messages before.  ``unread`` is the reason why the framework does not
    read the message; empty if it does.  Texts are quotations, which markup in the text cannot end.
    Tool calls, tool results and thinking are folded.  Unless it is ``named``, the speaker is the
    role.
    """
    view = dialect.parse(entry.message)
    marks = "".join(f" {code(mark)}" for mark in tags(entry.marks, unread))
    name = inline((named and view.name) or view.role or "?")
    when = inline(view.time or "")
    yield f"\n## {name}{' — ' if when else ''}{when}{marks}\n"
    for block in (calls or CallNames()).given_to(view.blocks):
        yield "\n"
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case TextBlock(text):
            return _quoted(text)
        case MediaBlock():
            return iter([f"*{block.kind}: {inline(media(block))}*\n"])
        case ToolCallBlock():
            label = f"→ {block.name}"
        case ToolResultBlock():
            label = f"← {block.name}"
        case _:
            label = kind_of(block)
    return _folded(label, folded_texts(block))


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
    # The lines of a large text need several times its size, and parsing needs more.
    yield "> "
    for piece in _pieces(text):
        yield escaped(piece).replace("\n", "\n> ")
    yield "\n"


def _pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text, with uniform line ends and visible control characters."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        while text[end - 1 : end] in ("\r", "!", "]"):
            end += 1  # keep pairs together
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
    """Return the text as one line of Markdown, with markup escaped."""
    return _html(_SPECIAL.sub(r"\\\1", text)).replace("`", "'")


def code(text: str) -> str:
    """Return the text as code on one line of Markdown."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _html(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;")


class _Memory:
    """The Markdown of one memory, page by page."""

    def __init__(self, dialect: Dialect, *, named: bool = True) -> None:
        self._dialect = dialect
        self._named = named
        self._calls = CallNames()

    def pieces(self, page: Page) -> Iterator[str]:
        """Yield the next page; the first page begins with the title of the memory."""
        if page.offset == 0:
            yield from heading(page.memory)
        for entry, place in zip(page.messages, page.places, strict=True):
            about = entry, self._dialect, page.unread.get(place, ""), self._calls
            yield from message(*about, named=self._named)


class MarkdownFile(PageWriter):
    """A Markdown file of several memories."""

    _memory: _Memory | None = None
    _named = True

    def begin(self, cover: Cover) -> None:
        self._named = not cover.pseudonyms

    def add(self, page: Page) -> None:
        if page.offset == 0:
            self._file.write("" if self._memory is None else "\n")
            self._memory = _Memory(self._dialect, named=self._named)
        assert self._memory is not None
        self._file.writelines(self._memory.pieces(page))


class MarkdownFolder(FolderFormat):
    """A folder of Markdown files with a table in ``README.md``."""

    name = "markdown"
    ending = ".md"
    index = "README.md"
    layout = 1

    def renderer(self, dialect: Dialect) -> Renderer:
        return _Memory(dialect).pieces

    def contents(self, files: Iterator[IndexedFile], noun: str) -> Iterator[str]:  # noqa: ARG002
        yield "# Conversations\n\n"
        yield "| user | session | messages | from | to |\n|---|---|--:|---|---|\n"
        memories = 0
        for link, stamp in files:
            memories += 1
            key = stamp.key
            session = f"{key.session} ({key.part})" if key.part else key.session
            yield (
                f"| {inline(key.user)} | [{inline(session or '—')}]({link}) "
                f"| {stamp.messages} | {inline(stamp.first)} "
                f"| {inline(stamp.last)} |\n"
            )
        yield f"\n{count(memories, 'memory')}\n"
