"""Memories of Redis in the making, and what is left out of them."""

from __future__ import annotations

from collections.abc import Iterator

from memctl.model import Entry, Page
from memctl.store import PAGE_BYTES, PAGE_ENTRIES
from memctl.stores._id_set import IdSet
from memctl.stores.redis.keys import decode
from memctl.stores.redis.look import Sight
from memctl.stores.redis.scan import Named

Found = Entry | bytes | str
"""A message; the id of one without payload; or the id of one whose payload is no message."""


class LeftOut:
    """Messages that a reading had to leave out."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._first = ""

    def add(self, id: str, named: Named, count: int = 1) -> None:
        """Counts some; ``id`` is that of the first."""
        self._first = self._first or f"{id!r} of {decode(named.base)!r}"
        self._count += count

    def lines(self) -> list[str]:
        """The warning, if there is any."""
        if not self._count:
            return []
        return [f"left out {self._count} {self._what} (the first: {self._first})"]


class Making:
    """A memory whose messages are coming in.

    ``entries`` are those that were not handed out, ``offset`` counts the others.
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.entries: list[Entry] = []
        self.offset = 0
        self.broken: list[str] = []
        self.missing = 0
        self.gone = IdSet()
        """The ids of the missing payloads."""
        self.first_gone = ""
        self._size = 0

    def fill(self, count: int, blocks: Iterator[list[Found]], held: list[Found]) -> Iterator[Page]:
        """Takes so many, first what is ``held``, and leaves there what is too much of a block.

        Hands out a page when there are enough for one and more are to come.
        """
        while count:
            if self._size >= PAGE_BYTES or len(self.entries) >= PAGE_ENTRIES:
                yield self._page(last=False)
            if not held:
                held += next(blocks)
            taken = min(count, len(held), PAGE_ENTRIES - len(self.entries))
            self._add(held[:taken])
            del held[:taken]
            count -= taken

    def rest(self) -> Iterator[Page]:
        """The last page, unless the memory has no message."""
        if self.entries or self.offset:
            yield self._page(last=True)

    def _add(self, found: list[Found]) -> None:
        entries = [one for one in found if isinstance(one, Entry)]
        self._size += sum([len(entry.message) for entry in entries])
        self.entries += entries
        if len(entries) == len(found):
            return
        self.broken += [one for one in found if isinstance(one, str)]
        gone = [one for one in found if isinstance(one, bytes)]
        if gone and not self.missing:
            self.first_gone = decode(gone[0])
        self.missing += len(gone)
        self.gone.add(gone)

    def _page(self, *, last: bool) -> Page:
        page = Page(self.sight.memory, self.entries, self.offset, last)
        self.offset += len(self.entries)
        self.entries, self._size = [], 0
        return page
