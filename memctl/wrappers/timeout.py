"""A store that counts as lost when it keeps silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from memctl.errors import Lost
from memctl.model import Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing
from memctl.wrappers.around import Around

CLOSING = 10.0
"""Seconds that a store has to say goodbye; a server that hangs must not hold the run."""


class Timeout(Around):
    """Waits at most so many seconds for each page that is read, and for each page to be taken."""

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

    async def _watched(self, pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
        async with closing(pages):
            while True:
                with self._errors():
                    async with asyncio.timeout(self._seconds):
                        try:
                            page = await anext(pages)
                        except StopAsyncIteration:
                            return
                yield page
                del page  # not kept while the next one is read: it may be large

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        loop = asyncio.get_running_loop()
        with self._errors():
            async with asyncio.timeout(self._seconds) as limit:

                async def taken() -> AsyncIterator[Page]:
                    """The pages; the clock of the store stands still while the next is awaited."""
                    async with closing(pages):
                        while True:
                            limit.reschedule(None)
                            try:
                                page = await anext(pages)
                            except StopAsyncIteration:
                                return
                            finally:
                                limit.reschedule(loop.time() + self._seconds)
                            yield page
                            del page

                async with closing(super().write(taken(), mode)) as tallies:
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
