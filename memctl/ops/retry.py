"""Going on after a connection was lost, and without what is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from memctl.concurrency import backoff, cut_short
from memctl.errors import Busy, Lost, MemctlError
from memctl.model import MemoryKey, Page
from memctl.selection import Selection
from memctl.store import DamagedMemory
from memctl.wrappers.rate_limit import Rate

T = TypeVar("T")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds between two attempts; each pause is up to twice the one before."""


async def leaving_damaged(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an attempt, which begins anew where a memory turns out to be damaged.

    The store leaves that memory out from then on, so that there is an end.

    Raises:
        MemctlError: as the attempt.
    """
    while True:
        try:
            return await attempt()
        except DamagedMemory:
            continue


async def undamaged_pages(
    read: Callable[[Selection], AsyncGenerator[Page]], where: Selection
) -> AsyncGenerator[Page]:
    """Yield the pages of ``read``; a memory that turns out to be damaged has no last page.

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
                    del page  # not kept while the next one is read: it may be large
                    if last:
                        done.add(key)
            return
        except DamagedMemory:
            continue


@dataclass(frozen=True, slots=True)
class Transfer:
    """The options of moving memories: retries in a row, seconds to wait for an answer, the rate."""

    retries: int = 5
    timeout: float = 600.0
    rate: Rate | None = None


class Retries:
    """Retries after a lost connection.

    The count begins anew whenever something was achieved in between.  A store that was never
    ``reached`` is not waited for: its name may be wrong.
    """

    def __init__(self, limit: int, tell: Callable[[str], None]) -> None:
        """``tell`` hears of each attempt that failed."""
        self.reached = False
        self._limit = limit
        self._tell = tell

    async def run(self, attempt: Callable[[], Awaitable[T]], achieved: Callable[[], int]) -> T:
        """Return the result of an attempt that ends well; ``achieved`` grows with what was done.

        Raises:
            Lost: once too often.
            MemctlError: as the attempt.
        """
        failures = 0
        before = achieved()
        while True:
            try:
                return await attempt()
            except (Lost, Busy) as error:
                # The lock that this run lost may outlive its connection for a while.
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
    error.message += f" (given up after {limit} attempts)"
    error.hint = "run the same command again to continue where this one stopped"
    return error
