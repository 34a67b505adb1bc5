"""Commit summaries to the journal, then to the store, in groups of memories.

The journal has the changes of a memory before the store has them.  So undo can revert even a killed
run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from memctl.dialects.view import COMPRESSED, SUMMARY, Dialect
from memctl.errors import Lost, MemctlError
from memctl.journal.changes import ChangesWriter
from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Change, Edit, MemoryKey, WriteResult
from memctl.ops.change.apply import ChangeCounts, Held
from memctl.ops.compress.plan import (
    CompressionPlan,
    CompressMode,
    MessageStatus,
    PlannedMessage,
    message_tokens,
)
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.compress.transcript import transcribe
from memctl.ops.lost_answer import look_again, unclear
from memctl.ops.report import SummaryProgress
from memctl.store import Store
from memctl.summarizer import Summarizer

READER = "user"
"""The role and the name under which AgentScope passes a summary to a model (``get_memory``)."""


@dataclass(frozen=True, slots=True)
class SummarizedMemory:
    """The plan for a memory, with the text of its new summary.

    ``put`` is the change that inserts the summary as a message; None with the mode MARK.
    """

    case: CompressionPlan
    mode: CompressMode
    text: str
    put: Change | None


def summarized(
    case: CompressionPlan, text: str, mode: CompressMode, dialect: Dialect
) -> SummarizedMemory:
    """Return the plan for a memory, together with its new summary ``text``."""
    if mode is CompressMode.MARK:
        return SummarizedMemory(case, mode, text, None)
    # At the beginning, where AgentScope puts its summary: no other message has to move.
    id, message = dialect.author(READER, READER, text, datetime.now())
    return SummarizedMemory(case, mode, text, Change(id, None, (SUMMARY,), message))


def edits(done: SummarizedMemory, lines: Iterable[PlannedMessage]) -> Iterator[Edit]:
    """Yield the edits that write a new summary and mark or delete the summarized messages.

    ``lines`` are the messages of the memory in the spool.  The store refuses the edits if the
    summary has changed since it was read, or if the marks of a message that the edits change have
    changed.  Messages added since then stay unchanged.
    """
    before = done.case.memory.summary
    if done.mode is CompressMode.MARK:
        memory = replace(done.case.memory, summary=done.text)
    else:
        # The summary of the store is emptied: the new message includes its contents.
        memory = replace(done.case.memory, summary="" if before else None)
    seen = None if memory.summary is None else before or ""
    page: list[Change] = []
    offset = size = 0
    for change in _changes(done, lines):
        if len(page) >= PAGE_ENTRIES or (page and size + len(change.message) > PAGE_BYTES):
            yield Edit(memory, page, offset, last=False, summary=seen)
            offset += len(page)
            page, size = [], 0
        page.append(change)
        size += len(change.message)
    yield Edit(memory, page, offset, summary=seen)


def _changes(done: SummarizedMemory, lines: Iterable[PlannedMessage]) -> Iterator[Change]:
    if done.put is not None:
        yield done.put
    stays: str | None = None
    for line in lines:
        stays = stays if line.behind is None else line.behind
        goes = done.case.goes(line)
        if goes and (line.kind is MessageStatus.SUMMARY or done.mode is CompressMode.REPLACE):
            yield Change(
                *(line.id, line.marks, None, line.message, stays, line.place, line.shape),
                at=line.at,
            )
            continue
        stays = line.id
        if goes and line.kind is MessageStatus.SELECTED:
            marks = (*line.marks, COMPRESSED)
            yield Change(line.id, line.marks, marks, was=line.shape, at=line.at)


GROUP_MEMORIES = 256
GROUP_MESSAGES = 50_000
GROUP_SECONDS = 0.25
"""The limits of a group of memories that are committed together.

Each commit waits for the disk twice, however many memories it has.  Summaries that wait for a
commit are lost if the machine fails.
"""


class SummaryCommitter:
    """A writer of finished summaries into the store."""

    def __init__(
        self,
        store: Store,
        spool: Spool,
        summarizer: Summarizer,
        writer: ChangesWriter,
        report: CompressReport,
        watching: SummaryProgress,
        note: Callable[[WriteResult], None],
        warn: Callable[[str], None],
        held: Callable[[], Held],
    ) -> None:
        """``note`` records the result of each written memory in the journal.

        ``warn`` shows a warning.  ``held`` returns what asks the present holds.  ``spool`` has the
        messages of the memories.  ``writer`` writes their changes to the journal.
        """
        self._note = note
        self._warn = warn
        self._held = held
        self._store = store
        self._spool = spool
        self._summarizer = summarizer
        self._writer = writer
        self._report = report
        self._watching = watching
        self.begun = False
        """True as soon as the journal has changes, which the store may have, too."""

    async def run(self, ready: asyncio.Queue[SummarizedMemory | None]) -> None:
        """Commit the summaries of the memories in the queue, until the queue gives None.

        Raises:
            MemctlError: as ``Store.edit``; or the disk has no room for the journal, and the last
                memories were not committed.
        """
        going_on = True
        while going_on:
            group, going_on = await self._gather(ready)
            try:
                await self._commit(group)
            except Lost as error:
                if going_on or self._report.changes.left:
                    raise
                self._warn(f"{error.message}; the change is stored")

    async def _gather(
        self, ready: asyncio.Queue[SummarizedMemory | None]
    ) -> tuple[list[SummarizedMemory], bool]:
        """Return the memories of the queue to commit together, and whether more may come."""
        group: list[SummarizedMemory] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while (done := await ready.get()) is not None:
                    group.append(done)
                    if self._store.features.commits_at_end:
                        continue
                    if _is_enough(group):
                        return group, True
                    if len(group) == 1:
                        limit.reschedule(asyncio.get_running_loop().time() + GROUP_SECONDS)
                return group, False
        return group, True

    async def _commit(self, group: list[SummarizedMemory]) -> None:
        group = self._without_held(group)
        if not group:
            return
        await asyncio.to_thread(self._write_down, group)
        self.begun = True
        waiting = {done.case.memory.key: done for done in group}
        changes = {key: ChangeCounts() for key in waiting}
        try:
            async with aclosing(self._store.edit(self._edits(group, changes))) as results:
                async for result in results:
                    self._settle(waiting.pop(result.key), changes[result.key], result)
        except Lost as error:
            sent = [done for key, done in waiting.items() if changes[key].memories]
            try:
                left = await self._settle_lost(sent, changes)
            except MemctlError:
                left = len(sent)
            raise (unclear(error, left) if left else error) from error

    async def _settle_lost(
        self, sent: list[SummarizedMemory], changes: dict[MemoryKey, ChangeCounts]
    ) -> int:
        """Count the memories that changed although the answer of the store was lost.

        Return the number of memories for which this is unknown.

        Raises:
            MemctlError: as ``look_again``.
        """
        planned = (edit for done in sent for edit in edits(done, self._spool.lines(done.case)))
        found = await look_again(self._store, planned)
        for done in sent:
            key = done.case.memory.key
            if found.get(key):
                self._settle(done, changes[key], WriteResult(key))
        return len(sent) - len(found)

    def _without_held(self, group: list[SummarizedMemory]) -> list[SummarizedMemory]:
        """Return the memories that are not held since they were found; the others have failed."""
        held, rest = self._held(), []
        for done in group:
            key = done.case.memory.key
            failure = held(key) if done.case.removes(done.mode) else None
            if failure is None:
                rest.append(done)
            else:
                self._report.changes.left -= 1
                self._report.changes.failures.append((key, failure))
        return rest

    def _write_down(self, group: list[SummarizedMemory]) -> None:
        for done in group:
            for edit in edits(done, self._spool.lines(done.case)):
                self._writer.add(edit)
        self._writer.sync()

    async def _edits(
        self, group: list[SummarizedMemory], changes: dict[MemoryKey, ChangeCounts]
    ) -> AsyncGenerator[Edit]:
        for done in group:
            for edit in edits(done, self._spool.lines(done.case)):
                changes[edit.memory.key].add(edit)
                yield edit

    def _settle(self, done: SummarizedMemory, changes: ChangeCounts, result: WriteResult) -> None:
        case, report = done.case, self._report
        report.changes.left -= 1
        if result.failure is not None:
            report.changes.failures.append((result.key, result.failure))
            return
        self._note(result)
        report.changes.done.merge(changes)
        report.settle(case, case.rest + self._tokens(done))
        self._watching.advance(memories=1, tokens=case.tokens, cost=report.cost)

    def _tokens(self, done: SummarizedMemory) -> int:
        """Return the number of tokens of the new summary that agents send to a model."""
        if done.put is None:
            return self._summarizer.count(done.text)
        found = transcribe(done.put.message, self._store.dialect)
        return message_tokens(found, self._summarizer.count)


def _is_enough(group: list[SummarizedMemory]) -> bool:
    messages = sum([done.case.messages for done in group])
    return len(group) >= GROUP_MEMORIES or messages >= GROUP_MESSAGES
