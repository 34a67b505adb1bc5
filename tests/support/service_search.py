"""Searches by the service of a store, through the contract of stores."""

from __future__ import annotations

import asyncio

from memctl.model import ServiceHit
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode


def found(url: str, query: str, top: int = 10, where: Selection | None = None) -> list[ServiceHit]:
    """Return the hits of ``Store.search``."""

    async def work() -> list[ServiceHit]:
        async with make_store(parse(url), OpenMode.READ) as store:
            return await store.search(query, where or Selection(), top)

    return asyncio.run(work())


def ids(url: str, query: str, top: int = 10, where: Selection | None = None) -> list[str]:
    """Return the ids of the hits of ``Store.search``."""
    return [hit.message.id for hit in found(url, query, top, where)]
