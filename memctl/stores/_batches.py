"""Incoming pages, gathered so that many small memories can share one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from memctl.model import Entry, Memory, Page
from memctl.store import PAGE_BYTES, PAGE_ENTRIES

LARGE_BYTES = 4 * PAGE_BYTES
"""A page above this size is written by itself."""


@dataclass(frozen=True, slots=True)
class Small:
    """A memory, or a tail of one, that came in one page."""

    memory: Memory
    entries: list[Entry]
    offset: int


@dataclass(slots=True)
class Large:
    """A memory that comes in many pages.  ``pages`` must be consumed to the end."""

    memory: Memory
    offset: int
    pages: AsyncIterator[Page]


async def gather(pages: AsyncIterator[Page]) -> AsyncIterator[list[Small] | Large]:
    """Lists of small memories of about a page together, and large memories one by one.

    A page is let go of before it is handed on: one message may be most of the memory in use.
    """
    batch: list[Small] = []
    size = messages = 0
    async for page in pages:
        added = sum(len(entry.message) for entry in page.entries)
        if not page.last or added > LARGE_BYTES:
            if batch:
                yield batch
                batch, size, messages = [], 0, 0
            large = Large(page.memory, page.offset, _until_last([page], pages))
            del page
            yield large
            continue
        batch.append(Small(page.memory, page.entries, page.offset))
        messages += len(page.entries)
        size += added
        if size >= PAGE_BYTES or messages >= PAGE_ENTRIES or len(batch) >= PAGE_ENTRIES:
            yield batch
            batch, size, messages = [], 0, 0
    if batch:
        yield batch


async def _until_last(held: list[Page], rest: AsyncIterator[Page]) -> AsyncIterator[Page]:
    last = held[0].last
    yield held.pop()
    while not last:
        held.append(await anext(rest))
        last = held[0].last
        yield held.pop()
