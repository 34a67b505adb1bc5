"""The frontmatter and the links of Markdown files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import yaml
from msgspec import Struct

RECORD = "memctl"
"""The field of the frontmatter for the data of an imported fact that Markdown cannot hold."""
_FENCE = "---"
_WIKI = re.compile(r"!?\[\[([^\[\]|#\n]+)(?:#[^\[\]|\n]+)?(?:\|[^\[\]\n]+)?\]\]")
"""A link in the syntax of ReMe 0.4 (``utils/wikilink_handler.py``)."""
_MARKDOWN = re.compile(r"\[[^\[\]\n]*\]\(\s*<?([^()<>\s]+)>?(?:\s+\"[^\"\n]*\")?\s*\)")
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[#/]|www\.")
_RECORD_LINE = re.compile(rf"^{RECORD}: '((?:[^'\n]|'')*)'\r?$", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[ ,./_-]+[A-Za-z0-9]+)+\.?")
"""The texts that need no quotes in YAML."""


class Note(Struct, frozen=True):
    """The text of a Markdown file, split into ``front`` and ``body``.

    ``front`` is the frontmatter with the fences and the empty lines after them, or an empty text.
    ``open`` is True if the frontmatter has no closing fence; the whole text is then in ``body``.
    """

    front: str
    body: str
    open: bool = False

    @property
    def yaml(self) -> str:
        """The lines of the frontmatter between the fences."""
        lines = self.front.rstrip().splitlines(keepends=True)
        return "".join(lines[1:-1])


def split(text: str) -> Note:
    """Split the text of a file into frontmatter and body, as ReMe 0.4 does.

    ReMe's code is in ``markdown_file_chunker.py``.
    """
    first, _, _ = text.partition("\n")
    if first.strip() != _FENCE:
        return Note("", text)
    at = len(first) + 1
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end + 1
        if text[at:end].strip() == _FENCE:
            while text[end : end + 1] == "\n" or text[end : end + 2] == "\r\n":
                end = text.index("\n", end) + 1
            return Note(text[:end], text[end:])
        at = end
    return Note("", text, open=True)


def mapping_fault(note: Note) -> str:
    """Return why ReMe 0.4 cannot read the frontmatter; empty if ReMe can read it.

    ReMe reads the frontmatter by ``yaml.safe_load``, and expects a mapping.
    """
    try:
        root = yaml.compose(note.yaml, yaml.CSafeLoader)
        if root is not None and "<<" not in note.yaml:  # merge keys may expand without end
            yaml.load(note.yaml, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"it is not YAML: {getattr(error, 'problem', None) or 'a value cannot be read'}"
    if root is not None and not isinstance(root, yaml.MappingNode):
        return "it is not a list of fields with values"
    return ""


def record(note: Note) -> str | None:
    """Return the record of an imported fact in the frontmatter; None without a record.

    ``fronted`` writes such records.
    """
    if RECORD not in note.front:
        return None
    line = _RECORD_LINE.search(note.front)
    if line is not None:
        return line[1].replace("''", "'")
    try:  # another program may have rewritten the frontmatter
        root = yaml.compose(note.yaml, yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    for key, value in pairs:
        if key.value == RECORD and isinstance(value, yaml.ScalarNode):
            found: str = value.value
            return found
    return None


def fronted(name: str, description: str, text: str, record: str) -> str:
    """Return the text of a Markdown file: frontmatter, followed by ``text``.

    ``record``, an ASCII text, is the record of an imported fact.
    """
    kept = record.replace("'", "''")
    about = f"name: {_scalar(name)}\ndescription: {_scalar(description)}\n"
    return f"{_FENCE}\n{about}{RECORD}: '{kept}'\n{_FENCE}\n{text}"


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    escaped = [
        f"\\{char}" if char in '"\\' else char if char.isprintable() else _escape(char)
        for char in text
    ]
    return f'"{"".join(escaped)}"'


def _escape(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def wiki_links(text: str) -> Iterator[str]:
    """Yield the targets of ``[[links]]``, without the part from ``#`` or ``|`` on."""
    for found in _WIKI.finditer(text):
        if target := found[1].strip():
            yield target


def markdown_links(text: str) -> Iterator[str]:
    """Yield the targets of ``[text](links)`` that are relative paths.

    The part from ``#`` on is left out.
    """
    for found in _MARKDOWN.finditer(text):
        target = found[1].partition("#")[0]
        if target and not _ELSEWHERE.match(found[1]):
            yield unquote(target)
