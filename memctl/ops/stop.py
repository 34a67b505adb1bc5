"""Requests to an operation to end in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Stop:
    """A request to end, made by whoever hears the signal.

    While the operation is ``cooperative`` it looks at ``asked`` and ends by itself at the next good
    moment; else it must be cancelled.
    """

    def __init__(self) -> None:
        self.cooperative = False
        self._event = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Return whether the operation should end."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask it to end."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until a stop is asked for."""
        await self._event.wait()

    async def pause(self, seconds: float) -> None:
        """Sleep, but not on when a stop is asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    @contextmanager
    def cooperative_while(self, *, when: bool = True) -> Iterator[None]:
        """Within it the operation looks at ``asked``; with ``when`` false it does not."""
        before, self.cooperative = self.cooperative, when
        try:
            yield
        finally:
            self.cooperative = before
