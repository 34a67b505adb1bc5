"""Conversations and facts as HTML pages that load nothing and run nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import IO, Any, TextIO

from memctl import html, jsonio
from memctl.dialects.fact import FACT, FactView, without_vector
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
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.numbers import count
from memctl.ops.export.blocks import folded_texts, indented, media
from memctl.ops.export.folder import FolderFormat, IndexedFile, Renderer
from memctl.ops.export.writer import PageWriter

LARGE = 10_000
"""The number of messages above which a page is slow to open."""

_UNFOLDED = 20
"""The largest number of memories whose list is unfolded."""

_LONG = 50_000
"""The number of characters above which a text is folded, because it is slow to lay out."""

_NOTE = "Times are as stored. Exported by memctl."

STYLE = """
:root {
  --page: #f5f6f8; --card: #fff; --line: #dfe3e8; --dash: #aeb6c0; --ink: #1b1f24; --soft: #59626e;
  --link: #1f63b5; --user: #e9f1fd; --user-line: #c9dcf6; --mark: #fdf1c4; --mark-ink: #6a5200;
  --code: #f1f3f5;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --card: #1e2227; --line: #343a42; --dash: #5b6470; --ink: #e4e7eb;
    --soft: #a3acb8; --link: #7fb4f7; --user: #1a2b42; --user-line: #2f4a6d; --mark: #3b3213;
    --mark-ink: #eed27f; --code: #14171b;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  max-width: 55rem; margin: 0 auto; padding: 2rem 1.5rem 6rem; overflow-wrap: anywhere;
  background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
a, summary { color: var(--link); }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
summary { cursor: pointer; }
h1, h2, h3 { margin: 0; line-height: 1.35; }
h1 { font-size: 1.45rem; }
h2 { font-size: 1.15rem; }
section {
  margin-top: 2.5rem; content-visibility: auto; contain-intrinsic-size: auto 40rem auto 60rem;
}
nav + main > section { margin-top: 1rem; }
.memory { padding-bottom: .75rem; border-bottom: 1px solid var(--line); }
.about, .role, .time, .number { color: var(--soft); font-size: .85rem; }
p.about { margin: .25rem 0 0; }
nav { margin-top: 1.25rem; }
nav:first-child { margin-top: 0; }
.memories { margin: .75rem 0; padding: 0; list-style: none; }
.memories li {
  display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between;
  gap: 0 1rem; padding: .35rem 0;
  border-top: 1px solid var(--line);
}
.day {
  margin: 1.5rem 0 .75rem; color: var(--soft); font-size: .85rem; font-weight: 400;
  text-align: center;
}
article {
  width: fit-content; max-width: min(44rem, 88%); margin: .75rem 0; padding: .6rem .9rem;
  background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  content-visibility: auto; contain-intrinsic-size: auto 20rem auto 5rem;
}
.user { margin-left: auto; background: var(--user); border-color: var(--user-line); }
.other { background: none; border: 1px dashed var(--dash); }
.fact { width: auto; max-width: none; }
article:target { outline: 2px solid var(--link); }
article header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 .6rem; }
.who { font-size: .9rem; font-weight: 600; }
.mark {
  padding: 0 .35rem; border-radius: .25rem; background: var(--mark); color: var(--mark-ink);
  font-size: .8rem;
}
.text, .code, dd { white-space: pre-wrap; unicode-bidi: plaintext; tab-size: 4; }
.text { margin-top: .2rem; }
.code {
  margin-top: .35rem; padding: .5rem .7rem; border-radius: .4rem; background: var(--code);
  font: .85rem/1.45 ui-monospace, "Cascadia Code", Menlo, "DejaVu Sans Mono", monospace;
}
.summary {
  margin: 1rem 0; padding: .6rem .9rem; border-left: 3px solid var(--soft); background: var(--card);
}
.summary h2, .summary h3 { font-size: .9rem; }
details, .line { margin: .35rem 0 0; font-size: .9rem; }
.line { color: var(--soft); }
dl {
  display: grid; grid-template-columns: fit-content(10rem) 1fr; gap: .1rem .9rem;
  margin: .4rem 0 0; font-size: .85rem;
}
dt { color: var(--soft); }
dd { margin: 0; }
@media (max-width: 30rem) {
  body { padding: 1.25rem .9rem 4rem; }
  article { max-width: 94%; }
}
@media print {
  :root { --page: #fff; --code: #fff; font-size: 10pt; }
  body { max-width: none; padding: 0; }
  section, article { content-visibility: visible; }
  article { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""


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
        write(html.opening(self._label, STYLE))
        write(f"<header>\n<h1>{html.name(self._label)}</h1>\n")
        write(f'<p class="about">{total}. {_NOTE}</p>\n</header>\n')
        if self._memories > 1:
            state = " open" if self._memories <= _UNFOLDED else ""
            write(f"<nav><details{state}>\n<summary>Contents</summary>\n")
            write('<ul class="memories">\n')
            _pour(self._list, self._file)
            write("</ul>\n</details></nav>\n")
        write("<main>\n")
        _pour(self._body, self._file)
        write(f"</main>\n{html.closing()}")

    def discard(self) -> None:
        self._list.close()
        self._body.close()


def _spool() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")


def _pour(spool: IO[str], file: TextIO) -> None:
    spool.seek(0)
    shutil.copyfileobj(spool, file)


class HtmlFolder(FolderFormat):
    """A folder of pages, with a list of them in ``index.html``."""

    name = "html"
    ending = ".html"
    index = "index.html"
    layout = 1

    def renderer(self, dialect: Dialect) -> Renderer:
        return partial(_alone, _Memory(dialect))

    def contents(self, files: Iterator[IndexedFile], noun: str) -> Iterator[str]:
        yield html.opening("Conversations", STYLE)
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
        yield html.opening(_plain_title(page.memory.key), STYLE)
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
        draw = self._fact if self._dialect.facts else self._message
        for entry, place in zip(page.messages, page.places, strict=True):
            yield from draw(entry, place + 1)
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

    def _message(self, entry: StoredMessage, number: int) -> Iterator[str]:
        shown = jsonio.pruned(entry.message)
        view = self._dialect.parse(shown)
        moment = _moment(view.time)
        if moment is not None and (day := _day(moment)) != self._last:
            level = self._level + 1
            yield f'<h{level} class="day"><time datetime="{day}">{day}</time></h{level}>\n'
            self._first, self._last = self._first or day, day
        blocks = view.blocks
        yield self._start(_side(view.role, blocks), number)
        yield _speaker(view)
        if moment is not None:
            yield _time(moment, f"{moment:%H:%M}")
        elif view.time:
            yield f' <span class="time">{html.name(view.time)}</span>'
        yield self._link(number)
        for mark in entry.marks:
            yield f' <span class="mark">{html.name(mark)}</span>'
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
            yield f'<span class="time">{html.name(view.time)}</span>'
        yield f"{self._link(number)}</header>\n"
        for text in view.texts():
            yield from _body(text)
        if view.fault:
            yield _line(view.fault)
        if about := _facts(view):
            yield "<dl>\n"
            for name, value in about.items():
                yield f'<dt>{html.name(name)}</dt><dd dir="auto">{_cut(value)}</dd>\n'
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
    speaker = f'<span class="who">{html.name(view.name or role)}</span>'
    if view.name in (None, "", role):
        return speaker
    return f'{speaker} <span class="role">{html.name(role)}</span>'


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
    yield f"<details><summary>{html.name(label)}, {length}</summary>\n"
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


def _line(text: str) -> str:
    return f'<p class="line">{html.name(text)}</p>\n'


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
    part = f" ({html.name(key.part)})" if key.part else ""
    return " / ".join(map(html.name, _names(key))) + part


def _plain_title(key: MemoryKey) -> str:
    return " / ".join(_names(key)) + (f" ({key.part})" if key.part else "")
