"""Write pages to a store while the next pages are read, with one writer or several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from zlib import crc32

from memctl.machine.concurrency import Queue
from memctl.model import PAGE_BYTES, Page, WriteMode, WriteResult
from memctl.store import Store
from memctl.storekit.batching import Group, page_size

_ROOM = 2 * PAGE_BYTES
"""The bytes of messages that may wait for a writer; a larger page waits alone."""


async def write(
    target: Store, pages: AsyncGenerator[Page], mode: WriteMode, jobs: int = 1
) -> AsyncGenerator[WriteResult]:
    """Write the pages to the target while the next pages are read; yield the results.

    ``jobs`` is the number of writers; a target without ``Features.parallel`` has only one.  All
    memories of a session have the same writer.

    Raises:
        MemctlError: reading or writing failed; memories with a yielded result are durable.
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
    """The queue of pages for one writer; small pages are sent in batches.

    If the queue is empty, a page is sent alone at once.
    """

    def __init__(self) -> None:
        self.queue: Queue[list[Page]] = Queue(_ROOM)
        self._pages: Group[Page] = Group(PAGE_BYTES // 2)

    async def add(self, page: Page) -> None:
        """Put a page into the queue, at once or together with the next pages."""
        if self._pages.add(page, *page_size(page)) or self.queue.empty:
            await self.send()

    async def send(self) -> None:
        """Put the collected pages into the queue."""
        size = self._pages.size
        if pages := self._pages.take():
            await self.queue.put(pages, size)

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the pages in the queue, for the writer, until the queue ends."""
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
