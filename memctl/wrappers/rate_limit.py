"""A limit on the speed of reading, to spare the other users of a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from memctl.model import Page
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.wrapper import StoreWrapper


class Rate(Struct, frozen=True):
    """A limit per second, either in messages or in bytes (``size``).

    The limit in the other unit is None.
    """

    messages: float | None = None
    size: float | None = None

    def seconds(self, page: Page) -> float:
        """Return the least number of seconds in which the page may be read."""
        if self.size is not None:
            return sum([len(entry.message) for entry in page.messages]) / self.size
        return len(page.messages) / (self.messages or float("inf"))


class RateLimit(StoreWrapper):
    """A wrapper that waits after each page, so that reading keeps to a rate."""

    def __init__(self, store: Store, rate: Rate) -> None:
        super().__init__(store)
        self._rate = rate

    async def read(self, where: Selection) -> AsyncGenerator[Page]:
        due = time.monotonic()
        async with aclosing(super().read(where)) as pages:
            async for page in pages:
                await asyncio.sleep(due - time.monotonic())
                # Time that a slow store or caller has lost is not made up by a burst.
                due = max(due, time.monotonic()) + self._rate.seconds(page)
                yield page
                del page
