"""A time limit on the answers of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from memctl.errors import Lost, MemctlError
from memctl.model import (
    Edit,
    Finding,
    Page,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record, Store
from memctl.wrappers.wrapper import StoreWrapper

T = TypeVar("T")

CLOSING = 10.0
"""The maximum seconds for closing a store; a server that hangs must not delay the end."""


WAIT = 1.0
"""The seconds of a wait for another program after which a note tells of the wait."""

SILENCE = 10.0
"""The seconds without an answer after which a note tells of it, whatever the reason."""

Say = Callable[[str], None]


class _Clock:
    """Limits the time that a store may take for each answer, and tells of waits."""

    def __init__(self, store: Store, seconds: float, say: Say) -> None:
        self._store = store
        self._label = store.label
        self._seconds = seconds
        self._say = say

    @asynccontextmanager
    async def answer(self) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time that the ``with`` block may take; yield the limit.

        Raises:
            Lost: the time is over.
        """
        with self._errors():
            async with asyncio.timeout(self._seconds) as limit:
                with self._watched(limit):
                    yield limit

    @contextmanager
    def _watched(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Tell, once in the ``with`` block, of a wait for another program, or of silence."""
        loop = asyncio.get_running_loop()
        asking: list[asyncio.Task[None]] = []

        async def ask() -> None:
            with suppress(MemctlError):  # the waiting call tells of its own error
                if other := await self._store.waits_for():
                    timer[0].cancel()
                    self._say(f"waiting for {other}")

        def look() -> None:
            if not asking or asking[-1].done():
                asking[:] = [loop.create_task(ask())]
            end = limit.when()
            if end is not None and end - loop.time() <= self._seconds - SILENCE:
                asking[-1].cancel()
                self._say(f"waiting for an answer of {self._label} (up to {self._seconds:g} s)")
            else:
                timer[0] = loop.call_later(WAIT, look)

        timer = [loop.call_later(WAIT, look)]
        try:
            yield
        finally:
            timer[0].cancel()
            for task in asking:
                task.cancel()

    async def each(self, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield the items of a store; each item must come within the limit."""
        async with aclosing(items):
            while True:
                async with self.answer():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item
                del item  # an item may be large: release it before the next item is read

    async def work(
        self,
        items: AsyncGenerator[T],
        work: Callable[[AsyncGenerator[T]], AsyncGenerator[WriteResult]],
    ) -> AsyncGenerator[WriteResult]:
        """Yield the results of ``work(items)``, each within the limit.

        The time in which the caller makes an item or uses a result does not count.
        """
        async with (
            self.answer() as limit,
            aclosing(self.taken(items, limit)) as taken,
            aclosing(work(taken)) as results,
        ):
            async for result in results:
                with self.stopped(limit):
                    yield result

    async def taken(self, items: AsyncGenerator[T], limit: asyncio.Timeout) -> AsyncGenerator[T]:
        """Yield the items; the time to wait for an item does not count.

        An item may be large, so only the caller holds it.
        """
        async with aclosing(items):
            while True:
                with self.stopped(limit):
                    try:
                        some = [await anext(items)]
                    except StopAsyncIteration:
                        return
                yield some.pop()

    @contextmanager
    def stopped(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Stop the clock of ``limit`` in the ``with`` block, then start it with the full time."""
        limit.reschedule(None)
        try:
            yield
        finally:
            limit.reschedule(asyncio.get_running_loop().time() + self._seconds)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise Lost(
                f"{self._label} has not answered for {self._seconds:g} seconds",
                "raise --timeout; what was reported as written is complete",
            ) from error


def limited(store: Store, seconds: float | None, say: Say = lambda _: None) -> Store:
    """Return the store with a limit in seconds for each answer; for None, the store itself."""
    return store if seconds is None else Timeout(store, seconds, say)


class Timeout(StoreWrapper):
    """A wrapper that limits the seconds to wait for each answer and each page.

    ``say`` is called with a note if the store waits for another program.

    ``check_integrity`` has no limit: the check of a whole file gives no sign of progress.
    """

    def __init__(self, store: Store, seconds: float, say: Say = lambda _: None) -> None:
        super().__init__(store)
        self._clock = _Clock(store, seconds, say)

    async def ask(self, name: str, *args: Any, **named: Any) -> Any:
        async with self._clock.answer():
            return await super().ask(name, *args, **named)

    def stream(self, name: str, *args: Any, **named: Any) -> AsyncGenerator[Any]:
        return self._clock.each(super().stream(name, *args, **named))

    async def close(self) -> None:
        # All reported writes are durable, and an open connection ends with the process.  So a close
        # that hangs is not a reason to fail, or to hide an earlier error.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await super().close()

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return self._clock.work(pages, partial(super().write, mode=mode))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return self._clock.work(edits, super().edit)

    def maintenance(self) -> Maintenance:
        return _TimedMaintenance(self, super().maintenance(), self._clock)


class _TimedMaintenance(Maintenance):
    """Limits the time of a check for each finding, and of a repair for each part."""

    def __init__(self, store: Store, inner: Maintenance, clock: _Clock) -> None:
        super().__init__(store)
        self._inner = inner
        self._clock = clock

    def check(self, where: Selection) -> AsyncGenerator[Finding]:
        return self._clock.each(self._inner.check(where))

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        async with self._clock.answer() as limit:
            return await self._inner.repair(code, where, self._untimed(note, limit))

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        async with self._clock.answer() as limit:
            return await self._inner.revert(self._clock.taken(records, limit))

    def _untimed(self, note: Note, limit: asyncio.Timeout) -> Note:
        """Return a function that calls ``note`` while the clock is stopped."""

        async def noted(record: Record) -> None:
            with self._clock.stopped(limit):
                await note(record)

        return noted
