"""Requests to end an operation before it is complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress

from memctl.errors import Interrupted


class Stop:
    """A request to end an operation, such as after a signal.

    While ``cooperative`` is True, the operation checks ``asked``, and ends as soon as no memory is
    half written.  While ``cooperative`` is False, the caller of ``ask`` must also cancel the
    operation.
    """

    def __init__(self) -> None:
        self.cooperative = False
        self._event = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Return whether ``ask`` was called, so that the operation should end."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask the operation to end."""
        self._event.set()

    def end_if_asked(self, hint: str = "what was reported as done is complete") -> None:
        """End the operation if ``ask`` was called; ``hint`` is that of the error.

        Raises:
            Interrupted: a stop was asked for.
        """
        if self.asked:
            raise Interrupted("stopped as asked", hint)

    async def wait(self) -> None:
        """Wait until a stop is asked for."""
        await self._event.wait()

    async def pause(self, seconds: float) -> None:
        """Sleep until the seconds are over or a stop is asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    async def rounds(self, interval: float) -> AsyncGenerator[bool]:
        """Yield whether a stop is asked for, at once and every ``interval`` seconds.

        After the stop, there are no more pauses: the caller ends the rounds.
        """
        with self.cooperative_while():
            while True:
                yield self.asked
                await self.pause(interval)

    @contextmanager
    def cooperative_while(self, *, when: bool = True) -> Iterator[None]:
        """Set ``cooperative`` to ``when`` within the block; restore the old value at the end."""
        before, self.cooperative = self.cooperative, when
        try:
            yield
        finally:
            self.cooperative = before
