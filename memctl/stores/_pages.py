"""Messages made into pages, and pages taken together on their way to a thread and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import orjson

from memctl.model import Entry, Memory, Page
from memctl.store import PAGE_BYTES, PAGE_ENTRIES

_LARGE = 1 << 20
_ENTRY: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)


def are_objects(texts: Sequence[Any]) -> bool:
    """Whether all are texts that hold a JSON object each, in UTF-8.

    At the speed of C.  It may say no of what ``codec`` takes, and of large texts, which need memory
    to be parsed: such texts are looked at one by one.
    """
    try:
        if max(map(len, texts), default=0) >= _LARGE:
            return False
        return set(map(type, map(orjson.loads, texts))) <= {dict}
    except (TypeError, orjson.JSONDecodeError):
        return False


def made(
    ids: Iterable[str], messages: Iterable[bytes], marks: Iterable[Any], indexes: Iterable[Any]
) -> list[Entry]:
    """Entries of their parts, until one of the parts ends; without a call of Python for each."""
    return list(map(_ENTRY, zip(ids, messages, marks, indexes, strict=False)))


def paged(memory: Memory, entries: Iterable[Entry], *, empty: bool) -> Iterator[Page]:
    """The pages of a memory; ``empty`` makes one page of a memory without messages, else none."""
    page: list[Entry] = []
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


class Filling:
    """A memory on its way into pages; ``offset`` counts the messages that were handed out."""

    def __init__(self, memory: Memory) -> None:
        self.entries: list[Entry] = []
        self.offset = 0
        self._memory = memory
        self._size = 0

    def take(self, entries: list[Entry]) -> Iterator[Page]:
        """Takes messages off the list, and hands out a page where there are more than fit."""
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
        """What there is, as a page."""
        page = Page(self._memory, self.entries, self.offset, last)
        self.offset += len(self.entries)
        self.entries, self._size = [], 0
        return page


def together(pages: Iterable[Page]) -> Iterator[list[Page]]:
    """The pages of many small memories in lists of about a page."""
    some = _Some()
    for page in pages:
        if some.add(page):
            yield some.take()
    if some.pages:
        yield some.take()


async def gathered(pages: AsyncIterator[Page]) -> AsyncIterator[list[Page]]:
    """See ``together``."""
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
        """Whether these are enough."""
        self.pages.append(page)
        self._messages += len(page.entries)
        self._size += sum([len(entry.message) for entry in page.entries])
        enough = self._size >= PAGE_BYTES or self._messages >= PAGE_ENTRIES
        return enough or len(self.pages) >= PAGE_ENTRIES

    def take(self) -> list[Page]:
        pages = self.pages
        self.pages, self._size, self._messages = [], 0, 0
        return pages
