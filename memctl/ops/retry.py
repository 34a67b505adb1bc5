"""Repeat an operation after a lost connection, or without a damaged memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from msgspec import Struct

from memctl.errors import Busy, Lost, MemctlError
from memctl.machine.concurrency import backoff, cut_short
from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.store import DamagedMemory
from memctl.text.numbers import count
from memctl.wrappers.rate_limit import Rate

T = TypeVar("T")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""The first and the longest pause between two attempts, in seconds; see ``backoff``."""


async def leaving_damaged(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``attempt``; call it again whenever it raises ``DamagedMemory``.

    The store leaves each damaged memory out of the next attempt, so that an attempt succeeds at
    last.

    Raises:
        MemctlError: as ``attempt``, except for damaged memories.
    """
    while True:
        try:
            return await attempt()
        except DamagedMemory:
            continue


async def undamaged_pages(
    read: Callable[[Selection], AsyncGenerator[Page]], where: Selection
) -> AsyncGenerator[Page]:
    """Yield the pages of the selected memories.

    The last page of a damaged memory is never yielded; earlier pages may be.  ``read`` reads a
    selection, as ``Store.read`` does.

    Raises:
        MemctlError: as ``Store.read``.
    """
    done: set[MemoryKey] = set()
    while True:
        try:
            async with aclosing(read(where.without(frozenset(done)))) as pages:
                async for page in pages:
                    key, last = page.memory.key, page.last
                    yield page
                    del page  # free a large page before the next read
                    if last:
                        done.add(key)
            return
        except DamagedMemory:
            continue


class Transfer(Struct, frozen=True):
    """The options of a transfer.

    ``retries`` is the largest number of consecutive retries.  ``timeout`` is the number of seconds
    to wait for an answer.  ``rate`` limits how fast the source is read; None sets no limit.
    """

    retries: int = 5
    timeout: float = 600.0
    rate: Rate | None = None


class Retries:
    """Repeated attempts of an operation after a lost connection.

    The caller sets ``reached`` as soon as the stores are open.  Until then no attempt is repeated,
    because the name of a store may be wrong.
    """

    def __init__(self, limit: int, tell: Callable[[str], None]) -> None:
        """``limit`` is the largest number of consecutive retries without progress.

        ``tell`` is called with a line of text about each failed attempt.
        """
        self.reached = False
        self._limit = limit
        self._tell = tell

    async def run(self, attempt: Callable[[], Awaitable[T]], achieved: Callable[[], int]) -> T:
        """Return the result of the first successful attempt.

        ``achieved`` returns a number that grows with the progress of the attempts.  If it has grown
        since the last failure, the count of retries begins again at zero.

        Raises:
            Lost, Busy: too many attempts in a row failed with this error.
            MemctlError: as ``attempt``.
        """
        failures = 0
        before = achieved()
        while True:
            try:
                return await attempt()
            except (Lost, Busy) as error:
                # After a lost connection, the lock of this run may remain for a while.
                if not self.reached or not self._limit or cut_short():
                    raise
                failures = 1 if achieved() > before else failures + 1
                before = achieved()
                if failures > self._limit:
                    raise _given_up(error, self._limit) from error
                seconds = backoff(failures, FIRST_PAUSE, LONGEST_PAUSE)
                self._tell(
                    f"{error.message}: trying again in {seconds:.0f} s "
                    f"({failures} of {self._limit})"
                )
            await asyncio.sleep(seconds)


def _given_up(error: MemctlError, limit: int) -> MemctlError:
    error.message += f" (given up after {count(limit, 'attempt')})"
    error.hint = "run the same command again to continue where this one stopped"
    return error
