"""Group messages into pages, and pages and edits into batches for bulk writes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

import orjson
from msgspec import Struct

from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Edit, Memory, Page, StoredMessage

T = TypeVar("T")

LARGE_BYTES = 4 * PAGE_BYTES
"""A memory with more bytes of messages is written alone, page by page."""

BATCH_BYTES = 2 * PAGE_BYTES
"""The bytes of messages in a batch of edits, and in a batch of writes to a SQL database."""

PATIENCE = 1.0
"""The seconds after which a group from a slow source is complete with its next item."""

_LARGE = 1 << 20
_ENTRY: Callable[[tuple[Any, ...]], StoredMessage] = partial(tuple.__new__, StoredMessage)


def are_objects(texts: Sequence[Any]) -> bool:
    """Return whether every text is a JSON object in UTF-8, by a fast test.

    The test also returns False for some objects that ``jsonio`` accepts, and if a text has 1 MiB or
    more, because parsing such a text takes much RAM.  The caller then checks each text alone.
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
    """Build one message from each row of the four columns, up to the end of the shortest column."""
    return list(map(_ENTRY, zip(ids, messages, marks, indexes, repeat(""), strict=False)))


def paginate(memory: Memory, entries: Iterable[StoredMessage], *, empty: bool) -> Iterator[Page]:
    """Yield the messages ``entries`` of a memory as pages.

    If there are no messages, yield one empty page if ``empty`` is True, and nothing if it is False.
    """
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
    """Collects the messages of one memory into pages.

    ``entries`` holds the messages of the current page.  ``offset`` is the number of messages on
    earlier pages.
    """

    def __init__(self, memory: Memory) -> None:
        self.entries: list[StoredMessage] = []
        self.offset = 0
        self.memory = memory
        self._size = 0

    def take(self, entries: list[StoredMessage]) -> Iterator[Page]:
        """Move all messages from the list into pages; yield the full pages.

        The last page is not yielded, even if it is full.
        """
        while entries:
            yield from self.full()
            room = PAGE_ENTRIES - len(self.entries)
            self._size += sum([len(entry.message) for entry in entries[:room]])
            self.entries += entries[:room]
            del entries[:room]

    def full(self) -> Iterator[Page]:
        """Yield the current page if it is full, and begin the next page."""
        if self._size >= PAGE_BYTES or len(self.entries) >= PAGE_ENTRIES:
            yield self.page(last=False)

    def page(self, *, last: bool) -> Page:
        """Return the collected messages as a page, and begin the next page.

        ``last`` is True for the last page of the memory.
        """
        page = Page(self.memory, self.entries, self.offset, last)
        self.offset += len(self.entries)
        self.entries, self._size = [], 0
        return page


class Group(Generic[T]):
    """Items collected for one bulk write.

    A group is full if it reaches its limit of bytes (``size``), of messages (``count``) or of items
    (``most``), or if its first item has waited for ``PATIENCE``.
    """

    def __init__(
        self, size: int = PAGE_BYTES, count: int = PAGE_ENTRIES, most: int = PAGE_ENTRIES
    ) -> None:
        self.items: list[T] = []
        self.size = 0
        self.count = 0
        self._limits = size, count, most
        self._begun = 0.0

    def add(self, item: T, size: int, count: int) -> bool:
        """Add an item; return whether the group is full.

        ``size`` is the number of bytes of the item, ``count`` its number of messages.
        """
        if not self.items:
            self._begun = time.monotonic()
        self.items.append(item)
        self.size += size
        self.count += count
        most_bytes, most_messages, most = self._limits
        enough = self.size >= most_bytes or self.count >= most_messages or len(self.items) >= most
        return enough or time.monotonic() - self._begun > PATIENCE

    def take(self) -> list[T]:
        """Return the collected items, and begin the next group."""
        items = self.items
        self.items, self.size, self.count = [], 0, 0
        return items


def grouped(
    items: Iterable[T],
    measure: Callable[[T], tuple[int, int]],
    size: int = PAGE_BYTES,
    most: int = PAGE_ENTRIES,
) -> Iterator[list[T]]:
    """Yield the items in lists of about ``size`` bytes, and at most ``most`` messages or items.

    ``measure`` returns the number of bytes and the number of messages of an item.
    """
    group: Group[T] = Group(size, most, most)
    for item in items:
        enough = group.add(item, *measure(item))
        del item  # the item may be large
        if enough:
            yield group.take()
    if group.items:
        yield group.take()


async def grouped_async(
    items: AsyncGenerator[T], measure: Callable[[T], tuple[int, int]], size: int = PAGE_BYTES
) -> AsyncGenerator[list[T]]:
    """Yield the items of an asynchronous generator in lists of about ``size`` bytes.

    ``measure`` returns the size of an item in bytes, and its number of messages.
    """
    group: Group[T] = Group(size)
    async for item in items:
        enough = group.add(item, *measure(item))
        del item
        if enough:
            yield group.take()
    if group.items:
        yield group.take()


def page_size(page: Page) -> tuple[int, int]:
    """Return the total bytes and the number of the messages of a page."""
    return sum([len(message.message) for message in page.messages]), len(page.messages)


def edit_size(edit: Edit) -> tuple[int, int]:
    """Return the total bytes of the messages of an edit, and the number of its changes plus one."""
    return sum([len(change.message) for change in edit.changes]), len(edit.changes) + 1


class Small(Struct, frozen=True):
    """The messages of a small memory; the first has the index ``offset`` in the memory."""

    memory: Memory
    entries: list[StoredMessage]
    offset: int


class Large(Struct):
    """The messages of a large memory, page by page; the first has the index ``offset`` in it.

    The caller of ``gather`` must read ``pages`` to the end before it takes the next item: both read
    from the same source.
    """

    memory: Memory
    offset: int
    pages: AsyncGenerator[Page]

    async def whole(self) -> Small:
        """Read the remaining pages; return their messages as one ``Small``."""
        messages = [message async for page in self.pages for message in page.messages]
        return Small(self.memory, messages, self.offset)

    async def drain(self) -> None:
        """Consume and drop the pages that were not consumed yet."""
        async for _ in self.pages:
            pass


async def gather(
    pages: AsyncGenerator[Page], size: int = PAGE_BYTES, messages: int = PAGE_ENTRIES
) -> AsyncGenerator[list[Small] | Large]:
    """Yield lists of small memories for one write each, and one ``Large`` for each large memory.

    A list ends when it reaches ``size`` bytes or ``messages`` messages.  A memory is large if it
    reaches one of these limits before its last page, or has more than ``LARGE_BYTES``.  The
    generator keeps no reference to a yielded page: one message may take most of the RAM in use.
    """
    batch: Group[Small] = Group(size, messages)
    held: list[Page] = []
    async for page in pages:
        held.append(page)
        del page
        added, count = page_size(held[0])
        while not held[-1].last and added < size and count < messages:
            if batch.items and batch.size + added >= size:
                yield batch.take()
            held.append(await anext(pages))
            more, others = page_size(held[-1])
            added += more
            count += others
        if held[-1].last and added <= LARGE_BYTES:
            if batch.add(_small(held), added, count):
                yield batch.take()
            continue
        if batch.items:
            yield batch.take()
        yield Large(held[0].memory, held[0].offset, _until_last(held, pages))
    if batch.items:
        yield batch.take()


def _small(pages: list[Page]) -> Small:
    """Join the pages of a memory, and empty the list ``pages``."""
    first = pages[0]
    messages = first.messages
    if len(pages) > 1:
        messages = [message for page in pages for message in page.messages]
    pages.clear()
    return Small(first.memory, messages, first.offset)


async def _until_last(held: list[Page], rest: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    held.reverse()
    while True:
        last = held[-1].last
        yield held.pop()
        if last:
            return
        if not held:
            held.append(await anext(rest))
