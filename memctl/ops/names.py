"""Names that two stores must agree on."""

from __future__ import annotations

from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing


async def introduce(known: Store, unsure: Store, where: Selection) -> None:
    """Tells a store whose names can be read in several ways what the other one holds.

    Raises:
        MemctlError: as ``Store.headers``.
    """
    if not unsure.ambiguous:
        return
    async with closing(known.headers(where)) as memories:
        unsure.expect([memory.key async for memory in memories])
