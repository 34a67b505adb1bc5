"""The library without ``await``, for scripts and notebooks.

::

    import memctl.sync as memctl

    with memctl.open_store("agents.db") as store:
        print(memctl.inspect(store).totals.messages)
        for page in memctl.read(store):
            print(page.memory.key, len(page.messages))

Each function does what the function of the same name in ``memctl`` does.  All coroutines run on one
event loop in a thread of its own, so that a program with an event loop, such as a notebook, can
call the functions, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from memctl import api
from memctl.model import MemoryKey, Page
from memctl.selection import EVERYTHING, Selection
from memctl.store import Store

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memctl", daemon=True).start()
    return loop


def _wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def _waits(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @wraps(function)
    def waiting(*args: P.args, **named: P.kwargs) -> T:
        return _wait_for(function(*args, **named))

    return waiting


def _iterates(function: Callable[P, AsyncGenerator[T]]) -> Callable[P, Iterator[T]]:
    @wraps(function)
    def iterating(*args: P.args, **named: P.kwargs) -> Iterator[T]:
        values = function(*args, **named)

        async def following() -> list[T]:
            return [value] if (value := await anext(values, None)) is not None else []

        try:
            while found := _wait_for(following()):
                yield found[0]
        finally:
            _wait_for(values.aclose())

    return iterating


def _opens(function: Callable[P, Store]) -> Callable[P, AbstractContextManager[Store]]:
    @wraps(function)
    @contextmanager
    def opening(*args: P.args, **named: P.kwargs) -> Iterator[Store]:
        store = function(*args, **named)
        _wait_for(store.__aenter__())
        try:
            yield store
        finally:
            _wait_for(store.__aexit__(None, None, None))

    return opening


async def _read(store: Store, where: Selection = EVERYTHING) -> AsyncGenerator[Page]:
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            yield page


async def _list_keys(store: Store, where: Selection = EVERYTHING) -> AsyncGenerator[MemoryKey]:
    async with aclosing(store.list_keys(where)) as keys:
        async for key in keys:
            yield key


open_store = _opens(api.open_store)
read, list_keys, context = _iterates(_read), _iterates(_list_keys), _iterates(api.context)
inspect, statistics, search = _waits(api.inspect), _waits(api.statistics), _waits(api.search)
examine, repair = _waits(api.examine), _waits(api.repair)
copy, compare, export = _waits(api.copy), _waits(api.compare), _waits(api.export)
delete, mark, rename = _waits(api.delete), _waits(api.mark), _waits(api.rename)
erase, redact, compress = _waits(api.erase), _waits(api.redact), _waits(api.compress)
offload, rehydrate, undo = _waits(api.offload), _waits(api.rehydrate), _waits(api.undo)
prune_blobs, retain = _waits(api.prune_blobs), _waits(api.retain)
restore_checkpoints = _waits(api.restore_checkpoints)
update_index = _waits(api.update_index)
history, list_indexes, remove_index = api.history, api.list_indexes, api.remove_index
add_hold, list_holds, remove_hold = api.add_hold, api.list_holds, api.remove_hold
