"""Incoming pages, gathered so that many small memories can share one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from memctl.model import Entry, Memory, Page
from memctl.store import PAGE_BYTES, PAGE_ENTRIES


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
    """Lists of small memories of about a page together, and large memories one by one."""
    batch: list[Small] = []
    size = messages = 0
    async for page in pages:
        if not page.last:
            if batch:
                yield batch
                batch, size, messages = [], 0, 0
            yield Large(page.memory, page.offset, _until_last(page, pages))
            continue
        batch.append(Small(page.memory, page.entries, page.offset))
        messages += len(page.entries)
        size += sum(len(entry.message) for entry in page.entries)
        if size >= PAGE_BYTES or messages >= PAGE_ENTRIES or len(batch) >= PAGE_ENTRIES:
            yield batch
            batch, size, messages = [], 0, 0
    if batch:
        yield batch


async def _until_last(first: Page, rest: AsyncIterator[Page]) -> AsyncIterator[Page]:
    yield first
    if not first.last:
        async for page in rest:
            yield page
            if page.last:
                return
