"""Work that memctl gives to threads, done at once: to start and wake them takes most of the time.

What only happens with threads is the concern of other tests, and of every tenth input.
"""

from __future__ import annotations

import asyncio
from asyncio import base_events
from collections.abc import Callable
from typing import Any

from aiosqlite import core

THREADS_EVERY = 10

_Run = Callable[..., Any]
_real_thread, _real_queue = core.Thread, core.SimpleQueue
_real_executor: _Run = base_events.BaseEventLoop.run_in_executor


class _NoThread:
    """The thread of a connection to SQLite that has nothing to do."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class _AtOnce:
    """The queue to that thread, whose work is done when it is put in."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, work = item
        _settle(future, work)


def _settle(future: asyncio.Future[Any] | None, work: Callable[[], Any]) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - as the thread hands it on
        if future is not None:
            future.set_exception(error)
    else:
        if future is not None:
            future.set_result(result)


def _run_in_executor(
    loop: asyncio.AbstractEventLoop, executor: Any, work: Callable[..., Any], *values: Any
) -> Any:
    if executor is not None:
        return _real_executor(loop, executor, work, *values)
    future = loop.create_future()
    _settle(future, lambda: work(*values))
    return future


def use_threads(*, real: bool) -> None:
    """Let memctl start threads from now on, or do their work where it is asked for."""
    core.Thread, core.SimpleQueue = (  # type: ignore[misc, assignment]
        (_real_thread, _real_queue) if real else (_NoThread, _AtOnce)
    )
    run: Any = _real_executor if real else _run_in_executor
    base_events.BaseEventLoop.run_in_executor = run  # type: ignore[method-assign]
