"""Retries of a summarizer: where they may help, with growing pauses, within bounds."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self

from memctl.concurrency import backoff
from memctl.summarizer import (
    Answer,
    Excerpt,
    Summarizer,
    SummaryError,
    Unreachable,
    Usage,
)

MAX_RETRIES = 4
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two attempts; each pause is up to twice the one before."""
LONGEST_WAIT = 600.0
"""Seconds that a server may ask to wait for."""
PAID_FAILURES = frozenset({"bad-reply", "refused", "cut-off"})
MAX_PAID_RETRIES = 2
"""Retries of a model that replied, and was paid, but gave no summary."""


class RetryingSummarizer(Summarizer):
    """A summarizer that retries another one.

    Where a server sets how long to wait, every request waits, not only the one that was refused.
    An address that has never answered is not retried: it may be wrong.
    """

    def __init__(
        self,
        inner: Summarizer,
        max_retries: int = MAX_RETRIES,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self.kind = inner.kind  # type: ignore[misc]  # it is what it wraps
        self.name = inner.name
        self.window = inner.window
        self.overhead = inner.overhead
        self.concurrency = inner.concurrency
        self.prices = inner.prices
        self._inner = inner
        self._max_retries = max_retries
        self._first_pause = first_pause
        self._reached = False
        self._paused_until = 0.0

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def count(self, text: str) -> int:
        return self._inner.count(text)

    @property
    def counted_by(self) -> str:
        return self._inner.counted_by

    async def check(self) -> None:
        """Check the inner summarizer, once: a check reports problems, it does not wait."""
        await self._inner.check()

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return the inner summarizer's summary; the usage includes attempts that failed."""
        spent = Usage()
        failures = paid = 0
        while True:
            await self._wait_for_pause()
            try:
                answer = await self._inner.summarize(excerpt)
            except SummaryError as error:
                self._reached = True
                failures += 1
                paid += error.code in PAID_FAILURES
                spent = error.usage = spent.plus(error.usage)
                if not error.retry or failures > self._max_retries or paid > MAX_PAID_RETRIES:
                    _add_attempts(error, failures)
                    raise
                if (error.after or 0.0) > LONGEST_WAIT:
                    error.message += f" (it asks to wait for {error.after:.0f} s)"
                    raise
                wait = self._pause(failures, error.after)
            except Unreachable as error:
                failures += 1
                if not self._reached or failures > self._max_retries:
                    _add_attempts(error, failures)
                    raise
                wait = self._pause(failures, None)
            else:
                self._reached = True
                return Answer(answer.summary, spent.plus(answer.usage))
            await asyncio.sleep(wait)

    def _pause(self, failures: int, after: float | None) -> float:
        """Return the seconds to wait after so many failures; make all requests wait if asked to."""
        pause = backoff(failures, self._first_pause, LONGEST_PAUSE)
        if after is None:
            return pause
        self._paused_until = max(self._paused_until, _now() + after)
        return after + pause * 0.25

    async def _wait_for_pause(self) -> None:
        wait = self._paused_until - _now()
        if wait > 0:
            await asyncio.sleep(wait * random.uniform(1.0, 1.1))


def _add_attempts(error: SummaryError | Unreachable, attempts: int) -> None:
    if attempts > 1:
        error.message += f" (given up after {attempts} attempts)"


def _now() -> float:
    return asyncio.get_running_loop().time()
