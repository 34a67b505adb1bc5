"""Reading and writing at the same time: a short queue between them, or several writers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import cast
from zlib import crc32

from memctl.model import PAGE_BYTES, Page, WriteMode, WriteResult
from memctl.store import Store
from memctl.stores.batching import Group, page_size

_END = object()
_ROOM = 2 * PAGE_BYTES
"""Bytes of messages that may wait for a writer; a larger page waits alone."""


async def write(
    target: Store, pages: AsyncGenerator[Page], mode: WriteMode, jobs: int = 1
) -> AsyncGenerator[WriteResult]:
    """Write the pages while the next ones are read.

    With ``jobs`` above one, and a target to which that is of use, memories are dealt to several
    writers by their session, so that what shares a session has one writer.

    Raises:
        MemctlError: of the source or the target; what has a result is durable.
    """
    writers = jobs if target.features.parallel else 1
    parcels = [_Parcels() for _ in range(writers)]
    results = _Queue()
    tasks = [asyncio.create_task(_pump(pages, parcels))]
    tasks += [asyncio.create_task(_work(target, one.queue, mode, results)) for one in parcels]
    try:
        for _ in parcels:
            async for result in results.items():
                yield cast("WriteResult", result)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Queue:
    """Items on their way between two tasks; an error of the sender is raised at the receiver.

    Sending waits until there is room for the item's size, or nothing else is there.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[object, int]] = deque()
        self._size = 0
        self._changed = asyncio.Condition()

    async def put(self, item: object, size: int = 0) -> None:
        async with self._changed:
            while self._items and self._size + size > _ROOM:
                await self._changed.wait()
            self._items.append((item, size))
            self._size += size
            self._changed.notify_all()

    @property
    def empty(self) -> bool:
        """Return whether the receiver has nothing left to take."""
        return not self._items

    async def _get(self) -> object:
        async with self._changed:
            while not self._items:
                await self._changed.wait()
            item, size = self._items.popleft()
            self._size -= size
            self._changed.notify_all()
            return item

    async def items(self) -> AsyncGenerator[object]:
        held = [await self._get()]
        while held[0] is not _END:
            if isinstance(held[0], Exception):
                raise held[0]
            yield held.pop()  # not kept here while it is used: it may be large
            held.append(await self._get())

    async def pages(self) -> AsyncGenerator[Page]:
        """The pages of the parcels that were put."""
        items = self.items()
        parcel: list[Page] = []
        while True:
            try:
                parcel = cast("list[Page]", await anext(items))
            except StopAsyncIteration:
                return
            parcel.reverse()
            while parcel:
                yield parcel.pop()


class _Parcels:
    """Pages on their way to one writer, small ones together: a turn of the queue has its price.

    A writer that would have to wait gets what there is.
    """

    def __init__(self) -> None:
        self.queue = _Queue()
        self._pages: Group[Page] = Group(PAGE_BYTES // 2)

    async def add(self, page: Page) -> None:
        """Send a page, now or with those that follow."""
        if self._pages.add(page, *page_size(page)) or self.queue.empty:
            await self.send()

    async def send(self) -> None:
        """Send what has gathered."""
        size = self._pages.size
        if pages := self._pages.take():
            await self.queue.put(pages, size)


async def _pump(pages: AsyncGenerator[Page], parcels: list[_Parcels]) -> None:
    end: object = _END
    try:
        async with aclosing(pages):
            async for page in pages:
                session = page.memory.key.session.encode("utf-8", "surrogatepass")
                await parcels[crc32(session) % len(parcels)].add(page)
                del page  # a huge message must not stay here while the next one is read
        for one in parcels:
            await one.send()
    except Exception as error:  # noqa: BLE001 - raised again by the writers
        end = error
    for one in parcels:
        await one.queue.put(end)


async def _work(target: Store, queue: _Queue, mode: WriteMode, results: _Queue) -> None:
    end: object = _END
    try:
        async with aclosing(target.write(queue.pages(), mode)) as written:
            async for result in written:
                await results.put(result)
    except Exception as error:  # noqa: BLE001 - raised again by the caller of write
        end = error
    await results.put(end)
