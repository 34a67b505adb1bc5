"""One read of a store, memory by memory, for operations that gather something of each memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from memctl.dialects.live import understood
from memctl.model import Memory, Page
from memctl.ops.report import Progress, SilentProgress
from memctl.selection import Selection
from memctl.store import Store


class Gatherer(Protocol):
    """Gathers something of one memory while its pages pass."""

    def take(self, page: Page) -> None:
        """Take the next page of the memory."""


T = TypeVar("T", bound=Gatherer)


async def gather(
    store: Store, where: Selection, begin: Callable[[Memory], T], progress: Progress | None = None
) -> AsyncGenerator[T]:
    """Yield what ``begin`` returns for each selected memory, after it took all pages.

    The store is read once.  The pages have ``Page.unread``.

    Raises:
        MemctlError: as ``Store.read``.
    """
    progress = progress or SilentProgress()
    memory: T | None = None
    async with aclosing(understood(store.read(where), store.dialect)) as pages:
        async for page in pages:
            if page.offset == 0 or memory is None:
                memory = begin(page.memory)
            memory.take(page)
            progress.advance(messages=len(page.messages))
            if page.last:
                yield memory
                memory = None
                progress.advance(memories=1)
            del page  # free a large page before the next read
