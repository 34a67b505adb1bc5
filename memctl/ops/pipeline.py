"""Reading and writing at the same time: a short queue between them, or several writers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast
from zlib import crc32

from memctl.model import Page, Tally, WriteMode
from memctl.store import Capability, Store
from memctl.streams import closing

_END = object()


async def write(
    target: Store, pages: AsyncIterator[Page], mode: WriteMode, jobs: int = 1
) -> AsyncIterator[Tally]:
    """Writes the pages while the next ones are read.

    With ``jobs`` above one, and a target to which that is of use, memories are dealt to several
    writers by their session, so that what shares a session has one writer.

    Raises:
        MemctlError: of the source or the target; what was tallied is durable.
    """
    writers = jobs if Capability.PARALLEL in target.capabilities else 1
    queues = [_Queue() for _ in range(writers)]
    tallies = _Queue()
    tasks = [asyncio.create_task(_pump(pages, queues))]
    tasks += [asyncio.create_task(_work(target, queue, mode, tallies)) for queue in queues]
    try:
        for _ in queues:
            async for tally in tallies.items():
                assert isinstance(tally, Tally)
                yield tally
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _Queue:
    """Items on their way between two tasks; an error of the sender is raised at the receiver."""

    def __init__(self) -> None:
        # One item waits while one is written and one is read: more would only hold memory.
        self._queue: asyncio.Queue[object] = asyncio.Queue(maxsize=1)

    async def put(self, item: object) -> None:
        await self._queue.put(item)

    async def items(self) -> AsyncIterator[object]:
        held = [await self._queue.get()]
        while held[0] is not _END:
            if isinstance(held[0], Exception):
                raise held[0]
            yield held.pop()  # not kept here while it is used: it may be large
            held.append(await self._queue.get())

    async def pages(self) -> AsyncIterator[Page]:
        items = self.items()
        held: list[Page] = []
        while True:
            try:
                held.append(cast("Page", await anext(items)))
            except StopAsyncIteration:
                return
            yield held.pop()


async def _pump(pages: AsyncIterator[Page], queues: list[_Queue]) -> None:
    end: object = _END
    try:
        async with closing(pages):
            async for page in pages:
                session = page.memory.key.session.encode("utf-8", "surrogatepass")
                await queues[crc32(session) % len(queues)].put(page)
    except Exception as error:  # noqa: BLE001 - raised again by the writers
        end = error
    for queue in queues:
        await queue.put(end)


async def _work(target: Store, queue: _Queue, mode: WriteMode, tallies: _Queue) -> None:
    end: object = _END
    try:
        async with closing(target.write(queue.pages(), mode)) as written:
            async for tally in written:
                await tallies.put(tally)
    except Exception as error:  # noqa: BLE001 - raised again by the caller of write
        end = error
    await tallies.put(end)
