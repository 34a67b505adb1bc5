"""Messages as pages, pages as batches: what stores read in bulk and write together."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Memory, Page, StoredMessage

LARGE_BYTES = 4 * PAGE_BYTES
"""A page above this size is written by itself."""

PATIENCE = 1.0
"""Seconds after which what has been gathered of a slow source is handed on with the next page."""

_LARGE = 1 << 20
_ENTRY: Callable[[tuple[Any, ...]], StoredMessage] = partial(tuple.__new__, StoredMessage)


def are_objects(texts: Sequence[Any]) -> bool:
    """Return whether all are texts that hold a JSON object each, in UTF-8.

    At the speed of C.  It may reject what ``jsonio`` takes, and large texts, which need memory
    to be parsed: such texts are looked at one by one.
    """
    try:
        if max(map(len, texts), default=0) >= _LARGE:
            return False
        return set(map(type, map(orjson.loads, texts))) <= {dict}
    except (TypeError, orjson.JSONDecodeError):
        return False


def messages_from_columns(
    ids: Iterable[str], messages: Iterable[bytes], marks: Iterable[Any], indexes: Iterable[Any]
) -> list[StoredMessage]:
    """Return messages from their parts, until one ends; without a call of Python for each."""
    return list(map(_ENTRY, zip(ids, messages, marks, indexes, strict=False)))


def paginate(memory: Memory, entries: Iterable[StoredMessage], *, empty: bool) -> Iterator[Page]:
    """The pages of a memory; ``empty`` makes one page of a memory without messages, else none."""
    page: list[StoredMessage] = []
    offset = size = 0
    for entry in entries:
        if page and (size >= PAGE_BYTES or len(page) >= PAGE_ENTRIES):
            yield Page(memory, page, offset, last=False)
            offset += len(page)
            page, size = [], 0
        page.append(entry)
        size += len(entry.message)
    if page or empty:
        yield Page(memory, page, offset)


class PageBuilder:
    """A memory on its way into pages; ``offset`` counts the messages that were handed out."""

    def __init__(self, memory: Memory) -> None:
        self.entries: list[StoredMessage] = []
        self.offset = 0
        self._memory = memory
        self._size = 0

    def take(self, entries: list[StoredMessage]) -> Iterator[Page]:
        """Take messages off the list, and hand out a page where there are more than fit."""
        while entries:
            yield from self.full()
            room = PAGE_ENTRIES - len(self.entries)
            self._size += sum([len(entry.message) for entry in entries[:room]])
            self.entries += entries[:room]
            del entries[:room]

    def full(self) -> Iterator[Page]:
        """A page, if there is enough for one."""
        if self._size >= PAGE_BYTES or len(self.entries) >= PAGE_ENTRIES:
            yield self.page(last=False)

    def page(self, *, last: bool) -> Page:
        """Return the messages so far as a page."""
        page = Page(self._memory, self.entries, self.offset, last)
        self.offset += len(self.entries)
        self.entries, self._size = [], 0
        return page


def group_pages(pages: Iterable[Page]) -> Iterator[list[Page]]:
    """The pages of many small memories in lists of about a page."""
    some = _Some()
    for page in pages:
        if some.add(page):
            yield some.take()
    if some.pages:
        yield some.take()


async def group_pages_async(pages: AsyncGenerator[Page]) -> AsyncGenerator[list[Page]]:
    """See ``group_pages``."""
    some = _Some()
    async for page in pages:
        if some.add(page):
            yield some.take()
    if some.pages:
        yield some.take()


class _Some:
    """Pages of about a page's size."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self._size = 0
        self._messages = 0

    def add(self, page: Page) -> bool:
        """Return whether these are enough."""
        self.pages.append(page)
        self._messages += len(page.messages)
        self._size += sum([len(entry.message) for entry in page.messages])
        enough = self._size >= PAGE_BYTES or self._messages >= PAGE_ENTRIES
        return enough or len(self.pages) >= PAGE_ENTRIES

    def take(self) -> list[Page]:
        pages = self.pages
        self.pages, self._size, self._messages = [], 0, 0
        return pages


@dataclass(frozen=True, slots=True)
class Small:
    """A memory, or a tail of one, that came in few pages."""

    memory: Memory
    entries: list[StoredMessage]
    offset: int


@dataclass(slots=True)
class Large:
    """A memory that comes in many pages.  ``pages`` must be consumed to the end."""

    memory: Memory
    offset: int
    pages: AsyncGenerator[Page]


async def gather(
    pages: AsyncGenerator[Page], size: int = PAGE_BYTES, messages: int = PAGE_ENTRIES
) -> AsyncGenerator[list[Small] | Large]:
    """Yield lists of small memories of about so much together, and large memories one by one.

    A memory in several pages is small while they fit into that together.  A page is released
    before it is handed on: one message may be most of the memory in use.
    """
    batch = _Batch()
    held: list[Page] = []
    async for page in pages:
        held.append(page)
        del page
        added, count = _size(held[0]), len(held[0].messages)
        while not held[-1].last and added < size and count < messages:
            if batch.smalls and batch.size + added >= size:
                yield batch.take()
            held.append(await anext(pages))
            added += _size(held[-1])
            count += len(held[-1].messages)
        if held[-1].last and added <= LARGE_BYTES:
            batch.add(held, added, count)
            if batch.size >= size or batch.messages >= messages or batch.waited():
                yield batch.take()
            continue
        if batch.smalls:
            yield batch.take()
        yield Large(held[0].memory, held[0].offset, _until_last(held, pages))
    if batch.smalls:
        yield batch.take()


class _Batch:
    """Small memories on their way into one transaction."""

    def __init__(self) -> None:
        self.smalls: list[Small] = []
        self.size = 0
        self.messages = 0
        self._begun = 0.0

    def add(self, pages: list[Page], size: int, messages: int) -> None:
        """Take the pages of a memory, which are no longer in the list then."""
        if not self.smalls:
            self._begun = time.monotonic()
        first = pages[0]
        entries = first.messages
        if len(pages) > 1:
            entries = [entry for page in pages for entry in page.messages]
        self.smalls.append(Small(first.memory, entries, first.offset))
        self.size += size
        self.messages += messages
        pages.clear()

    def waited(self) -> bool:
        """Return whether these are enough for other reasons than their size."""
        return len(self.smalls) >= PAGE_ENTRIES or time.monotonic() - self._begun > PATIENCE

    def take(self) -> list[Small]:
        """Return the batch, and begin the next."""
        smalls = self.smalls
        self.smalls, self.size, self.messages = [], 0, 0
        return smalls


def _size(page: Page) -> int:
    return sum([len(entry.message) for entry in page.messages])


async def _until_last(held: list[Page], rest: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    held.reverse()
    while True:
        last = held[-1].last
        yield held.pop()
        if last:
            return
        if not held:
            held.append(await anext(rest))
