"""Incoming pages, gathered so that many small memories can share one transaction."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from memctl.model import Entry, Memory, Page
from memctl.store import PAGE_BYTES, PAGE_ENTRIES

LARGE_BYTES = 4 * PAGE_BYTES
"""A page above this size is written by itself."""

PATIENCE = 1.0
"""Seconds after which what has been gathered of a slow source is handed on with the next page."""


@dataclass(frozen=True, slots=True)
class Small:
    """A memory, or a tail of one, that came in few pages."""

    memory: Memory
    entries: list[Entry]
    offset: int


@dataclass(slots=True)
class Large:
    """A memory that comes in many pages.  ``pages`` must be consumed to the end."""

    memory: Memory
    offset: int
    pages: AsyncIterator[Page]


async def gather(
    pages: AsyncIterator[Page], size: int = PAGE_BYTES, messages: int = PAGE_ENTRIES
) -> AsyncIterator[list[Small] | Large]:
    """Lists of small memories of about so much together, and large memories one by one.

    A memory in several pages is small while they fit into that together.  A page is let go of
    before it is handed on: one message may be most of the memory in use.
    """
    batch = _Batch()
    held: list[Page] = []
    async for page in pages:
        held.append(page)
        del page
        added, count = _size(held[0]), len(held[0].entries)
        while not held[-1].last and added < size and count < messages:
            if batch.smalls and batch.size + added >= size:
                yield batch.take()
            held.append(await anext(pages))
            added += _size(held[-1])
            count += len(held[-1].entries)
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
        """Takes the pages of a memory, which are no longer in the list then."""
        if not self.smalls:
            self._begun = time.monotonic()
        first = pages[0]
        entries = first.entries
        if len(pages) > 1:
            entries = [entry for page in pages for entry in page.entries]
        self.smalls.append(Small(first.memory, entries, first.offset))
        self.size += size
        self.messages += messages
        pages.clear()

    def waited(self) -> bool:
        """Whether these are enough for other reasons than their size."""
        return len(self.smalls) >= PAGE_ENTRIES or time.monotonic() - self._begun > PATIENCE

    def take(self) -> list[Small]:
        """What was gathered; the next begins."""
        smalls = self.smalls
        self.smalls, self.size, self.messages = [], 0, 0
        return smalls


def _size(page: Page) -> int:
    return sum([len(entry.message) for entry in page.entries])


async def _until_last(held: list[Page], rest: AsyncIterator[Page]) -> AsyncIterator[Page]:
    held.reverse()
    while True:
        last = held[-1].last
        yield held.pop()
        if last:
            return
        if not held:
            held.append(await anext(rest))
