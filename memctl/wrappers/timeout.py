"""A store that counts as lost when it keeps silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from memctl.errors import Lost
from memctl.model import Edit, Entry, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Matches, Store
from memctl.streams import closing
from memctl.wrappers.around import Around

T = TypeVar("T")

CLOSING = 10.0
"""Seconds that a store has to say goodbye; a server that hangs must not hold the run."""


class Timeout(Around):
    """Waits at most so many seconds for each page that is read, and for each to be taken."""

    def __init__(self, store: Store, seconds: float) -> None:
        super().__init__(store)
        self._seconds = seconds

    async def open(self) -> None:
        with self._errors():
            async with asyncio.timeout(self._seconds):
                await super().open()

    async def close(self) -> None:
        # What was written is durable, and a connection that cannot be closed ends with the process:
        # neither is a reason to fail, or to hide why the run failed.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await super().close()

    async def is_empty(self) -> bool:
        with self._errors():
            async with asyncio.timeout(self._seconds):
                return await super().is_empty()

    async def read(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._watched(super().read(where))) as pages:
            async for page in pages:
                yield page

    async def outlines(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._watched(super().outlines(where))) as pages:
            async for page in pages:
                yield page

    async def pick(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._watched(super().pick(where))) as pages:
            async for page in pages:
                yield page

    async def search(
        self, where: Selection, matches: Matches
    ) -> AsyncIterator[tuple[MemoryKey, Entry]]:
        async with closing(self._watched(super().search(where, matches))) as found:
            async for one in found:
                yield one

    async def _watched(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        async with closing(items):
            while True:
                with self._errors():
                    async with asyncio.timeout(self._seconds):
                        try:
                            item = await anext(items)
                        except StopAsyncIteration:
                            return
                yield item
                del item  # not kept while the next one is read: it may be large

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        async with closing(self._timed(pages, partial(super().write, mode=mode))) as tallies:
            async for tally in tallies:
                yield tally

    async def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        async with closing(self._timed(edits, super().edit)) as tallies:
            async for tally in tallies:
                yield tally

    async def _timed(
        self, items: AsyncIterator[T], work: Callable[[AsyncIterator[T]], AsyncIterator[Tally]]
    ) -> AsyncIterator[Tally]:
        """What the work makes of the items, for each of which it has its time."""
        loop = asyncio.get_running_loop()
        with self._errors():
            async with asyncio.timeout(self._seconds) as limit:

                async def taken() -> AsyncIterator[T]:
                    """The items; the clock of the store stands still while the next is awaited."""
                    async with closing(items):
                        while True:
                            limit.reschedule(None)
                            try:
                                item = await anext(items)
                            except StopAsyncIteration:
                                return
                            finally:
                                limit.reschedule(loop.time() + self._seconds)
                            yield item
                            del item

                async with closing(work(taken())) as tallies:
                    async for tally in tallies:
                        limit.reschedule(None)
                        yield tally
                        limit.reschedule(loop.time() + self._seconds)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise Lost(
                f"{self.label} has not answered for {self._seconds:g} seconds",
                "--timeout sets how long to wait; what was reported as written is whole",
            ) from error
