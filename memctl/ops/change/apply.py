"""Change a store: write down a plan first, then carry it out.

The plan is the file that undoes the run.  The whole plan is on the disk before the first message
changes, so a full disk or a refusal by the user does no harm.  If an agent changed a memory since
the plan, the store leaves the memory alone, and the memory is planned again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct, field
from msgspec.structs import fields, replace

from memctl.errors import Failure
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import Journal
from memctl.model import PAGE_BYTES, Change, Edit, MemoryKey, WriteResult
from memctl.ops.lost_answer import look_again
from memctl.ops.report import Progress, SilentProgress
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.batching import edit_size, grouped, grouped_async

SHOWN_MEMORIES = 10
MOST_IDS = 1000
_STEP = PAGE_BYTES // 2
"""The approximate bytes of the messages that a thread reads or writes at once."""
ATTEMPTS = 5
"""The largest number of attempts to change a memory that agents change at the same time."""

Planner = Callable[[Store, Selection], AsyncGenerator[Edit]]
"""Plans the edits of the selected memories; called again for memories that changed meanwhile."""

Held = Callable[[MemoryKey | None], Failure | None]
"""Returns why a memory must stay as it is, or None; as ``Holds.failure``."""

Preparation = Callable[[Store, Sequence[Edit]], Awaitable[None]]
"""Called before the store gets some edits, whose deletions have the deleted texts."""


class ChangeCounts(Struct):
    """The numbers of planned or made changes, by kind.

    ``memories`` counts changed memories, ``summaries`` changed summaries.  ``marked`` counts
    messages with changed marks; ``unmarked`` counts the marked messages that lose a mark.
    ``restored`` counts inserted messages, and ``renamed`` the messages of renamed memories.
    """

    memories: int = 0
    deleted: int = 0
    marked: int = 0
    unmarked: int = 0
    restored: int = 0
    renamed: int = 0
    summaries: int = 0

    @property
    def messages(self) -> int:
        """The number of deleted, marked, inserted and renamed messages."""
        return self.deleted + self.marked + self.restored + self.renamed

    def merge(self, other: ChangeCounts, sign: int = 1) -> None:
        """Add the counts of ``other``; with the ``sign`` -1, subtract them."""
        for one in fields(self):
            number = getattr(self, one.name) + sign * getattr(other, one.name)
            setattr(self, one.name, number)

    def add(self, edit: Edit) -> None:
        """Count the changes of an edit."""
        self.memories += edit.offset == 0
        self.summaries += edit.offset == 0 and edit.memory.summary is not None
        deleted = sum([change.new is None for change in edit.changes])
        restored = sum([change.old is None for change in edit.changes])
        self.deleted += deleted
        self.restored += restored
        self.marked += len(edit.changes) - restored - deleted
        self.unmarked += sum(map(_loses_mark, edit.changes))


def _loses_mark(change: Change) -> bool:
    return change.new is not None and bool({*(change.old or ())} - {*change.new})


class ChangeReport(Struct):
    """The numbers of planned and made changes of a run, and the memories that failed."""

    noun: str = "message"
    """The noun for a message of the store: "message" or "fact"."""
    planned: ChangeCounts = field(default_factory=ChangeCounts)
    planned_by_memory: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages to change in each memory; without a dry run, of ten memories only."""
    unmarked: set[str] = field(default_factory=set)
    """The ids of messages that are to lose a mark; incomplete if more than ``MOST_IDS``."""
    staying: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages that stay in each memory; no entry if not counted."""
    done: ChangeCounts = field(default_factory=ChangeCounts)
    changed: set[MemoryKey] | None = None
    """The changed memories; None if the caller does not want them collected."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    """The memories that were not changed as planned, with the reasons."""
    pending: dict[MemoryKey, ChangeCounts] = field(default_factory=dict)
    """The planned changes of the memories for which the answer of the store is awaited."""
    left: int = 0
    """The number of planned memories that the run did not reach before a stop or an error."""


async def plan(
    edits: AsyncGenerator[Edit], journal: Journal, report: ChangeReport, progress: Progress
) -> bool:
    """Write planned edits to the journal, and count them in ``report.planned``.

    Return False if no edit changes anything.

    Raises:
        Unavailable: the disk has no room for the plan, or the store cannot be reached any more.
    """
    planned = ChangeCounts()
    with journal.writer() as writer:
        async with (
            aclosing(tidy(edits)) as found,
            aclosing(grouped_async(found, edit_size, _STEP)) as batches,
        ):
            async for some in _written(writer, batches):
                for edit in some:
                    planned.add(edit)
                    _note(report, edit)
                    size = sum([len(change.message) for change in edit.changes])
                    progress.advance(memories=int(edit.last), messages=len(edit.changes), size=size)
                del some, edit  # free large edits before the next read
        if not planned.memories:
            return False
        await asyncio.to_thread(writer.finish)
    report.planned.merge(planned)
    return True


async def without_held(
    edits: AsyncGenerator[Edit], why: Held, held: dict[MemoryKey, Failure]
) -> AsyncGenerator[Edit]:
    """Yield the edits of memories that are not held; add the others to ``held``, with the reason.

    An edit of a held memory that changes nothing is left out, too.
    """
    async with aclosing(edits):
        async for edit in edits:
            key = edit.memory.key
            if (failure := why(key)) is None:
                yield edit
            elif _changes_anything(edit):
                held[key] = failure
            del edit  # free a large edit before the next read


async def preview(edits: AsyncGenerator[Edit], report: ChangeReport, progress: Progress) -> bool:
    """Count planned edits in ``report.planned``, for a dry run.

    Return False if no edit changes anything.

    Raises:
        MemctlError: as the generator ``edits``.
    """
    something = False
    async with aclosing(tidy(edits)) as found:
        async for edit in found:
            something = True
            report.planned.add(edit)
            _note(report, edit, math.inf)
            progress.advance(memories=int(edit.last), messages=len(edit.changes))
            del edit  # free a large edit before the next read
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
    held: Held = lambda _: None,
    prepare: Preparation | None = None,
) -> None:
    """Carry out the last plan of the journal; plan memories again that agents changed meanwhile.

    ``planner`` plans the memories again; ``where`` is the selection of the first plan.  ``most`` is
    the largest number of messages to delete.  A new plan with more deletions is not carried out,
    and its memories become failures of ``report``, and so do planned memories that are held.
    ``prepare`` is called before the store gets edits, with these edits; the store then compares the
    texts of deleted messages, if it can.

    Raises:
        Unavailable: the store cannot be reached any more; ``report`` counts the made changes.
        Interrupted: a stop was asked for; no memory is half changed.
    """
    stop = stop or Stop()
    progress = progress or SilentProgress()
    report.left = report.planned.memories - report.done.memories
    for left in reversed(range(ATTEMPTS)):
        changed = await _apply(store, journal, report, progress, stop, held, prepare)
        stop.end_if_asked()
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
            report.planned.merge(counts, -1)
        report.planned.merge(again.planned)
        report.left = again.planned.memories
        if not something:
            return


async def _apply(
    store: Store,
    journal: Journal,
    report: ChangeReport,
    progress: Progress,
    stop: Stop,
    held: Held,
    prepare: Preparation | None,
) -> dict[MemoryKey, tuple[Failure, ChangeCounts]]:
    """Carry out the last plan of the journal once.

    Return the memories that agents changed meanwhile, with the failure and the planned changes.
    """
    changed: dict[MemoryKey, tuple[Failure, ChangeCounts]] = {}
    pending = report.pending
    pending.clear()

    async def edits() -> AsyncGenerator[Edit]:
        leaving = store.features.duplicate_ids or prepare is not None
        planned = journal.edits(leaving=leaving)
        async with aclosing(_read(grouped(planned, edit_size, _STEP))) as batches:
            async for some in batches:
                if prepare is not None:
                    await prepare(store, some)
                some.reverse()
                while some:
                    edit = some[-1]
                    if stop.asked and edit.offset == 0:
                        return
                    if (failure := held(edit.memory.key)) is not None:
                        if edit.last:
                            report.left -= 1
                            report.failures.append((edit.memory.key, failure))
                            journal.note(WriteResult(edit.memory.key, failure=failure))
                        some.pop()
                        continue
                    pending.setdefault(edit.memory.key, ChangeCounts()).add(edit)
                    del edit
                    yield some.pop()  # the store may free a large edit

    cooperative = stop.cooperative_while(when=not store.features.commits_at_end)
    with cooperative, store.foreseen(journal.foresee):
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


async def settle_pending(store: Store, journal: Journal, report: ChangeReport) -> int:
    """Count pending changes as made if the store has them; return the number of unclear memories.

    A change is pending if its answer from the store was lost.

    Raises:
        MemctlError: as ``look_again``.
    """
    edits = journal.edits(leaving=store.features.duplicate_ids)
    found = await look_again(store, (one for one in edits if one.memory.key in report.pending))
    for key, is_stored in found.items():
        planned = report.pending.pop(key)
        if is_stored:
            report.left -= 1
            report.done.merge(planned)
            if report.changed is not None:
                report.changed.add(key)
    return len(report.pending)


def _count(total: ChangeCounts, done: ChangeCounts, result: WriteResult) -> None:
    total.memories += 1
    total.summaries += done.summaries
    total.marked += done.marked
    total.restored += done.restored
    total.deleted += result.deleted


def _changes_anything(edit: Edit) -> bool:
    """Return whether an edit, the first of its memory, changes the memory."""
    return bool(edit.changes or edit.memory.summary is not None or edit.before)


async def tidy(edits: AsyncGenerator[Edit]) -> AsyncGenerator[Edit]:
    """Yield the edits that change something, numbered anew."""
    held: Edit | None = None
    count = 0
    begins = True
    async with aclosing(edits):
        async for edit in edits:
            if begins:
                count = 0
            if edit.changes or (begins and _changes_anything(edit)):
                if held is not None:
                    yield held
                held = replace(edit, offset=count, last=False)
                count += len(edit.changes)
            begins = edit.last
            del edit
            if begins and held is not None:
                yield replace(held, last=True)
                held = None


async def _written(
    writer: ChangesWriter, batches: AsyncGenerator[list[Edit]]
) -> AsyncGenerator[list[Edit]]:
    """Yield batches of edits, and write them to the journal in a thread."""
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
    """Yield the batches that a thread reads from ``groups``."""
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
    """Wait for a task in a thread; ignore its error."""
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
    if len(report.unmarked) <= MOST_IDS:
        report.unmarked.update(one.id for one in edit.changes if _loses_mark(one))
