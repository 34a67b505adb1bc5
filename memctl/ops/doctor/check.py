"""Examines a store: its messages in one pass, then what only the store itself can see."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from memctl.model import Finding
from memctl.ops.doctor.content import Limits, MemoryExamination
from memctl.ops.doctor.findings import KINDS, Severity
from memctl.ops.report import Progress, Silent
from memctl.selection import Selection
from memctl.store import Store


@dataclass(slots=True)
class Diagnosis:
    """What was looked at and what was found."""

    memories: int = 0
    messages: int = 0
    faults: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is worse than a notice."""
        return all(KINDS[fault.code].severity is Severity.NOTICE for fault in self.faults)

    def count(self, severity: Severity) -> int:
        """How many findings are that severe."""
        return sum(KINDS[fault.code].severity is severity for fault in self.faults)


async def check(
    store: Store, where: Selection, limits: Limits, progress: Progress | None = None
) -> Diagnosis:
    """Examines the selected memories, whole ones, and what belongs to no memory where all are.

    Raises:
        MemctlError: as ``Store.read``.
    """
    progress = progress or Silent()
    found = Diagnosis()
    store.skip_damage()
    repeats = store.features.duplicate_ids
    memory: MemoryExamination | None = None
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            if page.offset == 0 or memory is None:
                memory = MemoryExamination(page.memory, limits, repeats=repeats)
                found.memories += 1
            memory.take(page)
            found.messages += len(page.messages)
            progress.advance(messages=len(page.messages))
            if page.last:
                found.faults += memory.faults()
                memory = None
                progress.advance(memories=1)
            del page  # not kept while the next one is read: it may be large
    async with aclosing(store.maintenance().check(where)) as faults:
        found.faults += [fault async for fault in faults]
    order = {code: place for place, code in enumerate(KINDS)}
    found.faults.sort(key=lambda fault: (order[fault.code], fault.key or ("", "", "")))
    return found
