"""New messages of a store, as they come."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from msgspec import structs

from memctl.errors import UsageError
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.ops.retry import undamaged_pages
from memctl.ops.select import select_with_places, whole_memories
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store

_ENDS = 16
"""The number of last messages of a memory that are known again, though others are deleted."""
_PAGE = 100


class _Seen(NamedTuple):
    """The state of a memory: its number of messages, and hashes of the last ids."""

    messages: int = 0
    ends: array[int] = array("q")

    def grown(self, messages: Sequence[StoredMessage], offset: int) -> _Seen:
        """Return the state after ``messages``, of which ``offset`` are before."""
        ends = self.ends + array("q", [hash(entry.id) for entry in messages[-_ENDS:]])
        return _Seen(offset + len(messages), ends[-_ENDS:])


class Tail:
    """Tells new messages of a store from those that it had at the last look."""

    def __init__(self, store: Store, where: Selection) -> None:
        """``where`` selects messages; its ``last`` counts only for ``newest``.

        Raises:
            UsageError: the store cannot tell quickly what is new.
        """
        features = store.features
        quick = features.cheap_outline or features.cheap_windows
        if features.commits_at_end or not quick:
            raise UsageError(
                f"{store.label} cannot tell quickly what is new",
                "show its newest messages: memctl inspect STORE --messages --last 20",
            )
        self._store = store
        self._where = where
        self._seen: dict[MemoryKey, _Seen] = {}
        self._shown: tuple[MemoryKey | None, int] = None, 0
        """The memory of the last page, and how many messages of it were yielded in a row."""

    async def pages(self, stop: Stop, interval: float) -> AsyncGenerator[Page]:
        """Yield the newest messages, if ``where.last`` is set, and then new ones until ``stop``.

        The store is read every ``interval`` seconds.  Pages of one memory that follow one another
        have offsets as if they were read at once.

        Raises:
            MemctlError: as ``Store.read``.
        """
        self._seen = await self._states()
        async with aclosing(self._newest()) as pages:
            async for page in pages:
                yield self._counted(page)
        chosen = replace(self._where, last=None)
        async with aclosing(stop.rounds(interval)) as rounds:
            async for asked in rounds:
                async with aclosing(self._new()) as pages:
                    async for page in pages:
                        async with aclosing(chosen.apply(_only(page), self._store.dialect)) as some:
                            async for one in some:
                                yield self._counted(one)
                if asked:
                    return

    async def _newest(self) -> AsyncGenerator[Page]:
        if self._where.last is None:
            return
        found = undamaged_pages(partial(select_with_places, self._store), self._where)
        async with aclosing(found) as pages:
            async for page in pages:
                known = self._seen.get(page.memory.key, _Seen()).messages
                number = sum(place < known for place in page.places)
                old, places = page.messages[:number], list(page.places[:number])
                yield structs.replace(page, messages=old, anchors=None, indexes=places)

    def _counted(self, page: Page) -> Page:
        key, before = page.memory.key, self._shown
        offset = before[1] if before[0] == key else 0
        self._shown = key, offset + len(page.messages)
        return structs.replace(page, offset=offset)

    async def _states(self) -> dict[MemoryKey, _Seen]:
        where, found = whole_memories(self._where), dict[MemoryKey, _Seen]()
        if self._store.features.cheap_outline:
            async with aclosing(self._store.outline(where)) as pages:
                async for page in pages:
                    before = found.get(page.memory.key, _Seen()) if page.offset else _Seen()
                    found[page.memory.key] = before.grown(page.messages, page.offset)
            return found
        async with aclosing(self._store.list_keys(where)) as keys:
            async for key in keys:
                if (end := await self._store.window(key, -_ENDS, _ENDS)) is not None:
                    found[key] = _Seen().grown(end.messages, end.offset)
        return found

    async def _new(self) -> AsyncGenerator[Page]:
        """Yield the messages that have come since the last look."""
        found = await self._states()
        for key in self._seen.keys() - found.keys():
            del self._seen[key]
        for key, now in found.items():
            seen = self._seen.get(key, _Seen())
            if seen == now:
                continue
            at = await self._first_new(key, seen)
            async with aclosing(self._windows(key, at)) as pages:
                async for page in pages:
                    seen, at = seen.grown(page.messages, page.offset), page.offset
                    at += len(page.messages)
                    yield page
            self._seen[key] = now if at == now.messages else seen

    async def _first_new(self, key: MemoryKey, seen: _Seen) -> int:
        """Return the index of the first message after those that were ``seen``."""
        end = seen.messages - len(seen.ends)
        page = await self._store.window(key, end, len(seen.ends)) if seen.ends else None
        if page is not None and _Seen().grown(page.messages, page.offset) == seen:
            return seen.messages
        for start in (max(0, end - _PAGE // 2), 0):  # deletions move messages to the front
            known = 0
            async with aclosing(self._windows(key, start)) as pages:
                async for page in pages:
                    for at, entry in enumerate(page.messages, page.offset + 1):
                        known = at if hash(entry.id) in seen.ends else known
            if known:
                return known
        return 0

    async def _windows(self, key: MemoryKey, at: int) -> AsyncGenerator[Page]:
        while (page := await self._store.window(key, at, _PAGE)) is not None and page.messages:
            yield page
            at = page.offset + len(page.messages)


async def _only(page: Page) -> AsyncGenerator[Page]:
    """Yield a window of a memory as if it were the whole memory."""
    yield structs.replace(page, offset=0, last=True, indexes=list(page.places))
