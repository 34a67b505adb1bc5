"""Blocking work in threads, ended in good order when its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """What the call gives, run in a thread.

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
