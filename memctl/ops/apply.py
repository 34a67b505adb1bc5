"""Changing what is in a store: a plan that is written down first, then carried out.

The plan is the file from which the run can be undone.  It is whole and on the disk before the
first message is touched, so a full disk, or a second thought, costs nothing.  A memory that an
agent changed since the plan was made is left alone by the store, and planned anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from memctl.errors import Failure, Interrupted
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import Journal
from memctl.model import PAGE_BYTES, Edit, MemoryKey, WriteResult
from memctl.ops.report import Progress, SilentProgress
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.batching import edit_size, grouped, grouped_async

SHOWN_MEMORIES = 10
_STEP = PAGE_BYTES // 2
"""Bytes of messages that are worth a turn of a thread."""
ATTEMPTS = 5
"""The number of times that a memory is planned which agents keep changing."""

Planner = Callable[[Store, Selection], AsyncGenerator[Edit]]
"""Plans the changes of what is selected; asked again for memories that changed meanwhile."""


@dataclass(slots=True)
class ChangeCounts:
    """Messages, by what becomes or became of them, and in how many memories.

    ``marked`` are those that get other marks, ``restored`` those that are put in.
    """

    memories: int = 0
    deleted: int = 0
    marked: int = 0
    restored: int = 0
    summaries: int = 0

    @property
    def messages(self) -> int:
        """All of them."""
        return self.deleted + self.marked + self.restored

    def merge(self, other: ChangeCounts) -> None:
        """Add what another has counted."""
        self.memories += other.memories
        self.deleted += other.deleted
        self.marked += other.marked
        self.restored += other.restored
        self.summaries += other.summaries

    def drop(self, other: ChangeCounts) -> None:
        """Subtract what another has counted."""
        self.memories -= other.memories
        self.deleted -= other.deleted
        self.marked -= other.marked
        self.restored -= other.restored
        self.summaries -= other.summaries

    def add(self, edit: Edit) -> None:
        """Count an edit."""
        self.memories += edit.offset == 0
        self.summaries += edit.offset == 0 and edit.memory.summary is not None
        self.deleted += sum([change.new is None for change in edit.changes])
        restored = sum([change.old is None for change in edit.changes])
        self.restored += restored
        self.marked += len(edit.changes) - restored
        self.marked -= sum([change.new is None for change in edit.changes])


@dataclass(slots=True)
class ChangeReport:
    """The plan of a run and its result."""

    noun: str = "message"
    """The word for a message of the store."""
    planned: ChangeCounts = field(default_factory=ChangeCounts)
    planned_by_memory: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of planned messages of each of the first memories; of a dry run, of each."""
    staying: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages that stay of each of these memories, as far as that was counted."""
    done: ChangeCounts = field(default_factory=ChangeCounts)
    changed: set[MemoryKey] | None = None
    """The memories that were changed; None unless somebody asks for them."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    left: int = 0
    """Memories that were not reached, because the store went away or a stop was asked for."""


async def plan(
    edits: AsyncGenerator[Edit], journal: Journal, report: ChangeReport, progress: Progress
) -> bool:
    """Write down what is to be changed; return False where that is nothing.

    Raises:
        Unavailable: there is no room for it, or the store went away.
    """
    planned = ChangeCounts()
    with journal.writer() as writer:
        async with (
            aclosing(_tidy(edits)) as found,
            aclosing(grouped_async(found, edit_size, _STEP)) as batches,
        ):
            async for some in _written(writer, batches):
                for edit in some:
                    planned.add(edit)
                    _note(report, edit)
                    size = sum([len(change.message) for change in edit.changes])
                    progress.advance(memories=int(edit.last), messages=len(edit.changes), size=size)
                del some, edit  # not kept while the next ones are read: they may be large
        if not planned.memories:
            return False
        await asyncio.to_thread(writer.finish)
    report.planned.merge(planned)
    return True


async def preview(edits: AsyncGenerator[Edit], report: ChangeReport, progress: Progress) -> bool:
    """Count what would be changed; return False where that is nothing.

    Raises:
        MemctlError: as the planning.
    """
    something = False
    async with aclosing(_tidy(edits)) as found:
        async for edit in found:
            something = True
            report.planned.add(edit)
            _note(report, edit, math.inf)
            progress.advance(memories=int(edit.last), messages=len(edit.changes))
    return something


async def apply_plan(
    store: Store,
    where: Selection,
    planner: Planner,
    journal: Journal,
    report: ChangeReport,
    progress: Progress | None = None,
    stop: Stop | None = None,
    most: float = math.inf,
) -> None:
    """Do what the last plan of the journal says; what changed meanwhile is planned anew.

    A new plan by which more than ``most`` messages would be deleted in all is not carried out.

    Raises:
        Unavailable: the store went away; ``report`` says what was done, and what was not.
        Interrupted: ``stop`` was asked for; the memory at hand is whole.
    """
    stop = stop or Stop()
    progress = progress or SilentProgress()
    report.left = report.planned.memories - report.done.memories
    for left in reversed(range(ATTEMPTS)):
        changed = await _apply(store, journal, report, progress, stop)
        if stop.asked:
            raise Interrupted("stopped as asked", "what was reported as done is complete")
        if not changed:
            return
        if not left:
            report.failures += [(key, failure) for key, (failure, _) in changed.items()]
            return
        report.left = len(changed)
        again = ChangeReport()
        edits = planner(store, where.only(frozenset(changed)))
        something = await plan(edits, journal, again, SilentProgress())
        if report.done.deleted + again.planned.deleted > most:
            more = ", and the retry would exceed --max-delete"
            report.failures += [
                (key, replace(failure, message=failure.message + more))
                for key, (failure, _) in changed.items()
            ]
            report.left = 0
            return
        for _, counts in changed.values():
            report.planned.drop(counts)
        report.planned.merge(again.planned)
        report.left = again.planned.memories
        if not something:
            return


async def _apply(
    store: Store, journal: Journal, report: ChangeReport, progress: Progress, stop: Stop
) -> dict[MemoryKey, tuple[Failure, ChangeCounts]]:
    """Carry out one file of changes; return the memories that agents changed meanwhile."""
    changed: dict[MemoryKey, tuple[Failure, ChangeCounts]] = {}
    pending: dict[MemoryKey, ChangeCounts] = {}

    async def edits() -> AsyncGenerator[Edit]:
        planned = journal.edits(leaving=store.features.duplicate_ids)
        async with aclosing(_read(grouped(planned, edit_size, _STEP))) as batches:
            async for some in batches:
                for edit in some:
                    if stop.asked and edit.offset == 0:
                        return
                    pending.setdefault(edit.memory.key, ChangeCounts()).add(edit)
                    yield edit
                del some, edit  # not kept while the next ones are read: they may be large

    with stop.cooperative_while(when=not store.features.commits_at_end):
        async with aclosing(edits()) as planned, aclosing(store.edit(planned)) as results:
            async for result in results:
                report.left -= 1
                done = pending.pop(result.key)
                journal.note(result)
                if result.failure and result.failure.code == "changed":
                    changed[result.key] = (result.failure, done)
                elif result.failure:
                    report.failures.append((result.key, result.failure))
                else:
                    _count(report.done, done, result)
                    if report.changed is not None:
                        report.changed.add(result.key)
                    progress.advance(memories=1, messages=done.messages)
    return changed


def _count(total: ChangeCounts, done: ChangeCounts, result: WriteResult) -> None:
    total.memories += 1
    total.summaries += done.summaries
    total.marked += done.marked
    total.restored += done.restored
    total.deleted += result.deleted


async def _tidy(edits: AsyncGenerator[Edit]) -> AsyncGenerator[Edit]:
    """The edits without those that change nothing, each behind so many changes as are left."""
    held: Edit | None = None
    count = 0
    begins = True
    async with aclosing(edits):
        async for edit in edits:
            if begins:
                count = 0
            if edit.changes or (begins and (edit.memory.summary is not None or edit.before)):
                if held is not None:
                    yield held
                held = replace(edit, offset=count, last=False)
                count += len(edit.changes)
            begins = edit.last
            if edit.last and held is not None:
                yield replace(held, last=True)
                held = None


async def _written(
    writer: ChangesWriter, batches: AsyncGenerator[list[Edit]]
) -> AsyncGenerator[list[Edit]]:
    """The edits, which are written down while the next are read; large ones at once."""
    writing: asyncio.Task[None] | None = None
    try:
        async for some in batches:
            if writing is not None:
                await asyncio.shield(writing)
            writing = asyncio.create_task(asyncio.to_thread(_write, writer, some))
            if _is_large(some):
                await asyncio.shield(writing)
            yield some
            del some
        if writing is not None:
            await asyncio.shield(writing)
    finally:
        if writing is not None:
            await _ended(writing)


async def _read(groups: Iterator[list[Edit]]) -> AsyncGenerator[list[Edit]]:
    """Yield the edits, read while others are carried out; not during large ones."""
    coming: asyncio.Task[list[Edit]] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(asyncio.to_thread(next, groups, []))
            some = await asyncio.shield(coming)
            coming = None
            if not some:
                return
            if not _is_large(some):
                coming = asyncio.create_task(asyncio.to_thread(next, groups, []))
            yield some
            del some
    finally:
        if coming is not None:
            await _ended(coming)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Wait for what a thread does, which cannot be stopped; its error was raised, or is late."""
    await asyncio.wait([task])
    task.exception()


def _is_large(some: list[Edit]) -> bool:
    return sum([edit_size(edit)[0] for edit in some]) > 4 * _STEP


def _write(writer: ChangesWriter, some: list[Edit]) -> None:
    for edit in some:
        writer.add(edit)


def _note(report: ChangeReport, edit: Edit, most: float = SHOWN_MEMORIES) -> None:
    known = report.planned_by_memory
    key = edit.memory.key
    if key in known or len(known) < most:
        known[key] = known.get(key, 0) + len(edit.changes)
