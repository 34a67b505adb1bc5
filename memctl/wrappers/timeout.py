"""A store that counts as lost when it keeps silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import TypeVar

from memctl.errors import Lost
from memctl.model import Edit, MemoryKey, Page, StoredMessage, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Matches, OpenMode, Store
from memctl.wrappers.wrapper import StoreWrapper

T = TypeVar("T")

CLOSING = 10.0
"""Seconds that a store has to say goodbye; a server that hangs must not hold the run."""


class Timeout(StoreWrapper):
    """A wrapper that limits the seconds to wait for each page read, and for each to be taken."""

    def __init__(self, store: Store, seconds: float) -> None:
        super().__init__(store)
        self._seconds = seconds

    async def open(self, mode: OpenMode) -> None:
        with self._errors():
            async with asyncio.timeout(self._seconds):
                await super().open(mode)

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

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._watched(super().read(where))) as pages:
            async for page in pages:
                yield page

    async def outline(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._watched(super().outline(where))) as pages:
            async for page in pages:
                yield page

    async def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self._watched(super().read_with_anchors(where))) as pages:
            async for page in pages:
                yield page

    async def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        async with aclosing(self._watched(super().find_messages(where, matches))) as found:
            async for one in found:
                yield one

    async def _watched(self, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
        async with aclosing(items):
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
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with aclosing(self._timed(pages, partial(super().write, mode=mode))) as results:
            async for result in results:
                yield result

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with aclosing(self._timed(edits, super().edit)) as results:
            async for result in results:
                yield result

    async def _timed(
        self,
        items: AsyncGenerator[T],
        work: Callable[[AsyncGenerator[T]], AsyncGenerator[WriteResult]],
    ) -> AsyncGenerator[WriteResult]:
        """Yield the results of the work, which has its time for each item."""
        loop = asyncio.get_running_loop()
        with self._errors():
            async with asyncio.timeout(self._seconds) as limit:

                async def taken() -> AsyncGenerator[T]:
                    """The items; the clock of the store stands still while the next is awaited."""
                    async with aclosing(items):
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

                async with aclosing(work(taken())) as results:
                    async for result in results:
                        limit.reschedule(None)
                        yield result
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
