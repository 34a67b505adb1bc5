"""The selected messages, each with its place in the memory: what is to be changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from itertools import repeat

from memctl.model import Page
from memctl.selection import Selection
from memctl.store import Store

PageObserver = Callable[[Page], None]


def select_with_anchors(
    store: Store, where: Selection, see: PageObserver | None = None
) -> AsyncGenerator[Page]:
    """Yield the pages of ``Store.read``, with ``Page.anchors`` wherever messages stay.

    ``see`` is shown every page of the memories before what is selected of it, where ``reads_all``.

    Raises:
        MemctlError: as ``Store.read``.
    """
    if reads_all(store, where):
        pages = store.read(whole_memories(where))
        return where.apply(_shown(pages, see) if see else pages, store.dialect)
    return store.read(where) if where.whole else store.read_with_anchors(where)


def reads_all(store: Store, where: Selection) -> bool:
    """Return whether all messages of the memories are read to choose some."""
    return not where.whole and (where.spare is not None or not store.features.cheap_positions)


def places(store: Store, page: Page) -> Iterable[int | None]:
    """Return ``Change.at`` of the messages of a page; None where no two can have one id."""
    return page.places if store.features.duplicate_ids else repeat(None, len(page.messages))


def whole_memories(where: Selection) -> Selection:
    """The memories that a selection is about, whole."""
    return Selection(where.users, where.sessions, where.parts, where.keys, where.done)


async def _shown(pages: AsyncGenerator[Page], see: PageObserver) -> AsyncGenerator[Page]:
    async with aclosing(pages):
        async for page in pages:
            see(page)
            yield page
            del page  # not kept while the next one is read: it may be large
