"""The catalogue computed from the messages, for stores that keep no counts of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

from memctl import codec
from memctl.model import Entry, MemoryInfo, Page
from memctl.streams import closing


async def catalogue(pages: AsyncIterator[Page]) -> AsyncIterator[MemoryInfo]:
    """One MemoryInfo for each memory of the pages; ``repeated`` is left unknown."""
    info: MemoryInfo | None = None
    async with closing(pages):
        async for page in pages:
            if page.offset == 0 or info is None:
                memory = page.memory
                has_summary = None if memory.summary is None else bool(memory.summary)
                info = MemoryInfo(memory.key, summary=has_summary, ttl=memory.ttl)
            for entry in page.entries:
                count(info, entry)
            if page.last:
                yield info
                info = None


def count(info: MemoryInfo, entry: Entry) -> None:
    """Adds one message to the counts of its memory."""
    message = codec.outline(entry.message)
    info.messages += 1
    info.bytes += len(entry.message)
    for mark in entry.marks:
        info.marks[mark] = info.marks.get(mark, 0) + 1
    role, timestamp = message.get("role"), message.get("timestamp")
    if isinstance(role, str):
        info.roles[role] = info.roles.get(role, 0) + 1
    if isinstance(timestamp, str):
        info.first = min(info.first or timestamp, timestamp)
        info.last = max(info.last or timestamp, timestamp)
