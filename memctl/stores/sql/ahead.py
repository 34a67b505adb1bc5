"""Fetching from a database while what came before is being used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any


async def ahead(
    fetch: Callable[[], Coroutine[Any, Any, Sequence[Any]]],
) -> AsyncGenerator[Sequence[Any]]:
    """What ``fetch`` gives, call after call, until it gives nothing; one call is always under way.

    ``fetch`` is cancelled when the stream is closed before its end.
    """
    coming = asyncio.create_task(fetch())
    try:
        while rows := await coming:
            coming = asyncio.create_task(fetch())
            # The database is asked now, not when those who use these rows wait for the next.
            await asyncio.sleep(0)
            yield rows
            del rows
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()  # nobody waits for it any more
