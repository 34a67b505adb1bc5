"""The selected messages, each with its place in the memory: what is to be changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from memctl.model import Entry, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing


def chosen(store: Store, where: Selection) -> AsyncIterator[Page]:
    """What ``Store.read`` gives, with ``Page.after`` wherever messages stay.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if where.spare is not None:
        # What is newest is to be told by all messages, so the store must not leave any out.
        return where.apply(store.read(scope(where)))
    if where.whole or not store.sifts:
        return store.read(where)
    return _placed(store, where)


def scope(where: Selection) -> Selection:
    """The memories that a selection is about, whole."""
    return Selection(where.users, where.sessions, where.parts, where.keys, where.done)


async def _placed(store: Store, where: Selection) -> AsyncIterator[Page]:
    """The selected messages beside the outlines of their memories, which come in the same order."""
    async with (
        closing(store.outlines(scope(where))) as outlines,
        closing(store.read(where)) as pages,
    ):
        trail = _Trail(outlines)
        async for page in pages:
            yield replace(page, after=await trail.follow(page))


class _Trail:
    """The outlines, followed from one selected message to the next, by session, user and index.

    What was added or deleted since they were begun does not mislead it.
    """

    def __init__(self, outlines: AsyncIterator[Page]) -> None:
        self._outlines = outlines
        self._page: Page | None = None
        self._ended = False
        self._at = 0
        self._kept: str | None = None

    async def follow(self, page: Page) -> list[str | None]:
        """For each of these messages of a memory, the last one before it that is not among them."""
        after = []
        wanted = _order(page.memory.key)
        for entry in page.entries:
            while await self._reach(wanted):
                assert self._page is not None
                here = self._page.entries[self._at]
                if here.id != entry.id and _position(here) >= _position(entry):
                    break
                self._at += 1
                if here.id == entry.id:
                    break
                self._kept = here.id
            after.append(self._kept)
        return after

    async def _reach(self, wanted: tuple[bytes, bytes]) -> bool:
        """Whether there is a next message of the memory; what is before it is passed over."""
        while not self._ended:
            if self._page is not None:
                there = _order(self._page.memory.key)
                if there > wanted:
                    self._kept = None
                    return False
                if there == wanted and self._at < len(self._page.entries):
                    return True
            self._page, self._at = await anext(self._outlines, None), 0
            self._ended = self._page is None
            if self._page is not None and self._page.offset == 0:
                self._kept = None
        return False


def _order(key: MemoryKey) -> tuple[bytes, bytes]:
    """How SQL stores order memories: by bytes, the session first."""
    session, user = (name.encode("utf-8", "surrogatepass") for name in (key.session, key.user))
    return session, user


def _position(entry: Entry) -> tuple[int, bytes]:
    return entry.index or 0, entry.id.encode("utf-8", "surrogatepass")
