"""The store that is browsed: opened in threads of its own, so that the screen always answers.

Each method of a ``Reader`` ends its transaction before it returns: between two keys, no transaction
is open.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from memctl.browser.filter import Filter
from memctl.config.offload import OffloadSettings
from memctl.errors import MemctlError
from memctl.location import Location, visible
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.export.run import ExportOptions
from memctl.ops.observer import Observer, Unobserved, opened
from memctl.ops.report import Progress
from memctl.selection import Selection
from memctl.store import DamagedMemory, Store

T = TypeVar("T")

BATCH = 1000
"""The maximum number of items that are handed over at once."""
PAUSE = 0.1
"""The seconds after which items are handed over, although there are fewer."""
CLOSING = 0.3
"""The seconds to wait for a store to close when the browser ends."""


class Notices(Unobserved):
    """The warnings of stores: the status line shows them, and the end of the browser prints them.

    ``tell`` is called with each new warning, in the thread of the store.
    """

    def __init__(self, timeout: float | None = None, progress: Progress | None = None) -> None:
        super().__init__(progress)
        self.timeout = timeout
        self.warnings: list[str] = []
        self.tell: Callable[[str], object] = lambda _: None

    def warn(self, text: str, /) -> None:
        """Keep a warning, and tell it unless it is known."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.tell(text)

    def note(self, text: str, /) -> None:
        """Tell a note, such as that a store is waited for."""
        self.tell(text)

    def retry(self, text: str, /) -> None:
        """Keep a warning about a lost connection."""
        self.warn(text)


class Background:
    """A thread with an event loop, in which coroutines run while the screen goes on.

    The first ``submit`` starts the thread, and ``close`` ends it; ``patience`` are the seconds that
    it waits for work that takes long, None for no limit.
    """

    patience: ClassVar[float | None] = CLOSING

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="memctl-store", daemon=True)
        self._running: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def submit(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns; it runs in the thread.

        Raises:
            MemctlError: as ``work``.
        """
        if self._thread.ident is None:
            self._thread.start()

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                return await work
            finally:
                self._running.discard(task)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(tracked(), self._loop))

    def progress(self, tell: Callable[[int], object]) -> Progress:
        """Return a listener for work in the thread, which the caller has not begun yet.

        ``tell`` is called with the number of messages, in the thread of the caller.  After
        ``close``, the listener ends the work, since a store that reads a file never pauses.
        """
        return _Telling(asyncio.get_running_loop(), tell, lambda: self._closing is not None)

    async def close(self) -> None:
        """Cancel what is running, and end the thread; work that takes long is left alone."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        if self._thread.ident is None:
            self._loop.close()
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                await asyncio.wrap_future(closing)
                await asyncio.to_thread(self._thread.join, self.patience)

    async def _close(self) -> None:
        running = list(self._running)
        for task in running:
            if not task.cancelling():  # or it is cleaning up, and must not be stopped again
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        try:
            await self._release()
        finally:
            self._loop.call_soon(self._loop.stop)

    async def _release(self) -> None:
        """Release what the work has left open, in the thread."""


class _Telling:
    """A listener to progress in another thread."""

    def __init__(
        self,
        caller: asyncio.AbstractEventLoop,
        tell: Callable[[int], object],
        is_over: Callable[[], bool],
    ) -> None:
        self._caller = caller
        self._tell = tell
        self._is_over = is_over
        self._messages = 0
        self._told = 0.0

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:  # noqa: ARG002
        if self._is_over():
            raise asyncio.CancelledError
        self._messages += messages
        if time.monotonic() - self._told > PAUSE:
            self._told = time.monotonic()
            _call(self._caller, self._tell, self._messages)


class Reader(Background):
    """An open store in a thread with an event loop of its own.

    ::

        reader = Reader(make, notices)
        await reader.open()
        page = await reader.run(lambda store: store.window(key, 0, 200))
        await reader.close()
    """

    def __init__(self, make: Callable[[], Store], notices: Notices) -> None:
        super().__init__()
        self._make = make
        self._notices = notices
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()
        self.store: Store
        """The store, once ``open`` has returned; only its label, dialect and features are read."""

    async def open(self) -> None:
        """Open the store.

        Raises:
            MemctlError: as ``Store.open``.
        """
        self.store = await self.submit(self._open())

    async def _open(self) -> Store:
        return await self._stack.enter_async_context(opened(self._make(), self._notices))

    async def _release(self) -> None:
        await self._stack.aclose()

    async def run(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Return what ``work`` returns; it runs in the thread of the store, after earlier work.

        Raises:
            MemctlError: as the methods of the store.
        """
        return await self.submit(self._alone(work))

    async def _alone(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async with self._turn:
            return await work(self.store)

    async def stream(
        self,
        items: Callable[[Store], AsyncGenerator[T]],
        take: Callable[[list[T]], object],
    ) -> None:
        """Hand all items over to ``take``, in batches, in the thread of the caller.

        After a damaged memory, the items come again from the beginning, without this memory.

        Raises:
            MemctlError: as the methods of the store.
        """
        caller = asyncio.get_running_loop()

        async def work(store: Store) -> None:
            while True:
                with suppress(DamagedMemory):
                    async with aclosing(items(store)) as found:
                        await _hand_over(found, lambda some: _call(caller, take, some))
                    return

        await self.run(work)


async def _hand_over(items: AsyncGenerator[T], take: Callable[[list[T]], object]) -> None:
    batch: list[T] = []
    began = time.monotonic()

    def hand_over() -> None:
        nonlocal batch, began
        if batch:
            take(batch)
        batch, began = [], time.monotonic()

    async def hand_over_at_rest() -> None:
        while True:
            await asyncio.sleep(PAUSE)
            hand_over()

    resting = asyncio.create_task(hand_over_at_rest())  # the next item may take long
    try:
        async for item in items:
            batch.append(item)
            if len(batch) >= BATCH or time.monotonic() - began > PAUSE:
                hand_over()
                await asyncio.sleep(0)  # a store that reads a file does not pause by itself
        hand_over()
    finally:
        resting.cancel()


def _call(loop: asyncio.AbstractEventLoop, take: Callable[[Any], object], some: Any) -> None:
    with suppress(RuntimeError):  # the browser has ended
        loop.call_soon_threadsafe(take, some)


class Writing(Struct, frozen=True):
    """The parts of the command line and the configuration that actions need.

    ``options`` returns the options of a run with an observer.  ``error`` returns the error if a run
    left memories unchanged.  ``offload`` returns the settings of an offload to a folder; without
    its name, to the configured one.  ``export`` returns the options of an export, and ``output``
    the file of a name, which may be an alias.
    """

    options: Callable[[Observer], RunOptions]
    error: Callable[[ChangeRun], MemctlError | None]
    offload: Callable[[str], OffloadSettings]
    export: Callable[[], ExportOptions]
    output: Callable[[str], str]


class Source(Struct):
    """The browsed store, and the selection of its memories; ``filter`` narrows it further.

    ``argument`` is the name of the store for commands, without a password.  ``make`` returns the
    store, not yet open.  ``address`` returns the location of a store by its name, as the journal
    of runs needs it.  ``piped`` is True if the store came through a pipe: it is gone at the end,
    and ``argument`` is a placeholder.  ``path`` is the selected memory of a session state.  Without
    ``writing``, nothing can be changed.
    """

    argument: str
    location: Location
    where: Selection
    make: Callable[[], Store]
    notices: Notices
    address: Callable[[str], Location]
    piped: bool = False
    path: str | None = None
    writing: Writing | None = None
    filter: Filter | None = None

    @property
    def shown(self) -> Selection:
        """The selection of what is shown."""
        return self.where if self.filter is None else self.filter.where

    @property
    def chosen(self) -> str:
        """The names of what is selected; empty if the whole store is."""
        names = (self.where.users, self.where.sessions, {self.path} if self.path else ())
        return " / ".join(", ".join(map(visible, sorted(some))) for some in names if some)

    def reader(self) -> Reader:
        """Return a new reader of the store, not yet open."""
        return Reader(self.make, self.notices)
