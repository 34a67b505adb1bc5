"""Names that two stores must agree on."""

from __future__ import annotations

from contextlib import aclosing

from memctl.selection import Selection
from memctl.store import Store


async def introduce(known: Store, unsure: Store, where: Selection) -> None:
    """Tells a store whose names can be read in several ways what the other one holds.

    Raises:
        MemctlError: as ``Store.headers``.
    """
    if not unsure.features.ambiguous_names:
        return
    async with aclosing(known.headers(where)) as memories:
        unsure.resolve_names([memory.key async for memory in memories])
