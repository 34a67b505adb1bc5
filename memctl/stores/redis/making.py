"""Memories of Redis in the making, and what is left out of them."""

from __future__ import annotations

from collections.abc import Iterator

from memctl.model import MemoryKey, Page, StoredMessage
from memctl.stores.batching import PageBuilder
from memctl.stores.catalog import IdSet
from memctl.stores.redis.keys import decode
from memctl.stores.redis.look import Sight
from memctl.stores.redis.scan import Named

EXAMPLES = 3
"""How many ids are kept of what is left out of a memory."""

Found = StoredMessage | bytes | str
"""A message; the id of one without payload; or the id of one whose payload is no message."""


class LeftOut:
    """Messages that a reading had to leave out."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._first = ""
        self.by_memory: dict[MemoryKey, tuple[int, list[str]]] = {}
        """How many each memory has, and some of their ids."""

    def add(self, id: str, named: Named, count: int = 1) -> None:
        """Counts some; ``id`` is that of the first."""
        self._first = self._first or f"{id!r} of {decode(named.base)!r}"
        self._count += count
        before, ids = self.by_memory.get(named.key, (0, []))
        self.by_memory[named.key] = (before + count, [*ids, id][:EXAMPLES])

    def lines(self) -> list[str]:
        """The warning, if there is any."""
        if not self._count:
            return []
        return [f"left out {self._count} {self._what} (the first: {self._first})"]


class Making:
    """A memory whose messages are coming in."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.filling = PageBuilder(sight.memory)
        self.broken: list[str] = []
        self.missing = 0
        self.gone = IdSet()
        """The ids of the missing payloads."""
        self.first_gone = ""

    def fill(self, count: int, blocks: Iterator[list[Found]], held: list[Found]) -> Iterator[Page]:
        """Takes so many, first what is ``held``, and leaves there what is too much of a block.

        Hands out a page when there are enough for one and more are to come.
        """
        while count:
            if not held:
                yield from self.filling.full()
                held += next(blocks)
            taken = min(count, len(held))
            count -= taken
            some = held[:taken]
            del held[:taken]
            yield from self.filling.take(self._sorted(some))

    def rest(self) -> Iterator[Page]:
        """The last page, unless the memory has no message."""
        if self.filling.entries or self.filling.offset:
            yield self.filling.page(last=True)

    def _sorted(self, found: list[Found]) -> list[StoredMessage]:
        """The messages, and nothing left of what was found; the rest is noted."""
        entries = [one for one in found if isinstance(one, StoredMessage)]
        if len(entries) < len(found):
            self.broken += [one for one in found if isinstance(one, str)]
            gone = [one for one in found if isinstance(one, bytes)]
            if gone and not self.missing:
                self.first_gone = decode(gone[0])
            self.missing += len(gone)
            self.gone.add(gone)
        found.clear()
        return entries
