"""Concurrent work with an orderly end: coroutines, calls in threads, queues."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def run_both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Run two coroutines concurrently; return their results.

    If one fails, cancel the other, wait for its end, and raise the error.
    """
    first, second = await all_of([one, other])
    return first, second


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines concurrently; return their results in order.

    If one fails, cancel all others, wait for their end, and raise the error.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def in_thread(call: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """Call a function in a thread, and return its result.

    If the calling task is cancelled, ``in_thread`` calls ``interrupt``, which should make the
    function return soon, and waits for this return.  So the caller can then close what the
    function uses.
    """
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([future])
        raise


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a function, which is left to itself if it takes too long.

    Raises:
        TimeoutError: the function has not returned within ``seconds``.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done.result(seconds)


def cut_short() -> bool:
    """Return whether the current task is being cancelled.

    A driver in a cancelled task may raise an error of its own in place of ``CancelledError``.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Queue(Generic[T]):
    """A queue between tasks; an error of the sender is raised at the receiver.

    ``put`` waits until the queue has room for the size of the item, or is empty.  ``items`` ends at
    each ``end`` of a sender, so with several senders, the receiver calls ``items`` once for each.
    """

    def __init__(self, room: int = 0) -> None:
        self._items: deque[tuple[T | _End, int]] = deque()
        self._room = room
        self._size = 0
        self._changed = asyncio.Condition()

    @property
    def empty(self) -> bool:
        """True if the queue has no item at the moment."""
        return not self._items

    async def put(self, item: T, size: int = 0) -> None:
        """Send an item of this size; wait while the queue has no room for it."""
        await self._put(item, size)

    async def end(self, failure: Exception | None = None) -> None:
        """Send the end of the items.  ``failure`` is an error to raise at the receiver."""
        await self._put(_End(failure), 0)

    async def _put(self, item: T | _End, size: int) -> None:
        async with self._changed:
            while self._items and self._size + size > self._room:
                await self._changed.wait()
            self._items.append((item, size))
            self._size += size
            self._changed.notify_all()

    async def _get(self) -> T | _End:
        async with self._changed:
            while not self._items:
                await self._changed.wait()
            item, size = self._items.popleft()
            self._size -= size
            self._changed.notify_all()
            return item

    async def items(self) -> AsyncGenerator[T]:
        """Yield the items until a sender calls ``end``."""
        while True:
            held = [await self._get()]
            if isinstance(held[0], _End):
                if held[0].failure is not None:
                    raise held[0].failure
                return
            yield held.pop()  # type: ignore[misc]  # no reference is kept: it may be large


class _End:
    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure


async def ahead(items: AsyncGenerator[T], size: Callable[[T], int], room: int) -> AsyncGenerator[T]:
    """Yield the items of a generator, and fetch further items while the caller uses an item.

    ``size`` measures an item.  At most ``room`` in total size is fetched ahead.
    """
    queue: Queue[T] = Queue(room)

    async def pump() -> None:
        failure: Exception | None = None
        try:
            async with aclosing(items):
                async for item in items:
                    await queue.put(item, size(item))
                    del item
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = error
        await queue.end(failure)

    task = asyncio.create_task(pump())
    try:
        async for item in queue.items():
            held = [item]
            del item
            yield held.pop()  # no reference is kept while the item is used: it may be large
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait before the next attempt, after a number of failures in a row.

    The time doubles from ``first`` with each failure, up to ``longest``.  It is reduced by up to a
    quarter at random, so that runs that lost the same server do not try again at the same moment.
    """
    return min(longest, first * 2.0 ** (failures - 1)) * random.uniform(0.75, 1.0)
