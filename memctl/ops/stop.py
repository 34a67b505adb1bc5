"""Requests to end an operation in good order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Stop:
    """A request to end, made by the receiver of a signal.

    While ``cooperative`` is True, the operation checks ``asked`` and ends at the next good moment.
    While ``cooperative`` is False, the operation must be cancelled.
    """

    def __init__(self) -> None:
        self.cooperative = False
        self._event = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Return whether the operation should end."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask the operation to end."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until a stop is asked for."""
        await self._event.wait()

    async def pause(self, seconds: float) -> None:
        """Sleep until the time is over or a stop is asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    @contextmanager
    def cooperative_while(self, *, when: bool = True) -> Iterator[None]:
        """Set ``cooperative`` to ``when`` within the block."""
        before, self.cooperative = self.cooperative, when
        try:
            yield
        finally:
            self.cooperative = before
