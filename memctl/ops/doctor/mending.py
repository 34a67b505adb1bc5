"""Mends what is beside the messages, and takes it back: what a store offers to do itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from memctl.journal.mends import MendsWriter, Record, read_mends
from memctl.ops.doctor.findings import KINDS
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing


class Mends:
    """What is to be mended, and how many of each were."""

    def __init__(self, codes: frozenset[str]) -> None:
        self._codes = codes
        self.planned: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def look(self, store: Store, where: Selection) -> bool:
        """Counts what there is to be mended, behind a ``read`` of the same memories.

        Raises:
            MemctlError: as ``Store.faults``.
        """
        self.planned.clear()
        async with closing(store.faults(where)) as faults:
            async for fault in faults:
                if fault.code in self._codes & store.mends:
                    self.planned[fault.code] += fault.count
        return bool(self.planned)

    async def carry_out(self, store: Store, where: Selection, folder: Path) -> None:
        """Mends, each part noted in the folder of the run before it is durable.

        Raises:
            MemctlError: as ``Store.mend``; what was noted is mended, or as it was.
        """
        with MendsWriter(folder) as writer:

            async def note(record: Record) -> None:
                await asyncio.to_thread(writer.add, record)

            for code in KINDS:  # marks before the lives of their lists
                if code in self.planned:
                    self.done[code] += await store.mend(code, where, note)


async def take_back(store: Store, folder: Path) -> int:
    """Takes back what a run mended; gives how many of them.

    Raises:
        MemctlError: as ``Store.unmend``.
    """

    async def records() -> AsyncIterator[Record]:
        found: Iterator[Record] = read_mends(folder)
        while (record := await asyncio.to_thread(next, found, None)) is not None:
            yield record

    return await store.unmend(records())
