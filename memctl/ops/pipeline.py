"""Read and write at the same time, with a short queue between them, or with several writers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from zlib import crc32

from memctl.concurrency import Queue
from memctl.model import PAGE_BYTES, Page, WriteMode, WriteResult
from memctl.store import Store
from memctl.storekit.batching import Group, page_size

_ROOM = 2 * PAGE_BYTES
"""The bytes of messages that may wait for a writer; a larger page waits alone."""


async def write(
    target: Store, pages: AsyncGenerator[Page], mode: WriteMode, jobs: int = 1
) -> AsyncGenerator[WriteResult]:
    """Write the pages while the next pages are read.

    If ``jobs`` is above one and the target has ``Features.parallel``, several writers share the
    memories by session: each session has one writer.

    Raises:
        MemctlError: of the source or the target; memories with a result are durable.
    """
    writers = jobs if target.features.parallel else 1
    parcels = [_Parcels() for _ in range(writers)]
    results: Queue[WriteResult] = Queue()
    tasks = [asyncio.create_task(_pump(pages, parcels))]
    tasks += [asyncio.create_task(_work(target, one, mode, results)) for one in parcels]
    try:
        for _ in parcels:
            async for result in results.items():
                yield result
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Parcels:
    """Pages on their way to one writer, in batches of small pages to save turns of the queue.

    A writer with an empty queue gets a page at once.
    """

    def __init__(self) -> None:
        self.queue: Queue[list[Page]] = Queue(_ROOM)
        self._pages: Group[Page] = Group(PAGE_BYTES // 2)

    async def add(self, page: Page) -> None:
        """Send a page, at once or together with the next pages."""
        if self._pages.add(page, *page_size(page)) or self.queue.empty:
            await self.send()

    async def send(self) -> None:
        """Send the collected pages."""
        size = self._pages.size
        if pages := self._pages.take():
            await self.queue.put(pages, size)

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the sent pages."""
        parcels = self.queue.items()
        parcel: list[Page] = []
        while True:
            try:
                parcel = await anext(parcels)
            except StopAsyncIteration:
                return
            parcel.reverse()
            while parcel:
                yield parcel.pop()


async def _pump(pages: AsyncGenerator[Page], parcels: list[_Parcels]) -> None:
    failure: Exception | None = None
    try:
        async with aclosing(pages):
            async for page in pages:
                session = page.memory.key.session.encode("utf-8", "surrogatepass")
                await parcels[crc32(session) % len(parcels)].add(page)
                del page  # free a huge message before the next read
        for one in parcels:
            await one.send()
    except Exception as error:  # noqa: BLE001 - raised again by the writers
        failure = error
    for one in parcels:
        await one.queue.end(failure)


async def _work(
    target: Store, parcels: _Parcels, mode: WriteMode, results: Queue[WriteResult]
) -> None:
    failure: Exception | None = None
    try:
        async with aclosing(target.write(parcels.pages(), mode)) as written:
            async for result in written:
                await results.put(result)
    except Exception as error:  # noqa: BLE001 - raised again by the caller of write
        failure = error
    await results.end(failure)
