"""Repair what ``check`` found: by a plan of edits, or by what the store offers to do itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from itertools import repeat
from pathlib import Path

from memctl.dialects.view import Dialect, TextBlock, ToolCallBlock, ToolResultBlock
from memctl.journal.repairs import Record, RepairsWriter, read_repairs
from memctl.model import Change, Edit, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.doctor.check import Limits, MemoryExaminer, MessageRepairs
from memctl.ops.doctor.findings import KINDS, RepairMethod
from memctl.ops.marks import COMPRESSED
from memctl.ops.select import places
from memctl.selection import Selection
from memctl.store import Store

EDITED = frozenset(code for code, kind in KINDS.items() if kind.repair is RepairMethod.EDIT)
"""The findings that are repaired here."""

SET_ASIDE = ("damaged-message", "damaged-row", "payload-not-json", "wrong-key-type")
"""The findings whose repair keeps what it takes out in the record of the run alone."""

INTERRUPTED = "The tool call has been interrupted."
"""The text of an added result: nearly AgentScope's words (``agent/_react_agent.py``)."""


class RepairPlanner:
    """A planner: edits that repair the selected memories, and the messages repaired per finding.

    May be asked again for memories that changed meanwhile.
    """

    def __init__(self, codes: frozenset[str], limits: Limits) -> None:
        """``codes`` are the findings to be repaired; others are left alone."""
        self._codes = codes & EDITED
        self._limits = limits
        self.repaired_by_key: dict[MemoryKey, Counter[str]] = {}

    async def __call__(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        """The edits, of two passes over the store: one to find out, one to plan.

        Raises:
            MemctlError: as ``Store.read``.
        """
        found = await self._examine(store, where)
        if not found:
            return
        async with aclosing(store.read(where.only(frozenset(found)))) as pages:
            plan: _Plan | None = None
            async for page in pages:
                if page.offset == 0 or plan is None:
                    plan = _Plan(page.memory, found[page.memory.key], store.dialect)
                yield plan.edit(page, places(store, page))
                if page.last:
                    plan = None
                del page  # not kept while the next one is read: it may be large

    async def _examine(self, store: Store, where: Selection) -> dict[MemoryKey, MessageRepairs]:
        store.skip_damage()
        found: dict[MemoryKey, MessageRepairs] = {}
        repeats = store.features.duplicate_ids
        memory: MemoryExaminer | None = None
        async with aclosing(store.read(where)) as pages:
            async for page in pages:
                if page.offset == 0 or memory is None:
                    memory = MemoryExaminer(
                        page.memory,
                        self._limits,
                        repeats=repeats,
                        treated=self._codes,
                        dialect=store.dialect,
                    )
                memory.take(page)
                if page.last:
                    faults = memory.faults()
                    counts = {one.code: one.count for one in faults if one.code in self._codes}
                    if memory.treatment.needed:
                        found[page.memory.key] = memory.treatment
                        self.repaired_by_key[page.memory.key] = Counter(counts)
                    memory = None
                del page
        return found


class _Plan:
    """The plan for one memory, page by page."""

    def __init__(self, memory: Memory, treatment: MessageRepairs, dialect: Dialect) -> None:
        self._dialect = dialect
        self._memory = replace(memory, summary=None)
        self._treatment = treatment
        self._kept: str | None = None
        """The last message that stays."""
        self._behind: str | None = None
        """The last that was not even handed out; see ``Page.anchors``."""
        self._planned = 0

    def edit(self, page: Page, indexes: Iterable[int | None]) -> Edit:
        changes: list[Change] = []
        anchors = page.anchors or repeat(None)
        for entry, at, behind in zip(page.messages, indexes, anchors, strict=False):
            if behind != self._behind:
                self._kept = self._behind = behind
            changes += self._changes(entry, at)
        edit = Edit(self._memory, changes, self._planned, page.last)
        self._planned += len(changes)
        return edit

    def _changes(self, entry: StoredMessage, at: int | None) -> list[Change]:
        treatment = self._treatment
        ambiguous = not entry.id or entry.id in treatment.repeated
        if entry.id in treatment.gone and not ambiguous:
            return [
                Change(
                    *(entry.id, entry.marks, None, entry.message, self._kept),
                    *(entry.position, entry.shape),
                    at=at,
                )
            ]
        self._kept = entry.id
        if ambiguous:
            return []
        changes = []
        if treatment.unmarked and COMPRESSED in entry.marks:
            left = tuple(mark for mark in entry.marks if mark != COMPRESSED)
            changes.append(Change(entry.id, entry.marks, left, was=entry.shape, at=at))
        for tool in treatment.answers.get(entry.id, ()):
            id, message = _answer(tool, entry, self._dialect)
            changes.append(Change(id, None, (), message, entry.id))
        return changes


def _answer(tool: ToolCallBlock, call: StoredMessage, dialect: Dialect) -> tuple[str, bytes]:
    """Return the id and the text of a message that answers an interrupted call."""
    block = ToolResultBlock(tool.id, tool.name, lambda: [TextBlock(INTERRUPTED)])
    moment = dialect.outline(call.message).moment or datetime.now()
    return dialect.author("system", "system", [block], moment)


class StoreRepairs:
    """The repairs of the store itself, and the number of each that were made."""

    def __init__(self, codes: frozenset[str]) -> None:
        self._codes = codes
        self.planned: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.noted = 0
        """The number of parts that were noted, and may have been repaired since."""

    @property
    def sets_aside(self) -> bool:
        """Return whether damaged data are to be moved into the record of the run."""
        return any(self.planned[code] for code in SET_ASIDE)

    async def plan(self, store: Store, where: Selection) -> bool:
        """Count what there is to be repaired, after a ``read`` of the same memories.

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
        """Repair, each part noted in the folder of the run before it is durable.

        Raises:
            MemctlError: as ``Maintenance.repair``; what was noted is repaired, or as it was.
        """
        with RepairsWriter(folder) as writer:

            async def note(record: Record) -> None:
                await asyncio.to_thread(writer.add, record)
                self.noted += 1

            for code in KINDS:  # marks before the lives of their lists
                if code in self.planned:
                    self.done[code] += await store.maintenance().repair(code, where, note)


async def revert_repairs(store: Store, folder: Path, journal: Path) -> int:
    """Undo what a run repaired; return how many of them.

    ``folder`` is that of the run, ``journal`` that of the one which undoes it.

    Raises:
        MemctlError: as ``Maintenance.revert``.
    """

    async def records() -> AsyncGenerator[Record]:
        found: Iterator[Record] = read_repairs(folder)
        while (record := await asyncio.to_thread(next, found, None)) is not None:
            yield record

    with RepairsWriter(journal) as writer:

        async def note(record: Record) -> None:
            await asyncio.to_thread(writer.add, record)

        return await store.maintenance().revert(records(), note)
