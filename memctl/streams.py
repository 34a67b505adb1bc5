"""Streams that let go of what they hold when nobody reads them to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Closes a stream at the end of the block, read to its end or not.

    A generator that is dropped instead closes at some later moment, and the generators within it in
    any order: too late for a transaction, and an error for its connection.
    """
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def together(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Runs two at the same time; where one fails the other is cancelled and waited for."""
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        first, second = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return first, second
