"""Mends what can be mended by changing messages: a plan of edits, as every other change is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from memctl.model import Change, Edit, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.authored import authored
from memctl.ops.doctor.content import Limits, MemoryExamination, Treatment
from memctl.ops.doctor.findings import KINDS, Repair
from memctl.ops.doctor.messages import Tool, look
from memctl.ops.known_marks import COMPRESSED
from memctl.selection import Selection
from memctl.store import Store

EDITED = frozenset(code for code, kind in KINDS.items() if kind.repair is Repair.EDIT)
"""The findings that are mended here."""

INTERRUPTED = "The tool call has been interrupted."
"""What stands for a result: nearly AgentScope's words (``agent/_react_agent.py``)."""


class Treating:
    """A planner: edits that mend the selected memories, and how many messages each mends of what.

    May be asked again for memories that changed meanwhile.
    """

    def __init__(self, codes: frozenset[str], limits: Limits) -> None:
        """``codes`` are the findings to be mended; others are left alone."""
        self._codes = codes & EDITED
        self._limits = limits
        self.mended: dict[MemoryKey, Counter[str]] = {}

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
                    plan = _Plan(page.memory, found[page.memory.key])
                yield plan.edit(page)
                if page.last:
                    plan = None
                del page  # not kept while the next one is read: it may be large

    async def _examine(self, store: Store, where: Selection) -> dict[MemoryKey, Treatment]:
        store.skip_damage()
        found: dict[MemoryKey, Treatment] = {}
        repeats = store.features.duplicate_ids
        memory: MemoryExamination | None = None
        async with aclosing(store.read(where)) as pages:
            async for page in pages:
                if page.offset == 0 or memory is None:
                    memory = MemoryExamination(
                        page.memory, self._limits, repeats=repeats, treated=self._codes
                    )
                memory.take(page)
                if page.last:
                    faults = memory.faults()
                    counts = {one.code: one.count for one in faults if one.code in self._codes}
                    if memory.treatment.needed:
                        found[page.memory.key] = memory.treatment
                        self.mended[page.memory.key] = Counter(counts)
                    memory = None
                del page
        return found


class _Plan:
    """What becomes of one memory, page by page."""

    def __init__(self, memory: Memory, treatment: Treatment) -> None:
        self._memory = replace(memory, summary=None)
        self._treatment = treatment
        self._kept: str | None = None
        """The last message that stays."""
        self._planned = 0

    def edit(self, page: Page) -> Edit:
        changes: list[Change] = []
        for entry in page.messages:
            changes += self._changes(entry)
        edit = Edit(self._memory, changes, self._planned, page.last)
        self._planned += len(changes)
        return edit

    def _changes(self, entry: StoredMessage) -> list[Change]:
        treatment = self._treatment
        ambiguous = not entry.id or entry.id in treatment.repeated
        if entry.id in treatment.gone and not ambiguous:
            return [Change(entry.id, entry.marks, None, entry.message, self._kept, entry.position)]
        self._kept = entry.id
        if ambiguous:
            return []
        changes = []
        if treatment.unmarked and COMPRESSED in entry.marks:
            left = tuple(mark for mark in entry.marks if mark != COMPRESSED)
            changes.append(Change(entry.id, entry.marks, left))
        for tool in treatment.answers.get(entry.id, ()):
            id, message = _answer(tool, entry)
            changes.append(Change(id, None, (), message, entry.id))
        return changes


def _answer(tool: Tool, call: StoredMessage) -> tuple[str, bytes]:
    """The message that answers a call which was interrupted, and its id."""
    block = {"type": "tool_result", "id": tool.id, "name": tool.name, "output": INTERRUPTED}
    return authored("system", "system", [block], look(call.message).moment or datetime.now())
