"""Memories as Markdown: without active HTML, in files named after memories, in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from markdown_it import MarkdownIt

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import (
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.errors import MemctlError, Partial, UsageError
from memctl.location import visible
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.numbers import count, size
from memctl.ops.compare import Fingerprint, Hasher, Precision, summary_digest
from memctl.ops.export.writer import PageWriter
from memctl.storekit.files import AtomicFile, sync_folder, system_errors

_ADDRESS = 120
_LONGEST_ADDRESS = 4096
"""The largest number of characters of a media address to show (``_ADDRESS``) and to read."""

_SUSPECT = re.compile(r"<[A-Za-z/!?]|!\[")
_ACTIVE = frozenset({"html_block", "html_inline", "image"})


def harmless(lines: list[str]) -> list[str]:
    """Return the lines of a Markdown quotation, with HTML and images escaped.

    Lines without HTML or images, or with HTML only in code, stay unchanged.  If a viewer would
    still interpret some HTML, all lines are escaped.
    """
    if not any(map(_SUSPECT.search, lines)):
        return lines
    active = _active(lines)
    mended = [escaped(line) if n in active else line for n, line in enumerate(lines)]
    return list(map(escaped, lines)) if active and _active(mended) else mended


def _active(lines: list[str]) -> set[int]:
    """Return the indexes of the lines with active HTML or images."""
    found: set[int] = set()
    for token in MarkdownIt("commonmark").parse("\n".join(f"> {line}" for line in lines)):
        kinds = {token.type} | {child.type for child in token.children or ()}
        if kinds & _ACTIVE:
            start, end = token.map or (0, len(lines))
            found.update(range(start, end))
    return found


def escaped(text: str) -> str:
    """Return Markdown text in which all HTML and images are escaped, even in code."""
    return text.replace("<", "&lt;").replace("![", "!\\[")


ENDING = ".md"

_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}(?<![.])")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])([.].*)?")  # of Windows
_UNFIT = re.compile(r"[^\w.-]+")
_READABLE_BYTES = 80
_DIGITS = 12


def file_name(key: MemoryKey) -> str:
    """Return the relative path of the file of a memory, such as ``ada/kyoto+agent.memory.md``."""
    part = f"+{_file_name_of(key.part)}" if key.part else ""
    return f"{_file_name_of(key.user)}/{_file_name_of(key.session)}{part}{ENDING}"


def _file_name_of(text: str) -> str:
    if not text:
        return "_"
    if _PLAIN_NAME.fullmatch(text) and not _DEVICES.fullmatch(text) and not text.endswith(ENDING):
        return text
    readable = _UNFIT.sub("_", unicodedata.normalize("NFC", text)).strip("._-")
    readable = readable.encode()[:_READABLE_BYTES].decode(errors="ignore")
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{readable or '_'}~{digest}"


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


def message(entry: StoredMessage, dialect: Dialect = AGENTSCOPE1) -> Iterator[str]:
    """Yield a message in Markdown: a heading with name and time, then the content.

    Texts are quotations, which markup in the text cannot end.  Tool calls, tool results and
    thinking are folded.
    """
    view = dialect.parse(entry.message)
    marks = "".join(f" {code(mark)}" for mark in entry.marks)
    name = inline(view.name or view.role or "?")
    when = inline(view.time or "")
    yield f"\n## {name}{' — ' if when else ''}{when}{marks}\n"
    for block in view.blocks:
        yield "\n"
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case TextBlock(text):
            return _quoted(text)
        case ThinkingBlock(text):
            return _folded("thinking", [text])
        case HintBlock(text):
            return _folded("hint", [text])
        case ToolCallBlock(_, name, given):
            return _folded(f"→ {name}", [json.dumps(given, ensure_ascii=False, indent=2)])
        case ToolResultBlock(_, name, output):
            return _folded(f"← {name}", [_result(one) for one in output])
        case MediaBlock():
            return iter([f"*{block.kind}: {inline(_media(block))}*\n"])
        case _:
            said = (
                []
                if block.value is None
                else [json.dumps(block.value, ensure_ascii=False, indent=2)]
            )
            return _folded(block.kind, said)


def _media(block: MediaBlock) -> str:
    """Return the address of media, or type and size if embedded."""
    if block.url is not None or block.media_type is None:
        text = block.url or ""
        line = visible(" ".join(text[:_LONGEST_ADDRESS].split()))
        return line if len(line) <= _ADDRESS else line[: _ADDRESS - 1].rstrip() + "…"
    return f"{visible(block.media_type)}, {size(block.size)}"


def _result(block: Block) -> str:
    match block:
        case TextBlock(text) | ThinkingBlock(text) | HintBlock(text):
            return text
        case MediaBlock():
            return f"[{block.kind}] {_media(block)}"
        case ToolCallBlock() | ToolResultBlock():
            return f"[{block.name}]"
        case _:
            return f"[{block.kind}]"


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
        while text[end - 1 : end] in ("\r", "!"):
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


class MarkdownFile(PageWriter):
    """A Markdown file of several memories."""

    _begun = False

    def add(self, page: Page) -> None:
        if page.offset == 0:
            self._file.write("\n" if self._begun else "")
            self._file.writelines(heading(page.memory))
            self._begun = True
        for entry in page.messages:
            self._file.writelines(message(entry, self._dialect))


LAYOUT = 1
"""The version of the layout of Markdown files; files of another version are rewritten."""

FORM = Precision.TEXT
"""The precision with which a memory is compared with its Markdown file."""

INDEX = "README.md"
_INDEX_HEAD = "<!-- memctl: export --as markdown -->\n# Conversations\n\n"
_STAMP = "<!-- memctl: "
_STAMP_END = " -->\n"
_STAMP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stamp:
    """The last line of a Markdown file: which memory the file shows, and in which state.

    ``digest`` is a digest of the messages and the summary.  ``first`` and ``last`` are the times of
    the first and the last message, empty if unknown.
    """

    key: MemoryKey
    layout: int
    digest: str
    messages: int
    first: str
    last: str
    size: int
    """The number of bytes of the file before this line."""

    def line(self) -> str:
        """Return the stamp as an HTML comment."""
        fields = {
            **{"user": self.key.user, "session": self.key.session, "path": self.key.part},
            **{"layout": self.layout, "digest": self.digest, "messages": self.messages},
            **{"first": self.first, "last": self.last, "size": self.size},
        }
        # Two hyphens could end the comment.
        return _STAMP + json.dumps(fields).replace("--", "-\\u002d") + _STAMP_END


def _read_stamp(path: Path) -> Stamp | None:
    """Return the stamp in the last line of a file; None if it is missing or its size is wrong."""
    with system_errors(path, "read"), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _STAMP_BYTES))
        end = file.read()
    at = end.rfind(b"\n" + _STAMP.encode()) + 1
    if not at or not end.endswith(_STAMP_END.encode()):
        return None
    try:
        found = json.loads(end[at + len(_STAMP) : -len(_STAMP_END)])
        stamp = Stamp(
            MemoryKey(found["user"], found["session"], found["path"]),
            *(found[name] for name in ("layout", "digest", "messages", "first", "last", "size")),
        )
    except (ValueError, TypeError, KeyError):
        return None
    return stamp if stamp.size == size - len(end) + at else None


def _digest(fingerprint: Fingerprint) -> str:
    summary = fingerprint.summary or b""
    return f"{fingerprint.digest.hex()}.{summary.hex()}"


class MarkdownFolder:
    """A folder with a Markdown file for each memory, and an index file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fresh = not (path / INDEX).exists()
        """True if the folder had no index file at the beginning."""
        self._written: list[Path] = []
        """The new files, if the folder is fresh."""

    def refuse_foreign(self) -> None:
        """Refuse a folder that other programs have written to.

        Raises:
            UsageError: the folder contains files, but no index file of a Markdown export.
        """
        if self.fresh and self.path.is_dir():
            others = [name for name in os.listdir(self.path) if not name.startswith(".")]
            taken = bool(others)
        else:
            with system_errors(self.path / INDEX, "read"):
                taken = not self.fresh and not self._has_head()
        if taken:
            raise UsageError(
                f"{str(self.path)!r} contains files that export --as markdown did not write",
                "name a new folder, or use --force to write into this one",
            )

    def _has_head(self) -> bool:
        with (self.path / INDEX).open("rb") as file:
            return file.read(len(_INDEX_HEAD)) == _INDEX_HEAD.encode()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Create the folder and its index file, if missing, before the block.

        If the block fails, the new files in a fresh folder are removed, unless the error is
        ``Partial``.

        Raises:
            MemctlError: the operating system refuses to create them.
        """
        new = not self.path.is_dir()
        with system_errors(self.path, "write"):
            self.path.mkdir(mode=0o700, exist_ok=True)
        try:
            if self.fresh:
                self.write_index()
            yield
        except Partial:  # written files stay
            raise
        except BaseException:
            if self.fresh:
                self._withdraw(folder=new)
            raise

    def _withdraw(self, *, folder: bool) -> None:
        """Remove the new files, and with ``folder`` the folder; ignore errors."""
        for path in self._written:
            with suppress(MemctlError):
                self.remove(path)
        with suppress(OSError):
            (self.path / INDEX).unlink(missing_ok=True)
            if folder:
                self.path.rmdir()

    def holds(self, key: MemoryKey, fingerprint: Fingerprint) -> bool:
        """Return whether the folder has a file of the memory with the state of ``fingerprint``."""
        path = self.path / file_name(key)
        stamp = _read_stamp(path) if path.is_file() else None
        return stamp is not None and (stamp.key, stamp.layout, stamp.digest) == (
            *(key, LAYOUT),
            _digest(fingerprint),
        )

    def file(self, memory: Memory, dialect: Dialect = AGENTSCOPE1) -> MemoryFile:
        """Return a writer of a new file for a memory; ``dialect`` is the dialect of its messages.

        Raises:
            MemctlError: the operating system refuses to create the file.
        """
        path = self.path / file_name(memory.key)
        if self.fresh and not path.exists():
            self._written.append(path)
        with system_errors(path, "write"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        return MemoryFile(path, memory, dialect)

    def files(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield the path and the stamp of each file of a memory, ordered by name.

        Raises:
            MemctlError: the operating system refuses the read.
        """
        for name in self._names(self.path):
            folder = self.path / name
            if folder.is_symlink() or not folder.is_dir():
                continue
            for inner in self._names(folder):
                path = folder / inner
                stamp = _read_stamp(path) if inner.endswith(ENDING) and path.is_file() else None
                if stamp is not None:
                    yield path, stamp

    def _names(self, folder: Path) -> list[str]:
        with system_errors(folder, "read"):
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))

    def remove(self, path: Path) -> None:
        """Remove the file of a memory, and the folder of the user if it is empty then.

        Raises:
            MemctlError: the operating system refuses the removal.
        """
        with system_errors(path, "remove"):
            path.unlink(missing_ok=True)
            if not os.listdir(path.parent):
                path.parent.rmdir()

    def write_index(self) -> None:
        """Write the index file, a table of the exported memories, if its contents change.

        Raises:
            MemctlError: the operating system refuses the write.
        """
        path = self.path / INDEX
        digest = hashlib.sha256()
        with AtomicFile(path) as file:
            for piece in self._index():
                data = piece.encode()
                digest.update(data)
                file.write(data)
            if not path.exists() or _file_digest(path) != digest.digest():
                file.commit()

    def _index(self) -> Iterator[str]:
        yield _INDEX_HEAD
        yield "| user | session | messages | from | to |\n|---|---|--:|---|---|\n"
        memories = 0
        for path, stamp in self.files():
            memories += 1
            key = stamp.key
            link = quote(str(path.relative_to(self.path)))
            session = f"{key.session} ({key.part})" if key.part else key.session
            yield (
                f"| {inline(key.user)} | [{inline(session or '—')}]({link}) "
                f"| {stamp.messages} | {inline(stamp.first)} "
                f"| {inline(stamp.last)} |\n"
            )
        yield f"\n{count(memories, 'memory')}\n"


def _file_digest(path: Path) -> bytes:
    with system_errors(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class MemoryFile:
    """A writer of the Markdown file of one memory, which replaces the old file at the end."""

    def __init__(self, path: Path, memory: Memory, dialect: Dialect = AGENTSCOPE1) -> None:
        self._dialect = dialect
        self._path = path
        self._memory = memory
        self._file = AtomicFile(path)
        self._hasher = Hasher(FORM, mark_order=True)
        self._first = self._last = ""
        self._size = 0
        for piece in heading(memory):
            self._write(piece)

    def add(self, page: Page) -> None:
        """Write the messages of the next page; the last page puts the file into its place.

        Raises:
            MemctlError: the operating system refuses the write.
        """
        for entry in page.messages:
            for piece in message(entry, self._dialect):
                self._write(piece)
        if page.messages:
            self._first = self._first or _time(page.messages[0], self._dialect)
            self._last = _time(page.messages[-1], self._dialect)
        self._hasher.add(page.messages)
        if page.last:
            self._finish()

    def discard(self) -> None:
        """Discard the new file, unless its last page was written."""
        self._file.discard()

    def _write(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        self._file.write(data)

    def _finish(self) -> None:
        self._write("\n")
        fingerprint = Fingerprint(
            self._hasher.messages, self._hasher.digest(), summary_digest(self._memory)
        )
        stamp = Stamp(
            *(self._memory.key, LAYOUT, _digest(fingerprint), fingerprint.messages),
            *(self._first, self._last, self._size),
        )
        self._file.write(stamp.line().encode())
        self._file.sync()
        self._file.replace()
        sync_folder(self._path.parent)


def _time(message: StoredMessage, dialect: Dialect) -> str:
    return dialect.outline(message.message).time or ""
