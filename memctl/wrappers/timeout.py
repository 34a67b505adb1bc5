"""A time limit on the answers of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar

from memctl.errors import Lost
from memctl.model import (
    Edit,
    Finding,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    ServiceHit,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import Deletion, Maintenance, Matches, Note, OpenMode, Record, Store
from memctl.wrappers.wrapper import StoreWrapper

T = TypeVar("T")

CLOSING = 10.0
"""The maximum seconds for closing a store; a server that hangs must not delay the end."""


class _Clock:
    """Limits the time that a store may take for each answer."""

    def __init__(self, label: str, seconds: float) -> None:
        self._label = label
        self._seconds = seconds

    @asynccontextmanager
    async def answer(self) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time that the ``with`` block may take; yield the limit.

        Raises:
            Lost: the time is over.
        """
        with self._errors():
            async with asyncio.timeout(self._seconds) as limit:
                yield limit

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


def limited(store: Store, seconds: float | None) -> Store:
    """Return the store with a limit in seconds for each answer; for None, the store itself."""
    return store if seconds is None else Timeout(store, seconds)


class Timeout(StoreWrapper):
    """A wrapper that limits the seconds to wait for each answer and each page.

    ``check_integrity`` has no limit: the check of a whole file gives no sign of progress.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        super().__init__(store)
        self._clock = _Clock(self.label, seconds)

    async def open(self, mode: OpenMode) -> None:
        async with self._clock.answer():
            await super().open(mode)

    async def close(self) -> None:
        # All reported writes are durable, and an open connection ends with the process.  So a close
        # that hangs is not a reason to fail, or to hide an earlier error.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await super().close()

    async def lock(self, owner: str) -> None:
        async with self._clock.answer():
            await super().lock(owner)

    async def settle_layout(self) -> bool:
        async with self._clock.answer():
            return await super().settle_layout()

    async def other_layout(self) -> str | None:
        async with self._clock.answer():
            return await super().other_layout()

    async def identity(self) -> str:
        async with self._clock.answer():
            return await super().identity()

    async def generation(self) -> str:
        async with self._clock.answer():
            return await super().generation()

    async def unrestorable(self, where: Selection) -> str:
        async with self._clock.answer():
            return await super().unrestorable(where)

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:
        async with self._clock.answer():
            return await super().side_effects(where, deletion)

    async def missing_right(self, key: MemoryKey | None) -> str:
        async with self._clock.answer():
            return await super().missing_right(key)

    async def is_empty(self) -> bool:
        async with self._clock.answer():
            return await super().is_empty()

    async def count(self, where: Selection) -> tuple[int, int] | None:
        async with self._clock.answer():
            return await super().count(where)

    async def other_contents(self) -> str:
        async with self._clock.answer():
            return await super().other_contents()

    async def keeps_summary(self, key: MemoryKey) -> bool:
        async with self._clock.answer():
            return await super().keeps_summary(key)

    async def find_places(self, key: MemoryKey, ids: frozenset[str]) -> frozenset[str]:
        async with self._clock.answer():
            return await super().find_places(key, ids)

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:
        async with self._clock.answer():
            return await super().search(query, where, top)

    def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._clock.each(super().list_keys(where))

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        async with self._clock.answer():
            return await super().window(key, start, count)

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return self._clock.each(super().list_memories(where))

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._clock.each(super().headers(where))

    def duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        return self._clock.each(super().duplicates(where))

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self._clock.each(super().read(where))

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._clock.each(super().outline(where))

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        return self._clock.each(super().read_with_anchors(where))

    def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        return self._clock.each(super().find_messages(where, matches))

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return self._clock.work(pages, partial(super().write, mode=mode))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return self._clock.work(edits, super().edit)

    def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self._clock.each(super().names(where))

    def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        return self._clock.each(super().erase(where))

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
