"""Conversations and facts as HTML pages that load nothing and run nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache, partial
from importlib import resources
from typing import IO, Any, TextIO

from memctl.dialects.fact import FACT, FactView, without_vector
from memctl.dialects.live import tags
from memctl.dialects.view import (
    READABLE,
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    held,
)
from memctl.json import jsonio
from memctl.machine.spool import end, scratch
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.export.blocks import folded_texts, indented, media
from memctl.ops.export.folder import FolderFormat, IndexedFile, Renderer
from memctl.ops.export.writer import PageWriter
from memctl.text import html
from memctl.text.numbers import count

_UNFOLDED = 20
"""The largest number of memories whose list is unfolded."""

_LONG = 50_000
"""The number of characters above which a text is folded, because it is slow to lay out."""

_LONGEST_NAME = 300
"""The number of characters of a name that are shown."""

_NOTE = "Times are as stored. Exported by memctl."


@cache
def _style() -> str:
    return (resources.files("memctl.ops.export") / "html.css").read_text("utf-8")


def _opening(title: str) -> str:
    return html.opening(title, _style())


class HtmlFile(PageWriter):
    """A page with several memories, and a list of them at the top.

    The list is complete only after the last memory.  Until then, both are in temporary files.
    """

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        super().__init__(file, dialect)
        self._label = ""
        self._list, self._body = _spool(), _spool()
        self._memories = self._messages = 0
        self._memory = _Memory(dialect)

    def begin(self, label: str) -> None:
        self._label = label

    def add(self, page: Page) -> None:
        if page.offset == 0:
            self._memories += 1
            self._memory = _Memory(self._dialect, self._memories)
        self._body.write("".join(self._memory.pieces(page)))
        if page.last:
            self._messages += self._memory.messages
            self._list.write(self._memory.entry(page.memory.key))

    def finish(self) -> None:
        write = self._file.write
        total = f"{count(self._memories, 'memory')}, {count(self._messages, self._dialect.noun)}"
        write(_opening(self._label))
        write(f"<header>\n<h1>{html.name(self._label)}</h1>\n")
        write(f'<p class="about">{total}. {_NOTE}</p>\n</header>\n')
        if self._memories > 1:
            state = " open" if self._memories <= _UNFOLDED else ""
            write('<nav aria-label="Contents">\n')
            write(f'<details{state}>\n<summary>Contents</summary>\n<ul class="memories">\n')
            _pour(self._list, self._file)
            write("</ul>\n</details>\n</nav>\n")
        write("<main>\n")
        _pour(self._body, self._file)
        write(f"</main>\n{html.closing()}")

    def discard(self) -> None:
        end(self._list)
        end(self._body)


def _spool() -> IO[str]:
    return tempfile.TemporaryFile("w+", dir=scratch(), encoding="utf-8", newline="\n")


def _pour(spool: IO[str], file: TextIO) -> None:
    spool.seek(0)
    shutil.copyfileobj(spool, file)


class HtmlFolder(FolderFormat):
    """A folder of pages, with a list of them in ``index.html``."""

    name = "html"
    ending = ".html"
    index = "index.html"
    layout = 2

    def renderer(self, dialect: Dialect) -> Renderer:
        return partial(_alone, _Memory(dialect))

    def contents(self, files: Iterator[IndexedFile], noun: str) -> Iterator[str]:
        yield _opening("Conversations")
        yield f'<header>\n<h1>Conversations</h1>\n<p class="about">{_NOTE}</p>\n</header>\n'
        yield '<main>\n<ul class="memories">\n'
        memories = 0
        for link, stamp in files:
            memories += 1
            days = _day(_moment(stamp.first)), _day(_moment(stamp.last))
            yield _entry(link, stamp.key, _about(stamp.messages, noun, *days))
        yield f'</ul>\n<p class="about">{count(memories, "memory")}</p>\n</main>\n'
        yield html.closing()


def _alone(memory: _Memory, page: Page) -> Iterator[str]:
    """Yield the next page of a memory that has a file of its own."""
    if page.offset == 0:
        yield _opening(_plain_title(page.memory.key))
        yield f'<nav><a href="../{HtmlFolder.index}">All conversations</a></nav>\n<main>\n'
    yield from memory.pieces(page)
    if page.last:
        yield f"</main>\n{html.closing()}"


class _Memory:
    """The HTML of one memory, page by page."""

    def __init__(self, dialect: Dialect, number: int = 0) -> None:
        """``number`` is the number of the memory in its file; 0 if the file has no other memory."""
        self.messages = 0
        """The number of messages so far."""
        self._dialect = dialect
        self._level = 2 if number else 1
        """The level of the heading."""
        self._id = f"memory-{number}"
        self._prefix = f"{number}-" if number else ""
        """The beginning of the ids of the messages in the file."""
        self._first = self._last = ""
        """The days of the first and of the latest message with a time; empty without times."""

    def pieces(self, page: Page) -> Iterator[str]:
        """Yield the HTML of the next page."""
        if page.offset == 0:
            yield from self._heading(page.memory)
        for entry, place in zip(page.messages, page.places, strict=True):
            if self._dialect.facts:
                yield from self._fact(entry, place + 1)
            else:
                yield from self._message(entry, place + 1, page.unread.get(place, ""))
        self.messages += len(page.messages)
        if page.last and not self.messages:
            yield f'<p class="line">No {self._dialect.noun}s.</p>\n'
        if page.last:
            yield "</section>\n"

    def entry(self, key: MemoryKey) -> str:
        """Return the entry of the memory in the list of its file."""
        about = _about(self.messages, self._dialect.noun, self._first, self._last)
        return _entry(f"#{self._id}", key, about)

    def _heading(self, memory: Memory) -> Iterator[str]:
        level = self._level
        yield f'<section aria-labelledby="{self._id}">\n'
        yield f'<h{level} class="memory" id="{self._id}">{_title(memory.key)}</h{level}>\n'
        if memory.summary:
            yield f'<div class="summary">\n<h{level + 1}>Summary</h{level + 1}>\n'
            yield from _body(memory.summary)
            yield "</div>\n"

    def _message(self, entry: StoredMessage, number: int, unread: str) -> Iterator[str]:
        shown = jsonio.pruned(entry.message)
        view = self._dialect.parse(shown)
        moment = _moment(view.time)
        if moment is not None and (day := _day(moment)) != self._last:
            level = self._level + 1
            yield f'<h{level} class="day"><time datetime="{day}">{day}</time></h{level}>\n'
            self._first, self._last = self._first or day, day
        blocks = view.blocks
        yield self._start(_side(view.role, blocks) + (" unread" if unread else ""), number)
        yield _speaker(view)
        if moment is not None:
            yield _time(moment, f"{moment:%H:%M}")
        elif view.time:
            yield f' <span class="time">{_name(view.time)}</span>'
        yield self._link(number)
        for mark in tags(entry.marks, unread):
            yield f' <span class="mark">{_name(mark)}</span>'
        yield "</header>\n"
        for block in blocks:
            yield from _block(block)
        if shown is not entry.message:
            yield _line("… more values than are shown")
        yield "</article>\n"

    def _fact(self, entry: StoredMessage, number: int) -> Iterator[str]:
        shown = jsonio.pruned(without_vector(entry.message))
        view = FACT.parse(shown)
        moment = _moment(view.time)
        yield self._start("fact", number)
        if moment is not None:
            day = _day(moment)
            self._first, self._last = self._first or day, day
            yield _time(moment, f"{moment:%Y-%m-%d %H:%M}")
        elif view.time:
            yield f'<span class="time">{_name(view.time)}</span>'
        yield f"{self._link(number)}</header>\n"
        for block in view.blocks:
            yield from _block(block)
        if view.fault:
            yield _line(view.fault)
        if about := _facts(view):
            yield "<dl>\n"
            for name, value in about.items():
                yield f'<dt>{_name(name)}</dt><dd dir="auto">{_cut(value)}</dd>\n'
            yield "</dl>\n"
        if history := view.value.get("history"):
            yield from _details("history", [indented(history)])
        yield "</article>\n"

    def _start(self, side: str, number: int) -> str:
        return f'<article class="{side}" id="{self._prefix}{number}">\n<header>'

    def _link(self, number: int) -> str:
        return f' <a class="number" href="#{self._prefix}{number}">#{number}</a>'


def _side(role: str | None, blocks: list[Block]) -> str:
    """Return the class of a message: ``user``, ``assistant`` or ``other``."""
    spoken = not blocks or not all(isinstance(block, ToolResultBlock) for block in blocks)
    return role if role in ("user", "assistant") and spoken else "other"


def _speaker(view: MessageView) -> str:
    role = view.role or "?"
    speaker = f'<span class="who">{_name(view.name or role)}</span>'
    if view.name in (None, "", role):
        return speaker
    return f'{speaker} <span class="role">{_name(role)}</span>'


def _block(block: Block) -> Iterator[str]:
    match block:
        case TextBlock(text) if len(text) > _LONG:
            yield from _details("text", [text], "text")
            return
        case TextBlock(text):
            yield from _body(text)
            return
        case MediaBlock():
            yield _line(f"{block.kind}: {media(block)}")
            return
        case ThinkingBlock():
            label = "thinking"
        case HintBlock():
            label = "hint"
        case ToolCallBlock():
            label = f"calls {block.name}"
        case ToolResultBlock():
            label = f"result of {block.name}"
        case _:
            label = block.kind
    spoken = isinstance(block, ThinkingBlock | HintBlock)
    yield from _details(label, folded_texts(block), "text" if spoken else "code")


def _details(label: str, texts: list[str], style: str = "code") -> Iterator[str]:
    text = "\n".join(texts)
    if not text:
        yield _line(label)
        return
    length = count(len(text), "character")
    yield f"<details><summary>{_name(label)}, {length}</summary>\n"
    yield from _body(text, style)
    yield "</details>\n"


def _body(text: str, style: str = "text") -> Iterator[str]:
    yield f'<div class="{style}" dir="auto">{_cut(text)}</div>\n'


def _cut(text: str) -> str:
    """Return a text as HTML, with the number of characters that are left out at its end."""
    more = len(text) - READABLE
    if more <= 0:
        return html.text(text)
    left_out = f'<span class="line">… {more:,} more characters are left out</span>'
    return f"{html.text(text[:READABLE])}\n{left_out}"


def _name(stored: str) -> str:
    """Return a name as HTML, without the end of one that is too long for a line."""
    return html.name(stored if len(stored) <= _LONGEST_NAME else f"{stored[:_LONGEST_NAME]}…")


def _line(text: str) -> str:
    return f'<p class="line">{_name(text)}</p>\n'


def _facts(view: FactView) -> dict[str, str]:
    """Return what is known about a fact besides its text and its time, by name."""
    created = view.value.get("created_at")
    found = {
        "created": None if created == view.time else created,
        "entities": [str(one.get("text")) for one in view.entities],
        **held(view.metadata, view.unknown),
    }
    return {name: _plain(value) for name, value in found.items() if value not in (None, [])}


def _plain(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else indented(value)


def _moment(time: str | None) -> datetime | None:
    """Return a stored time, with its zone if it has one; None if it is missing or invalid."""
    try:
        return datetime.fromisoformat(time or "")
    except ValueError:
        return None


def _day(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.date()}"


def _time(moment: datetime, text: str) -> str:
    zone = f" {moment:%Z}" if moment.tzinfo else ""
    machine = moment.isoformat(timespec="seconds")
    return f' <time class="time" datetime="{machine}">{text}{zone}</time>'


def _entry(link: str, key: MemoryKey, about: str) -> str:
    """Return the entry of a memory in a list; ``link`` is a URL, ``about`` is HTML."""
    return f'<li><a href="{link}">{_title(key)}</a> <span class="about">{about}</span></li>\n'


def _about(messages: int, noun: str, first: str, last: str) -> str:
    days = [first, last] if first != last else [first]
    period = " to ".join(day for day in days if day)
    return f"{count(messages, noun)}{', ' if period else ''}{period}"


def _names(key: MemoryKey) -> list[str]:
    return [name for name in (key.user, key.session) if name] or ["''"]


def _title(key: MemoryKey) -> str:
    part = f" ({_name(key.part)})" if key.part else ""
    return " / ".join(map(_name, _names(key))) + part


def _plain_title(key: MemoryKey) -> str:
    return " / ".join(_names(key)) + (f" ({key.part})" if key.part else "")
