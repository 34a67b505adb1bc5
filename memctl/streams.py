"""Streams that let go of what they hold when nobody reads them to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

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
