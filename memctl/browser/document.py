"""The messages of a memory in pages, of which a few are held."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from rich.console import RenderableType

from memctl.browser.source import Reader
from memctl.dialects.live import understood
from memctl.dialects.view import COMPRESSED, Dialect, Unread
from memctl.errors import BadData, NotFound
from memctl.inference.tokens import TokenCounter
from memctl.location import visible
from memctl.machine.spool import ItemSpool
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.ops.context import ContextMessage, read_context
from memctl.output import conversation
from memctl.output.conversation import Extent, StyleOf, role_style
from memctl.selection import Selection
from memctl.store import DamagedMemory, Store

PAGE = 200
"""The number of messages in a page."""
KEPT = 12
"""The maximum number of pages that are held."""
KEPT_BYTES = 32_000_000
"""The size from which on fewer pages are held."""


class Entry(NamedTuple):
    """A message to draw; ``number`` is its position in the memory, from 1, or 0 for a summary.

    ``unread`` is the reason why the framework does not read the message; empty if it does.
    """

    message: StoredMessage
    number: int
    tokens: int | None = None
    fault: str = ""
    unread: str = ""

    def drawn(
        self, dialect: Dialect, extent: Extent, style_of: StyleOf = role_style
    ) -> RenderableType:
        """Return what is shown of the message; ``style_of`` returns the style of its speaker."""
        if dialect.facts:
            return conversation.fact(self.message, self.number, extent=extent)
        return conversation.message(
            *(self.message, self.number),
            tokens=self.tokens,
            fault=self.fault,
            unread=self.unread,
            dialect=dialect,
            extent=extent,
            style_of=style_of,
        )


class Missing(Exception):
    """A page is not held, and has to be loaded first."""

    def __init__(self, page: int) -> None:
        super().__init__(page)
        self.page = page


class Document(ABC):
    """The messages of one memory.

    ``total`` is their number.  ``deleted`` tells by how much it was lowered since the document was
    opened, because messages were gone when a page was loaded.
    """

    def __init__(self, reader: Reader, key: MemoryKey) -> None:
        self.key = key
        self.total = 0
        self.deleted = 0
        self._reader = reader
        self._pages: OrderedDict[int, list[Entry]] = OrderedDict()

    def __getitem__(self, index: int) -> Entry:
        """Return a message.

        Raises:
            Missing: its page has to be loaded first.
        """
        number, place = divmod(index, PAGE)
        page = self._pages.get(number)
        if page is None or place >= len(page):
            raise Missing(number)
        self._pages.move_to_end(number)
        return page[place]

    def holds(self, number: int) -> bool:
        """Return whether a page is held."""
        return number in self._pages

    @abstractmethod
    async def open(self, told: Callable[[int], object]) -> None:
        """Find the number of messages, and hold the last page.

        ``told`` is called with the number of messages read so far.

        Raises:
            NotFound: the memory does not exist.
            MemctlError: as ``Store.read``.
        """

    @abstractmethod
    async def load(self, number: int) -> None:
        """Hold a page.  If there are fewer messages by now, ``total`` is less.

        Raises:
            MemctlError: as ``Store.read``.
        """

    @abstractmethod
    async def entries(self, start: int, count: int) -> list[Entry]:
        """Return some messages, without holding them; fewer at the end.

        Raises:
            MemctlError: as ``Store.read``.
        """

    def close(self) -> None:  # noqa: B027 - a document may hold nothing
        """Release what the document holds."""

    def _hold(self, number: int, entries: list[Entry]) -> None:
        self._pages[number] = entries
        self._pages.move_to_end(number)
        size = sum(len(one.message.message) for page in self._pages.values() for one in page)
        while len(self._pages) > KEPT or (size > KEPT_BYTES and len(self._pages) > 2):
            _, gone = self._pages.popitem(last=False)
            size -= sum(len(one.message.message) for one in gone)


class Windows(Document):
    """A memory of a store that reads windows quickly."""

    async def open(self, told: Callable[[int], object]) -> None:  # noqa: ARG002 - one short read
        # Twice a page from the end has at least the whole last page, wherever it begins.
        page = await self._window(-2 * PAGE, 2 * PAGE)
        self._pages.clear()
        self.total = page.offset + len(page.messages)
        for number in range(-(-page.offset // PAGE), -(-self.total // PAGE)):
            first = number * PAGE - page.offset
            messages = page.messages[first : first + PAGE]
            self._hold(number, _numbered(messages, number * PAGE))

    async def load(self, number: int) -> None:
        found = await self.entries(number * PAGE, PAGE)
        self._hold(number, found)

    async def entries(self, start: int, count: int) -> list[Entry]:
        page = await self._window(start, count)
        end = page.offset + len(page.messages)
        if page.last and end < self.total:
            self.deleted += self.total - end
            self.total = end
        elif not page.last and end >= self.total:  # there are new messages
            tail = await self._window(-1, 1)
            self.total = tail.offset + len(tail.messages)
        return _numbered(page.messages, page.offset)

    async def _window(self, start: int, count: int) -> Page:
        async def read(store: Store) -> Page:
            page = await store.window(self.key, start, count)
            if page is None:
                _refuse_damage(store, self.key)
                raise _gone(self.key)
            return page

        return await self._reader.run(read)


class Whole(Document):
    """The messages that ``where`` selects, read once, into a temporary file."""

    def __init__(self, reader: Reader, key: MemoryKey, where: Selection | None = None) -> None:
        super().__init__(reader, key)
        self._where = where or Selection()
        self._spool: ItemSpool[list[Entry]] = ItemSpool()

    def read(self, store: Store) -> AsyncGenerator[Entry]:
        """Yield the messages in order."""
        return _whole(store, self.key, self._where)

    async def open(self, told: Callable[[int], object]) -> None:
        self._pages.clear()
        self.total = 0
        spool: ItemSpool[list[Entry]] = ItemSpool()
        rest: list[Entry] = []

        def take(entries: list[Entry]) -> None:
            nonlocal rest
            rest += entries
            while len(rest) >= PAGE:
                spool.add(rest[:PAGE])
                rest = rest[PAGE:]
            told(len(spool) * PAGE + len(rest))

        try:
            await self._reader.stream(self.read, take)
        except BaseException:
            spool.close()
            raise
        self.total = len(spool) * PAGE + len(rest)
        if rest:
            spool.add(rest)
        self._spool.close()
        self._spool = spool
        if self.total:
            await self.load(len(spool) - 1)

    async def load(self, number: int) -> None:
        self._hold(number, self._spool[number])

    async def entries(self, start: int, count: int) -> list[Entry]:
        first, last = start // PAGE, min(start + count - 1, self.total - 1) // PAGE
        found = [entry for number in range(first, last + 1) for entry in self._spool[number]]
        return found[start - first * PAGE :][:count]

    def close(self) -> None:
        self._spool.close()


class Context(Whole):
    """The messages that an agent sends to its model, each with its tokens.

    ``tokens`` are the tokens of the summary, of users, of agents and of tools.
    """

    def __init__(self, reader: Reader, key: MemoryKey) -> None:
        super().__init__(reader, key)
        self.tokens: dict[str, int] = {}

    async def read(self, store: Store) -> AsyncGenerator[Entry]:
        self.tokens = {}
        counter = TokenCounter()
        parts = read_context(store, self.key, counter.count, everything=False)
        async with aclosing(parts):
            async for part in parts:
                kind = _kind(part, store.dialect)
                self.tokens[kind] = self.tokens.get(kind, 0) + part.tokens
                yield _entry(part)
        _refuse_damage(store, self.key)


async def _whole(store: Store, key: MemoryKey, where: Selection) -> AsyncGenerator[Entry]:
    there = False

    async def read() -> AsyncGenerator[Page]:
        nonlocal there
        whole = store.read(Selection(keys=frozenset({key})))
        async with aclosing(understood(whole, store.dialect)) as pages:
            async for page in pages:
                there = True
                yield page

    async with aclosing(where.apply(read(), store.dialect)) as pages:
        async for page in pages:
            for entry, place in zip(page.messages, page.places, strict=True):
                yield Entry(entry, place + 1, unread=page.unread.get(place, ""))
    _refuse_damage(store, key)
    if not there:
        raise _gone(key)


def _refuse_damage(store: Store, key: MemoryKey) -> None:
    """Raise an error if a memory is damaged.

    A store leaves out a memory that it has found damaged: without this error, the memory would seem
    to be deleted.

    Raises:
        BadData: the memory is damaged.
    """
    if failure := store.left_out.failures.get(key):
        damaged = DamagedMemory(store.label, key, failure)
        raise BadData(damaged.message, damaged.hint)


def _kind(part: ContextMessage, dialect: Dialect) -> str:
    if part.summary:
        return "summary"
    if part.fault:
        return "faulty"
    view = dialect.outline(part.entry.message)
    return "tools" if view.is_tool_output else visible(view.role or "?")


def _entry(part: ContextMessage) -> Entry:
    number = 0 if part.summary else part.number
    return Entry(part.entry, number, part.tokens, part.fault)


def _numbered(messages: list[StoredMessage], offset: int) -> list[Entry]:
    return [
        Entry(message, number, unread=Unread.COMPACTED if COMPRESSED in message.marks else "")
        for number, message in enumerate(messages, offset + 1)
    ]


def _gone(key: MemoryKey) -> NotFound:
    return NotFound(f"the memory {key} is not there any more", "press r to read the names anew")
