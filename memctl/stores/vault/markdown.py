"""The parts of a Markdown file that matter to memctl: its frontmatter, and the links in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import yaml

RECORD = "memctl"
"""The key of frontmatter under which a fact of another system has what Markdown has no place for.
"""
_FENCE = "---"
_WIKI = re.compile(r"!?\[\[([^\[\]|#\n]+)(?:#[^\[\]|\n]+)?(?:\|[^\[\]\n]+)?\]\]")
"""A link as ReMe 0.4 reads it (``utils/wikilink_handler.py``)."""
_MARKDOWN = re.compile(r"\[[^\[\]\n]*\]\(\s*<?([^()<>\s]+)>?(?:\s+\"[^\"\n]*\")?\s*\)")
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[#/]|www\.")
_RECORD_LINE = re.compile(rf"^{RECORD}: '((?:[^'\n]|'')*)'\r?$", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[ ,./_-]+[A-Za-z0-9]+)+\.?")
"""Texts that YAML takes as they are."""


@dataclass(frozen=True, slots=True)
class Note:
    """The text of a Markdown file, cut in two: ``front`` + ``body`` is the file.

    ``front`` is the frontmatter with its fences and the empty lines after it; empty where there is
    none.  ``open`` says that it begins and does not end.
    """

    front: str
    body: str
    open: bool = False

    @property
    def yaml(self) -> str:
        """The frontmatter between the fences."""
        lines = self.front.rstrip().splitlines(keepends=True)
        return "".join(lines[1:-1])


def split(text: str) -> Note:
    """Cut a file in two, where ReMe 0.4 does (``markdown_file_chunker.py``)."""
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
    """Return why ReMe 0.4 cannot read the frontmatter (``yaml.safe_load``); empty if it can."""
    try:
        root = yaml.compose(note.yaml, yaml.CSafeLoader)
        if root is not None and "<<" not in note.yaml:  # which may unfold without end
            yaml.load(note.yaml, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"it is not YAML: {getattr(error, 'problem', None) or 'a value cannot be read'}"
    if root is not None and not isinstance(root, yaml.MappingNode):
        return "it is not a list of fields with values"
    return ""


def record(note: Note) -> str | None:
    """Return what ``fronted`` was given; None where the frontmatter has no such thing."""
    if RECORD not in note.front:
        return None
    line = _RECORD_LINE.search(note.front)
    if line is not None:
        return line[1].replace("''", "'")
    try:  # another program may have written the frontmatter anew
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
    """Return a Markdown file: a text, with frontmatter that keeps a record, in ASCII."""
    kept = record.replace("'", "''")
    about = f"name: {_scalar(name)}\ndescription: {_scalar(description)}\n"
    return f"{_FENCE}\n{about}{RECORD}: '{kept}'\n{_FENCE}\n{text}"


def _scalar(text: str) -> str:
    """Return a text as a value of YAML."""
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
    """Yield the targets of ``[[links]]``, as they are written, without what follows a ``#``."""
    for found in _WIKI.finditer(text):
        if target := found[1].strip():
            yield target


def markdown_links(text: str) -> Iterator[str]:
    """Yield the targets of ``[text](links)`` to files, relative to the file they are in."""
    for found in _MARKDOWN.finditer(text):
        target = found[1].partition("#")[0]
        if target and not _ELSEWHERE.match(found[1]):
            yield unquote(target)
