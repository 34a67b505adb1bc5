"""Work done at the same time, ended in good order: two coroutines, or a call in a thread."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Run two at the same time; where one fails, cancel the other and wait for it."""
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        first, second = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return first, second


async def in_thread(call: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """Run the call in a thread and return its result.

    A cancellation is passed on when the call has ended, so that what it works on may be closed;
    ``interrupt`` is called first, to make it end soon.
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


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after so many failures in a row: doubled each time, bounded.

    Up to a quarter less, at random: many runs that lost one server should not return all at once.
    """
    return min(longest, first * 2.0 ** (failures - 1)) * random.uniform(0.75, 1.0)
