"""Limited retries of requests to a model, with growing pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from memctl.inference.errors import ModelError, Unreachable
from memctl.inference.settings import Usage
from memctl.machine.concurrency import backoff

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""The maximum seconds between two attempts, unless the server asks for a pause."""
LONGEST_WAIT = 600.0
"""The longest pause in seconds for which memctl waits if a server asks for a pause."""
PAID_FAILURES = frozenset({"bad-reply", "refused", "cut-off"})
"""The codes of failures that cost tokens."""
MAX_PAID_RETRIES = 2
"""The maximum retries of a request after failures that cost tokens."""

T = TypeVar("T")


class RequestRetries:
    """Retries failed requests to one model, which may run concurrently.

    If the server asks for a pause after one request, all requests wait.  An address that has never
    answered may be wrong: requests to it are not retried.
    """

    def __init__(self, limit: int, first_pause: float = FIRST_PAUSE) -> None:
        """``limit`` is the maximum number of retries of a request.

        ``first_pause`` is in seconds.
        """
        self._limit = limit
        self._first_pause = first_pause
        self._reached = False
        self._paused_until = 0.0

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> tuple[T, Usage, int]:
        """Call ``attempt`` until it succeeds; return the result.

        Also return the usage and the number of the failed attempts that the server answered.

        Raises:
            ModelError, Unreachable, Unauthorised: the last attempt failed with this error; the
                first two count the usage and number of all attempts.
        """
        spent = Usage()
        failures = paid = answered = 0
        while True:
            await self._wait_for_pause()
            try:
                result = await attempt()
            except ModelError as error:
                self._reached = True
                failures += 1
                answered = error.calls = answered + error.calls
                paid += error.code in PAID_FAILURES
                spent = error.usage = spent.plus(error.usage)
                if not error.retry or failures > self._limit or paid > MAX_PAID_RETRIES:
                    _add_attempts(error, failures)
                    raise
                if (error.after or 0.0) > LONGEST_WAIT:
                    error.message += f" (it asks to wait for {error.after:.0f} s)"
                    raise
                wait = self._pause(failures, error.after)
            except Unreachable as error:
                failures += 1
                error.usage, error.calls = spent, answered
                if not self._reached or failures > self._limit:
                    _add_attempts(error, failures)
                    raise
                wait = self._pause(failures, None)
            else:
                self._reached = True
                return result, spent, answered
            await asyncio.sleep(wait)

    def _pause(self, failures: int, after: float | None) -> float:
        """Return the seconds to wait before the next attempt.

        ``failures`` counts the failed attempts.  If the server asks for a pause (``after``), all
        requests wait.
        """
        pause = backoff(failures, self._first_pause, LONGEST_PAUSE)
        if after is None:
            return pause
        self._paused_until = max(self._paused_until, _now() + after)
        return after + pause * 0.25

    async def _wait_for_pause(self) -> None:
        wait = self._paused_until - _now()
        if wait > 0:
            await asyncio.sleep(wait * random.uniform(1.0, 1.1))


def _add_attempts(error: ModelError | Unreachable, attempts: int) -> None:
    if attempts > 1:
        error.message += f" (given up after {attempts} attempts)"


def _now() -> float:
    return asyncio.get_running_loop().time()
