"""Conversations and facts as HTML pages that load nothing and run nothing, from templates."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from typing import IO, Any, NamedTuple, TextIO

from jinja2 import Environment, Template
from markupsafe import Markup
from msgspec import Struct

from memctl.dialects.fact import FACT, FactView, without_vector
from memctl.dialects.live import tags
from memctl.dialects.view import (
    READABLE,
    Block,
    CallNames,
    Dialect,
    HintBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    held,
)
from memctl.json import jsonio
from memctl.machine.temporary import end, scratch
from memctl.model import NO_MEMORY, MemoryKey, Page, StoredMessage
from memctl.ops.export.blocks import folded_texts, indented, kind_of, media
from memctl.ops.export.folder import FolderFormat, IndexedFile, Renderer
from memctl.ops.export.writer import Cover, PageWriter
from memctl.text.html import environment, line, name, shown
from memctl.version import __version__

_UNFOLDED = 20
"""The largest number of memories whose list is unfolded."""

_LONG = 50_000
"""The number of characters above which a text is folded, because it is slow to lay out."""

_LONGEST_NAME = 300
"""The number of characters of a name that are shown."""

_CHUNK = 1 << 16
"""The number of characters of a temporary file to read at a time."""

_NOTE = "Times are as stored. Exported by memctl."
_QUIET = frozenset({"compressed", "hint"})
"""Marks of frameworks, which are shown without colour."""


def _template(file: str) -> Template:
    return _templates().get_template(file)


@cache
def _templates() -> Environment:
    made = environment("memctl.ops.export")
    made.filters |= {"brief": _brief, "cut": _cut, "period": _period, "title": _title}
    made.globals |= {
        "index": HtmlFolder.index,
        "note": _NOTE,
        "quiet": _QUIET,
        "unfolded": _UNFOLDED,
        "version": __version__,
    }
    return made


class HtmlFile(PageWriter):
    """A page with several memories, and a list of them at the top.

    The list is complete only after the last memory.  Until then, both are in temporary files.
    """

    _template = "memories.html"
    _level = 2
    """The level of the headings of memories."""

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        super().__init__(file, dialect)
        self._cover = Cover()
        self._first = NO_MEMORY
        self._one_user = True
        self._list, self._body = _spool(), _spool()
        self._memories = self._messages = 0
        self._memory = _Memory(dialect)

    def begin(self, cover: Cover) -> None:
        self._cover = cover

    def add(self, page: Page) -> None:
        if page.offset == 0:
            self._memories += 1
            self._memory = _Memory(
                self._dialect, self._memories, level=self._level, cover=self._cover
            )
            self._first = self._first if self._memories > 1 else page.memory.key
            self._one_user &= page.memory.key.user == self._first.user
        self._body.write(_template("messages.html").render(self._memory.told(page)))
        if page.last:
            self._end(page.memory.key)

    def _end(self, key: MemoryKey) -> None:
        self._messages += self._memory.messages
        self._list.write(self._memory.entry(key))

    def finish(self) -> None:
        self._file.writelines(_template(self._template).generate(self._told()))

    def _told(self) -> dict[str, Any]:
        """Return what the template needs."""
        return {
            "title": self._title(),
            "cover": self._cover,
            "memories": self._memories,
            "messages": self._messages,
            "noun": "fact" if self._holds_facts() else "message",
            "list": _read(self._list),
            "body": _read(self._body),
        }

    def _title(self) -> str:
        if self._cover.title:
            return self._cover.title
        if self._memories == 1:
            return _plain_title(self._first)
        if self._one_user and self._first.user:
            return self._first.user
        return "Facts" if self._holds_facts() else "Conversations"

    def _holds_facts(self) -> bool:
        return self._dialect.facts

    def discard(self) -> None:
        end(self._list)
        end(self._body)


class Source(Struct):
    """A store of a page, and what the page has of it.

    ``memories`` counts also those that are ``repeated``: equal to memories of stores before.
    ``file`` is the name of a file with the same memories for programs; empty without one.
    """

    label: str
    title: str
    dialect: Dialect
    file: str = ""
    memories: int = 0
    messages: int = 0
    repeated: int = 0
    first: str = ""
    last: str = ""
    """The days of the first and the last message with a time."""


class HtmlCollection(HtmlFile):
    """A page with the memories of several stores, each under the name of its store.

    A memory that is equal to one of a store before is only listed, with a link to that one.
    """

    _template = "collection.html"
    _level = 3

    def __init__(self, file: TextIO) -> None:
        super().__init__(file, FACT)  # until the first source begins
        self.sources: list[Source] = []
        self._seen: dict[bytes, tuple[str, Source]] = {}
        """By the digest of each memory, its id in the page and its source."""
        self._digest = hashlib.sha256()
        self._begin = 0
        """The place of the latest memory in the body."""

    def begin_source(self, source: Source) -> None:
        """Begin the memories of a store."""
        self.sources.append(source)
        self._dialect = source.dialect
        heading = _template("source.html")
        for spool, level in ((self._list, 0), (self._body, 2)):
            spool.write(heading.render(source=source, level=level, number=len(self.sources)))

    def add(self, page: Page) -> None:
        if page.offset == 0:
            self._begin = self._body.tell()
            about = page.memory
            self._digest = hashlib.sha256(repr((*about.key, about.summary)).encode())
        for entry in page.messages:
            self._digest.update(repr((entry.message, entry.marks)).encode())
        super().add(page)

    def _end(self, key: MemoryKey) -> None:
        source, memory = self.sources[-1], self._memory
        source.memories += 1
        source.messages += memory.messages
        source.first = min(filter(None, (source.first, memory.first)), default="")
        source.last = max(source.last, memory.last)
        seen = self._seen.setdefault(self._digest.digest(), (memory.id, source))
        if seen[1] is source:
            super()._end(key)
            return
        source.repeated += 1
        self._memories -= 1
        self._body.seek(self._begin)
        self._body.truncate()
        self._list.write(_template("repeated.html").render(id=seen[0], key=key, source=seen[1]))

    def _told(self) -> dict[str, Any]:
        return super()._told() | {"sources": self.sources}

    def _holds_facts(self) -> bool:
        return all(source.dialect.facts for source in self.sources)


def _spool() -> IO[str]:
    return tempfile.TemporaryFile("w+", dir=scratch(), encoding="utf-8", newline="\n")


def _read(spool: IO[str]) -> Iterator[Markup]:
    """Yield what templates have written into a file."""
    spool.seek(0)
    return map(Markup, iter(partial(spool.read, _CHUNK), ""))


class HtmlFolder(FolderFormat):
    """A folder of pages, with a list of them in ``index.html``."""

    name = "html"
    ending = ".html"
    index = "index.html"
    layout = 2

    def renderer(self, dialect: Dialect) -> Renderer:
        memory = _Memory(dialect)
        return lambda page: iter([_template("memory.html").render(memory.told(page))])

    def contents(self, files: Iterator[IndexedFile], noun: str) -> Iterator[str]:
        entries = (
            (link, stamp.key, stamp.messages, _period(map(_day, (stamp.first, stamp.last))))
            for link, stamp in files
        )
        return _template("index.html").generate(entries=entries, noun=noun)


class _Message(NamedTuple):
    """A message or a fact as a template shows it.

    ``id`` is its id in the page, ``css`` its class.  ``role`` is empty if it is the speaker.
    ``day`` is the day that begins with it.  ``moment`` is its time for programs, empty if ``time``
    is no time.  A part is a label, a text and a class: a text without a label is always open, a
    label without a text is a line, and a part without a class has texts by name.
    """

    id: str
    number: str
    css: str
    speaker: str
    role: str
    day: str
    moment: str
    time: str
    marks: Sequence[str]
    parts: Sequence[_Part]


_Part = tuple[str | None, str | dict[str, str], str]


class _Memory:
    """The HTML of one memory, page by page."""

    def __init__(
        self, dialect: Dialect, number: int = 0, *, level: int = 1, cover: Cover | None = None
    ) -> None:
        """``number`` is the number of the memory in its file; 0 if the file has no other memory.

        ``level`` is that of its heading.  ``cover`` is that of the file.
        """
        self._cover = cover or Cover()
        self.messages = 0
        """The number of messages so far."""
        self._dialect = dialect
        self._level = level
        self.id = f"memory-{number}"
        self._prefix = f"{number}-" if number else ""
        """The beginning of the ids of the messages in the file."""
        self._calls = CallNames()
        self.first = self.last = ""
        """The days of the first and of the latest message with a time; empty without times."""

    def told(self, page: Page) -> dict[str, Any]:
        """Return what the templates need for the next page."""
        self.messages += len(page.messages)
        read = self._fact if self._dialect.facts else self._message
        return {
            "title": _plain_title(page.memory.key),
            "page": page,
            "messages": (
                read(entry, place + 1, page.unread.get(place, ""))
                for entry, place in zip(page.messages, page.places, strict=True)
            ),
            "noun": self._dialect.noun,
            "level": self._level,
            "heading": self.id,
            "open": self._cover.unfolded,
        }

    def entry(self, key: MemoryKey) -> str:
        """Return the entry of the memory in the list of its file."""
        return _template("entry.html").render(
            link=f"#{self.id}",
            key=key,
            messages=self.messages,
            noun=self._dialect.noun,
            days=_period((self.first, self.last)),
        )

    def _message(self, entry: StoredMessage, number: int, unread: str) -> _Message:
        shown = jsonio.pruned(entry.message)
        view = self._dialect.parse(shown)
        role, time = view.role or "?", view.time or ""
        name = None if self._cover.pseudonyms else view.name
        blocks = self._calls.given_to(view.blocks)
        moment, zone = _moment(time)
        parts = [_part(block) for block in blocks]
        if shown is not entry.message:
            parts.append(("… more values than are shown", "", ""))
        return _Message(
            f"{self._prefix}{number}",
            str(number),
            f"{_side(role, blocks)} unread" if unread else _side(role, blocks),
            name or role,
            role if name and name != role else "",
            self._new_day(moment[:10]),
            moment,
            moment[11:16] + zone or time,
            tags(entry.marks, unread),
            parts,
        )

    def _fact(self, entry: StoredMessage, number: int, _: str) -> _Message:
        shown = jsonio.pruned(without_vector(entry.message))
        view = FACT.parse(shown)
        moment, zone = _moment(view.time)
        self._new_day(moment[:10])
        parts = [_part(block) for block in view.blocks]
        if view.fault:
            parts.append((view.fault, "", ""))
        if about := _facts(view):
            parts.append(("about", about, ""))
        if history := view.value.get("history"):
            parts.append(("history", indented(history), "code"))
        time = moment[:16].replace("T", " ") + zone or view.time or ""
        id = f"{self._prefix}{number}"
        return _Message(id, str(number), "fact", "", "", "", moment, time, (), parts)

    def _new_day(self, day: str) -> str:
        """Return the day of the next message; empty if it is that of the message before."""
        if not day or day == self.last:
            return ""
        self.first, self.last = self.first or day, day
        return day


def _side(role: str, blocks: list[Block]) -> str:
    """Return the class of a message: ``user``, ``assistant`` or ``other``."""
    spoken = not blocks or not all(isinstance(block, ToolResultBlock) for block in blocks)
    return role if role in ("user", "assistant") and spoken else "other"


def _part(block: Block) -> _Part:
    match block:
        case TextBlock(text):
            return "text" if len(text) > _LONG else None, text, "text"
        case MediaBlock():
            return f"{block.kind}: {media(block)}", "", ""
        case ToolCallBlock():
            label = f"calls {block.name}"
        case ToolResultBlock():
            label = f"result of {block.name}" if block.name else "result"
        case _:
            label = kind_of(block)
    spoken = isinstance(block, ThinkingBlock | HintBlock)
    return label, "\n".join(folded_texts(block)), "text" if spoken else "code"


def _cut(text: str) -> str:
    """Return a text, with the number of characters that are left out at its end."""
    more = len(text) - READABLE
    if more <= 0:
        return text
    left_out = Markup('{}\n<span class="line">… {:,} more characters are left out</span>')
    return left_out.format(shown(text[:READABLE]), more)


def _brief(stored: str) -> str:
    """Return a name on one line, without the end of one that is too long for it."""
    return line(stored if len(stored) <= _LONGEST_NAME else f"{stored[:_LONGEST_NAME]}…")


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


def _moment(time: str | None) -> tuple[str, str]:
    """Return a stored time as ISO 8601 to the second, and the name of its zone after a space.

    Both are empty if the time is missing or invalid, the name if it has no zone.
    """
    try:
        moment = datetime.fromisoformat(time or "")
    except ValueError:
        return "", ""
    return moment.isoformat(timespec="seconds"), f" {moment:%Z}" if moment.tzinfo else ""


def _day(time: str) -> str:
    return _moment(time)[0][:10]


def _period(days: Iterable[str]) -> str:
    return " to ".join(filter(None, dict.fromkeys(days)))


def _names(key: MemoryKey) -> list[str]:
    return [name for name in (key.user, key.session) if name] or ["''"]


def _title(key: MemoryKey) -> Markup:
    part = Markup(" ({})").format(name(_brief(key.part))) if key.part else ""
    return Markup(" / ").join(name(_brief(one)) for one in _names(key)) + part


def _plain_title(key: MemoryKey) -> str:
    return " / ".join(_names(key)) + (f" ({key.part})" if key.part else "")
