"""Mends what is beside the messages, and takes it back: what a store offers to do itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

from memctl.journal.mends import MendsWriter, Record, read_mends
from memctl.ops.doctor.findings import KINDS
from memctl.selection import Selection
from memctl.store import Store


class Mends:
    """What is to be mended, and how many of each were."""

    def __init__(self, codes: frozenset[str]) -> None:
        self._codes = codes
        self.planned: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def look(self, store: Store, where: Selection) -> bool:
        """Counts what there is to be mended, behind a ``read`` of the same memories.

        Raises:
            MemctlError: as ``Maintenance.check``.
        """
        self.planned.clear()
        async with aclosing(store.maintenance().check(where)) as findings:
            async for finding in findings:
                if finding.code in self._codes & store.features.repairs:
                    self.planned[finding.code] += finding.count
        return bool(self.planned)

    async def carry_out(self, store: Store, where: Selection, folder: Path) -> None:
        """Mends, each part noted in the folder of the run before it is durable.

        Raises:
            MemctlError: as ``Maintenance.repair``; what was noted is mended, or as it was.
        """
        with MendsWriter(folder) as writer:

            async def note(record: Record) -> None:
                await asyncio.to_thread(writer.add, record)

            for code in KINDS:  # marks before the lives of their lists
                if code in self.planned:
                    self.done[code] += await store.maintenance().repair(code, where, note)


async def take_back(store: Store, folder: Path) -> int:
    """Takes back what a run mended; gives how many of them.

    Raises:
        MemctlError: as ``Maintenance.revert``.
    """

    async def records() -> AsyncGenerator[Record]:
        found: Iterator[Record] = read_mends(folder)
        while (record := await asyncio.to_thread(next, found, None)) is not None:
            yield record

    return await store.maintenance().revert(records())
