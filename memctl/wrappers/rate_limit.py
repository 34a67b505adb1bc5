"""A store that is read no faster than asked for, to spare what else works with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from memctl.model import Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.wrapper import StoreWrapper


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages a second, or so many bytes; the other one is None."""

    messages: float | None = None
    size: float | None = None

    def seconds(self, page: Page) -> float:
        """Return the least time that a page may take, in seconds."""
        if self.size is not None:
            return sum([len(entry.message) for entry in page.messages]) / self.size
        return len(page.messages) / (self.messages or float("inf"))


class RateLimit(StoreWrapper):
    """A wrapper that hands out the next page when the time of the one before is over."""

    def __init__(self, store: Store, rate: Rate) -> None:
        super().__init__(store)
        self._rate = rate

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        due = time.monotonic()
        async with aclosing(super().read(where)) as pages:
            async for page in pages:
                await asyncio.sleep(due - time.monotonic())
                # What was not used of the time is lost: nothing is caught up in a burst.
                due = max(due, time.monotonic()) + self._rate.seconds(page)
                yield page
                del page
