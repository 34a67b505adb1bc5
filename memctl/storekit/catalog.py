"""Catalog entries of memories, computed from their messages."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import islice

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.live import understood
from memctl.dialects.view import Dialect
from memctl.model import Memory, MemoryInfo, Page, StoredMessage

_EXACT = 1 << 16
_PARTS = 256


async def catalog(
    pages: AsyncGenerator[Page], dialect: Dialect = AGENTSCOPE1, *, repeated: bool = False
) -> AsyncGenerator[MemoryInfo]:
    """Yield a ``MemoryInfo`` for each memory of the pages.

    ``dialect`` is the dialect of the messages.  With ``repeated``, repeated ids are counted; else
    ``MemoryInfo.repeated`` is None.
    """
    info: MemoryInfo | None = None
    ids = IdSet()
    if dialect.leaves_out:
        pages = understood(pages, dialect)
    async with aclosing(pages):
        async for page in pages:
            if page.offset == 0 or info is None:
                memory = page.memory
                has_summary = None if memory.summary is None else bool(memory.summary)
                info = MemoryInfo(memory.key, summary=has_summary, ttl=memory.ttl)
                ids = IdSet()
            count(info, page.messages, dialect)
            if repeated:
                ids.add(entry.id for entry in page.messages)
            if page.last:
                info.repeated = ids.duplicates if repeated else None
                info.unread = dict(Counter(page.unread.values()))
                yield info
                info = None


def span(total: int, start: int, count: int) -> range:
    """Return the indexes of the messages in a window of a memory; see ``Store.window``.

    ``total`` is the number of messages of the memory.
    """
    first = max(total + start, 0) if start < 0 else min(start, total)
    return range(first, min(first + count, total))


async def window(pages: AsyncGenerator[Page], start: int, count: int) -> Page | None:
    """Return at most ``count`` messages of the pages of one memory; see ``Store.window``."""
    memory: Memory | None = None
    kept: deque[StoredMessage] = deque(maxlen=-start if start < 0 else None)
    total = 0
    async with aclosing(pages):
        async for page in pages:
            memory = page.memory
            for entry in page.messages:
                if start < 0 or start <= total < start + count:
                    kept.append(entry)
                total += 1
    if memory is None:
        return None
    places = span(total, start, count)
    found = list(islice(kept, len(places)))
    return Page(memory, found, places.start, last=places.stop == total)


def count(
    info: MemoryInfo, messages: Iterable[StoredMessage], dialect: Dialect = AGENTSCOPE1
) -> None:
    """Add the messages to the counts, the size, and the first and last times in ``info``."""
    marks, roles, role_and_time = info.marks, info.roles, dialect.role_and_time
    first, last = info.first, info.last
    number = size = 0
    for _, text, marked, *_ in messages:
        number += 1
        size += len(text)
        for mark in marked:
            marks[mark] = marks.get(mark, 0) + 1
        role, time = role_and_time(text)
        if role is not None:
            roles[role] = roles.get(role, 0) + 1
        if time is not None:
            if not first or time < first:
                first = time
            if not last or time > last:
                last = time
    info.messages += number
    info.bytes += size
    info.first, info.last = first, last


class IdSet:
    """A set of message ids, either all text or all bytes, that counts repeated ids.

    The set keeps up to 65,536 ids exactly.  A larger set keeps a 64-bit hash of each id (8 MB for a
    million ids), so its count may be wrong.  The odds that two of a million ids have the same hash
    are 1 : 36,000,000.
    """

    def __init__(self) -> None:
        self._exact: set[str | bytes] | None = set()
        self._parts: list[array[int]] = []
        self._added = 0
        self._sorted = False

    def add(self, ids: Iterable[str | bytes]) -> None:
        """Add ids; ``duplicates`` counts each repeated id."""
        if self._exact is None:
            self._added += self._add_digests(ids)
            return
        for id in ids:
            self._exact.add(id)
            self._added += 1
        if len(self._exact) > _EXACT:
            self._parts = [array("q") for _ in range(_PARTS)]
            self._add_digests(self._exact)
            self._exact = None

    def _add_digests(self, ids: Iterable[str | bytes]) -> int:
        parts = self._parts
        count = 0
        for id in ids:
            digest = hash(id)
            parts[digest % _PARTS].append(digest)
            count += 1
        self._sorted = False
        return count

    def _sort(self) -> None:
        if not self._sorted:
            self._parts = [array("q", sorted(set(part))) for part in self._parts]
            self._sorted = True

    def __contains__(self, id: str | bytes) -> bool:
        if self._exact is not None:
            return id in self._exact
        self._sort()
        digest = hash(id)
        part = self._parts[digest % _PARTS]
        at = bisect_left(part, digest)
        return at < len(part) and part[at] == digest

    @property
    def duplicates(self) -> int:
        """The number of added ids that had been added before."""
        if self._exact is not None:
            return self._added - len(self._exact)
        self._sort()
        return self._added - sum(map(len, self._parts))
