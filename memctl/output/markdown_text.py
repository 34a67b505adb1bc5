"""The Markdown that messages hold, without what would reach out of it.

Models write Markdown, and a person wants to read it as such.  What the reader's program would obey
is shown instead: HTML, which may run or hide what follows, and images, which are fetched and so
tell others what was read.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

_SUSPECT = re.compile(r"<[A-Za-z/!?]|!\[")
_ACTIVE = frozenset({"html_block", "html_inline", "image"})


def harmless(lines: list[str]) -> list[str]:
    """The lines of a quotation, their HTML and their images escaped, elsewhere unchanged.

    What stands in code is harmless as it is, so the text is parsed; where escaping the lines that
    are not does not make it so, all lines are escaped.
    """
    if not any(map(_SUSPECT.search, lines)):
        return lines
    active = _active(lines)
    mended = [escaped(line) if n in active else line for n, line in enumerate(lines)]
    return list(map(escaped, lines)) if active and _active(mended) else mended


def _active(lines: list[str]) -> set[int]:
    """The numbers of the lines in which a reader's program would obey something."""
    found: set[int] = set()
    for token in MarkdownIt("commonmark").parse("\n".join(f"> {line}" for line in lines)):
        kinds = {token.type} | {child.type for child in token.children or ()}
        if kinds & _ACTIVE:
            start, end = token.map or (0, len(lines))
            found.update(range(start, end))
    return found


def escaped(text: str) -> str:
    """The text without HTML and images, whatever stands around it."""
    return text.replace("<", "&lt;").replace("![", "!\\[")
