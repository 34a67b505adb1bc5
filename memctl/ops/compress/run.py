"""A run that compresses memories: they are found, summarized concurrently, and committed.

One pass over the store fills the spool, without waiting for the model.  Summaries are committed to
the journal, then to the store, in groups of memories.  The journal has the changes of a memory
before the store has them, so undo can revert even a killed run.
"""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import COMPRESSED, SUMMARY, Dialect
from memctl.errors import Failure, Lost, MemctlError, Unavailable, UsageError
from memctl.inference.errors import ModelError, Unreachable
from memctl.inference.settings import Usage
from memctl.inference.summary import Summary, render_free
from memctl.journal.changes import ChangesWriter
from memctl.location import without_secrets
from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Change, Edit, MemoryKey, Page, WriteResult
from memctl.ops.change.apply import ChangeCounts, ChangeReport, Held
from memctl.ops.change.change import ChangeRun
from memctl.ops.change.marks import require_mark
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.plan import (
    CompressionPlan,
    CompressionPlanner,
    CompressMode,
    CompressOptions,
    MessageStatus,
    Permits,
    PlannedMessage,
    message_tokens,
)
from memctl.ops.compress.spool import Spool
from memctl.ops.compress.transcript import transcribe
from memctl.ops.lock import lock
from memctl.ops.lost_answer import look_again, unclear
from memctl.ops.observer import Observer
from memctl.ops.report import Progress, SummaryProgress
from memctl.ops.retry import undamaged_pages
from memctl.ops.select import places, select_with_anchors, whole_memories
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store, refuse_facts
from memctl.summarizer import Summarizer
from memctl.text.numbers import count


class LargestMemory(NamedTuple):
    """A memory, with the numbers of messages and tokens that its agent sends to a model."""

    key: MemoryKey
    messages: int
    tokens: int


class CompressReport(Struct):
    """The result of a compression: changes of the store, tokens, requests and costs.

    ``before`` and ``after`` are the numbers of tokens of the compressed memories that agents send
    to a model, before and after the compression.  ``summarised`` is the number of tokens of the
    summarized messages.  In a dry run, both ``before`` and ``summarised`` cover the memories to
    compress.  ``counted_by`` names the way in which tokens are counted.  ``calls`` is the number of
    requests that the model answered, with retries.
    """

    changes: ChangeReport = msgspec.field(default_factory=ChangeReport)
    counted_by: str = "estimate"
    summarised: int = 0
    before: int = 0
    after: int = 0
    calls: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    cost: float | None = None
    """The cost of the requests; None if prices are unknown."""
    over_budget: int = 0
    """The number of memories that were not compressed because of the limit of the cost."""
    selected: int = 0
    """The number of messages to summarize."""
    messages: int = 0
    """The number of summarized messages whose summary is in the store."""
    not_smaller: int = 0
    """The number of compressed memories of which agents send no fewer tokens than before."""
    largest: LargestMemory | None = None
    """The memory with the most tokens, of all memories that were read."""

    def see(self, key: MemoryKey, messages: int, tokens: int) -> None:
        """Record the size of a memory that was read; the report keeps the largest."""
        if self.largest is None or tokens > self.largest.tokens:
            self.largest = LargestMemory(key, messages, tokens)

    @property
    def ratio(self) -> float | None:
        """``after`` as a share of ``before``; None if nothing was compressed."""
        return round(self.after / self.before, 4) if self.before and self.after else None

    def plan(self, case: CompressionPlan, mode: CompressMode) -> None:
        """Add a memory to compress to the planned changes."""
        self.selected += case.messages
        self.changes.planned.merge(_counts(case, mode))

    def leave(self, case: CompressionPlan, mode: CompressMode) -> None:
        """Move a memory from the planned changes to those beyond the limit of the cost."""
        self.over_budget += 1
        self.selected -= case.messages
        self.changes.planned.merge(_counts(case, mode), -1)

    def estimate(self, case: CompressionPlan, usage: Usage, calls: int) -> None:
        """Add the estimated tokens and requests of a memory, in a dry run."""
        self.summarised += case.tokens
        self.before += case.before
        self.calls += calls
        self.usage = self.usage.plus(usage)

    def settle(self, case: CompressionPlan, after: int) -> None:
        """Add a compressed memory; its agents send ``after`` tokens from now on."""
        self.messages += case.messages
        self.summarised += case.tokens
        self.before += case.before
        self.after += after
        self.not_smaller += after >= case.before


def _counts(case: CompressionPlan, mode: CompressMode) -> ChangeCounts:
    marked = 0 if mode is CompressMode.REPLACE else case.messages
    return ChangeCounts(1, case.deleted(mode), marked)


READER = "user"
"""The role and the name under which AgentScope passes a summary to a model (``get_memory``)."""


class SummarizedMemory(Struct, frozen=True):
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


class SummaryCommitter(Struct):
    """A writer of finished summaries into the store.

    ``spool`` has the messages of the memories, ``writer`` writes their changes to the journal.
    """

    compressing: CompressRun
    store: Store
    spool: Spool
    writer: ChangesWriter
    watching: SummaryProgress
    observer: Observer
    begun: bool = False
    """True as soon as the journal has changes, which the store may have, too."""

    @property
    def report(self) -> CompressReport:
        """The report of the run."""
        return self.compressing.compressed

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
                if going_on or self.report.changes.left:
                    raise
                self.observer.warn(f"{error.message}; the change is stored")

    async def _gather(
        self, ready: asyncio.Queue[SummarizedMemory | None]
    ) -> tuple[list[SummarizedMemory], bool]:
        """Return the memories of the queue to commit together, and whether more may come."""
        group: list[SummarizedMemory] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while (done := await ready.get()) is not None:
                    group.append(done)
                    if self.store.features.commits_at_end:
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
            async with aclosing(self.store.edit(self._edits(group, changes))) as results:
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
        planned = (edit for done in sent for edit in edits(done, self.spool.lines(done.case)))
        found = await look_again(self.store, planned)
        for done in sent:
            key = done.case.memory.key
            if found.get(key):
                self._settle(done, changes[key], WriteResult(key))
        return len(sent) - len(found)

    def _without_held(self, group: list[SummarizedMemory]) -> list[SummarizedMemory]:
        """Return the memories that are not held since they were found; the others have failed."""
        held, rest = self.compressing.held(self.store), []
        for done in group:
            key = done.case.memory.key
            failure = held(key) if done.case.removes(done.mode) else None
            if failure is None:
                rest.append(done)
            else:
                self.report.changes.left -= 1
                self.report.changes.failures.append((key, failure))
        return rest

    def _write_down(self, group: list[SummarizedMemory]) -> None:
        for done in group:
            for edit in edits(done, self.spool.lines(done.case)):
                self.writer.add(edit)
        self.writer.sync()

    async def _edits(
        self, group: list[SummarizedMemory], changes: dict[MemoryKey, ChangeCounts]
    ) -> AsyncGenerator[Edit]:
        for done in group:
            for edit in edits(done, self.spool.lines(done.case)):
                changes[edit.memory.key].add(edit)
                yield edit

    def _settle(self, done: SummarizedMemory, changes: ChangeCounts, result: WriteResult) -> None:
        case, report = done.case, self.report
        report.changes.left -= 1
        if result.failure is not None:
            report.changes.failures.append((result.key, result.failure))
            return
        self.compressing.journal.note(result)
        report.changes.done.merge(changes)
        report.settle(case, case.rest + self._tokens(done))
        self.watching.advance(memories=1, tokens=case.tokens, cost=report.cost)

    def _tokens(self, done: SummarizedMemory) -> int:
        """Return the number of tokens of the new summary that agents send to a model."""
        if done.put is None:
            return self.compressing.summarizer.count(done.text)
        found = transcribe(done.put.message, self.store.dialect)
        return message_tokens(found, self.compressing.summarizer.count)


def _is_enough(group: list[SummarizedMemory]) -> bool:
    messages = sum([done.case.messages for done in group])
    return len(group) >= GROUP_MEMORIES or messages >= GROUP_MESSAGES


PROMPT_TOKENS = 500
REPLY_TOKENS = 500
"""The approximate tokens of a prompt without the conversation, and of a summary."""


class Budget(Struct):
    """The limit of the cost of a compression, with the reserved costs of unfinished memories."""

    limit: float | None
    """In the currency of the summarizer's prices; None sets no limit."""
    summarizer: Summarizer
    parts: ChunkedSummarizer
    _going_on: dict[int, float] = msgspec.field(default_factory=dict)

    def estimate(self, case: CompressionPlan) -> Usage:
        """Return the estimated tokens of all requests for a memory; zero without a model."""
        if self.summarizer.kind == "extractive":
            return Usage()
        calls = self.parts.calls(case.tokens)
        read = case.tokens + (calls - 1) * REPLY_TOKENS + (REPLY_TOKENS if case.earlier else 0)
        return Usage(read + calls * PROMPT_TOKENS, calls * REPLY_TOKENS)

    def allows(self, case: CompressionPlan, spent: float) -> bool:
        """Return whether a memory may be summarized; if so, reserve its estimated cost.

        ``spent`` is the cost of all requests so far.  The sum of ``spent``, the reserved costs of
        other memories and the estimated cost must not exceed the limit.
        """
        if self.limit is None or self.summarizer.prices is None:
            return True
        cost = self.summarizer.prices.of(self.estimate(case))
        if spent + sum(self._going_on.values()) + cost > self.limit:
            return False
        self._going_on[case.start] = cost
        return True

    def settle(self, case: CompressionPlan) -> None:
        """Release the reserved cost of a memory that is summarized or has failed."""
        self._going_on.pop(case.start, None)


_MARKS = {
    CompressMode.MARK: (COMPRESSED,),
    CompressMode.MESSAGE: (COMPRESSED, SUMMARY),
    CompressMode.REPLACE: (SUMMARY,),
}
"""The marks that each mode sets on messages."""
_NO_STATE = Failure(
    "no-state",
    "its session has no saved state for the summary; use --mode message",
)
_TOO_MANY = Failure("too-many", "has grown, and would exceed --max-delete")


async def plan_compression(
    store: Store,
    where: Selection,
    options: CompressOptions,
    count: Callable[[str], int],
    spool: Spool | None,
    report: CompressReport,
    seen: Callable[[CompressionPlan], None],
    progress: Progress,
    held: Held,
    permits: Permits | None = None,
) -> None:
    """Read the selected memories, and add the memories to compress to the spool and the report.

    ``seen`` is called with the plan of each memory to compress.  ``spool`` is None for a dry run.
    A memory without a place for a summary that its agent reads becomes a failure of the report, and
    so does a held memory that would lose messages or a summary.
    ``permits`` says which messages may be summarized; None permits all.
    ``count`` counts the tokens of a text.  A few bytes of each message are in RAM until the end of
    its memory.

    Raises:
        UsageError: the store holds facts, or its messages cannot have the marks of the mode.
        BadData: a message is not JSON.
        MemctlError: as ``Store.check_integrity`` and ``Store.read``.
    """
    refuse_facts(store, "conversation to summarize")
    copying = f"memctl migrate {shlex.quote(without_secrets(store.label))} agents.db"
    for mark in _MARKS[options.mode]:
        require_mark(store, mark, f"copy it to AgentScope to compress it: {copying}")
    await store.check_integrity(whole_memories(where))
    found = 0
    behind: str | None = None
    history: CompressionPlanner | None = None
    async with aclosing(_pages(store, where, options.mode)) as pages:
        async for page in pages:
            if page.offset == 0 or history is None:
                if spool is not None:
                    spool.drop()  # remains of a damaged memory
                history = CompressionPlanner(
                    page.memory, where, options, count, store.dialect, permits
                )
                behind = None
            indexes = places(store, page)
            for place, (entry, at) in enumerate(zip(page.messages, indexes, strict=True)):
                line = history.take(entry)._replace(shape=entry.shape, at=at)
                if page.anchors is not None and page.anchors[place] != behind:
                    behind = page.anchors[place]
                    line = line._replace(behind=behind)
                if spool is not None:
                    spool.add(line)
            size = sum([len(entry.message) for entry in page.messages])
            progress.advance(memories=int(page.last), messages=len(page.messages), size=size)
            if not page.last:
                continue
            case = history.case()
            key = page.memory.key
            report.see(key, *history.size())
            history = None
            if case and options.mode is CompressMode.MARK and not await store.keeps_summary(key):
                case = None
                report.changes.failures.append((key, _NO_STATE))
            if case and case.removes(options.mode) and (failure := held(key)):
                case = None
                report.changes.failures.append((key, failure))
            if spool is not None:
                spool.keep(case) if case is not None else spool.drop()
            if case is not None:
                found += 1
                report.plan(case, options.mode)
                seen(case)
            if found == options.max_memories:
                return
            await asyncio.sleep(0)  # let the requests to the model run between pages


def _pages(store: Store, where: Selection, mode: CompressMode) -> AsyncGenerator[Page]:
    """Yield all messages of the selected memories; compressed messages only in mode ``replace``."""
    whole = whole_memories(where)
    if mode is CompressMode.REPLACE:
        return undamaged_pages(store.read, whole)
    rest = replace(whole, exclude_marks=frozenset({COMPRESSED}))
    if mode is CompressMode.MARK:
        return undamaged_pages(store.read, rest)
    # For undo, a deleted summary has its place: between the messages that it summarizes.
    return undamaged_pages(partial(select_with_anchors, store), rest)


GRACE_SECONDS = 10.0
"""The seconds that requests may take to finish after a stop was asked for."""
UNREACHABLE_IN_A_ROW = 3
"""The number of consecutive unanswered requests that ends the run."""
HOPELESS = 20
"""The number of failed memories that ends the run, if no memory was summarized."""
AHEAD = 4
"""The number of memories for each job that may be summarized before all memories are found.

The cost of their summaries is lost if the store cannot be read to its end.
"""

FindPlans = Callable[[], Coroutine[Any, Any, None]]
"""Adds the memories to summarize to the spool, and calls ``found`` for each."""
CommitSummaries = Callable[[asyncio.Queue[SummarizedMemory | None]], Coroutine[Any, Any, None]]
"""Writes the summaries in a queue to the store, until the queue gives None."""


@dataclass(slots=True)
class CompressionPipeline:
    """Concurrent jobs that summarize the memories in a spool and commit the finished summaries.

    ``most`` is the largest number of messages to delete: a memory that would exceed it becomes a
    failure of ``report``.  ``run`` opens the summarizer.

    Raises:
        UsageError: as ``ChunkedSummarizer``.
    """

    spool: Spool
    options: CompressOptions
    summarizer: Summarizer
    report: CompressReport
    stop: Stop
    dialect: Dialect = AGENTSCOPE1
    most: float = math.inf
    _all_found: bool = False
    """True after the last memory was added to the spool."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if a waiting job should look for a memory in the spool again."""
    _ready: asyncio.Queue[SummarizedMemory | None] = field(default_factory=asyncio.Queue)
    """The summarized memories that wait for a commit; None is the end."""
    _answered: bool = False
    """True if the model has answered a request."""
    _deleted: int = 0
    """The number of messages to delete in the memories that jobs have taken."""
    _summarised: int = 0
    _failed: int = 0
    _silent: int = 0
    """The number of memories in a row whose requests were not answered."""
    _parts: ChunkedSummarizer = field(init=False)
    _budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self._parts = ChunkedSummarizer(self.summarizer, self._spend)
        self._budget = Budget(self.options.max_cost, self.summarizer, self._parts)

    @property
    def _ahead(self) -> int:
        """The number of memories that may be summarized before all memories are found."""
        return AHEAD * self.options.jobs

    def found(self) -> None:
        """Count a memory that was added to the spool, and wake a waiting job."""
        self.report.changes.left += 1
        if self.spool.taken < self._ahead:
            self._news.set()

    async def run(self, find: FindPlans, commit: CommitSummaries) -> None:
        """Summarize and commit all memories that ``find`` adds to the spool.

        Requests begin with the first memory: an unreachable model is noticed before a large store
        is read to its end.  Commits begin after the last memory was found: the store is not read
        and written at the same time, and a store that cannot be read stays unchanged.

        Raises:
            Unavailable: the model or the store cannot be reached any more; the memories that the
                report counts as done are durable.
            Interrupted: a stop was asked for; the memories that the report counts as done are
                durable.
            MemctlError: as ``find``; nothing was committed.
        """
        with self.stop.cooperative_while():
            jobs = asyncio.create_task(self._summarise_all())
            try:
                await self._find(find, jobs)
                if self.spool.cases:
                    await self._commit(commit, jobs)
                await asyncio.wait({jobs})
            finally:
                jobs.cancel()
                await asyncio.wait({jobs})
        jobs.result()
        self.stop.end_if_asked()

    async def _find(self, find: FindPlans, jobs: asyncio.Task[None]) -> None:
        finding = asyncio.create_task(find())
        try:
            await asyncio.wait({finding, jobs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # If the jobs have ended, no job would begin the memories that are still to be found.
            finding.cancel()
            await asyncio.wait({finding})
        if not finding.cancelled():
            finding.result()
        self._all_found = True
        self._news.set()

    async def _commit(self, commit: CommitSummaries, jobs: asyncio.Task[None]) -> None:
        committing = asyncio.create_task(commit(self._ready))
        try:
            await asyncio.wait({committing, jobs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if committing.done() or not jobs.done():
                jobs.cancel()
            await asyncio.wait({jobs})
            # Paid summaries are committed, even after an error.
            self._ready.put_nowait(None)
            await asyncio.wait({committing})
        committing.result()

    async def _summarise_all(self) -> None:
        async with self.summarizer:
            await self._do_jobs()

    async def _do_jobs(self) -> None:
        tasks = [asyncio.create_task(self._job()) for _ in range(self.options.jobs)]
        asked = asyncio.create_task(self.stop.wait())
        try:
            every: asyncio.Future[Any] = asyncio.gather(*tasks)
            await asyncio.wait({every, asked}, return_when=asyncio.FIRST_COMPLETED)
            self._news.set()
            await asyncio.wait({every}, timeout=GRACE_SECONDS)
            if every.done():
                every.result()
        finally:
            for task in (*tasks, asked):
                task.cancel()
            await asyncio.wait([*tasks, asked])

    async def _job(self) -> None:
        while (case := await self._next()) is not None:
            try:
                turns = (line.turn for line in self.spool.lines(case) if case.goes(line))
                found = await self._parts.summarise(filter(None, turns), case.earlier, case.tokens)
            except ModelError as error:
                self._fail(case, Failure(error.code, error.message))
                self._refuse_hopeless(error)
            except Unreachable as error:
                self._silent += 1
                if not self._answered or self._silent >= UNREACHABLE_IN_A_ROW:
                    raise
                self._fail(case, Failure("unreachable", error.message))
            else:
                self._silent = 0
                self._summarised += 1
                text = self._render(found)
                mode = self.options.mode
                await self._ready.put(summarized(case, text, mode, self.dialect))
            finally:
                self._budget.settle(case)

    async def _next(self) -> CompressionPlan | None:
        """Return the plan of the next memory in the spool that the limits allow.

        None if there are no further memories, or a stop was asked for.
        """
        while not self.stop.asked:
            may_begin = self._all_found or self.spool.taken < self._ahead
            case = self.spool.take() if may_begin else None
            if case is not None:
                deleted = self._deleted + case.deleted(self.options.mode)
                if not self._budget.allows(case, self.report.cost or 0.0):
                    self.report.over_budget += 1
                    self.report.changes.left -= 1
                elif deleted > self.most:
                    self._budget.settle(case)
                    self._fail(case, _TOO_MANY)
                else:
                    self._deleted = deleted
                    return case
            elif self._all_found:
                break
            else:
                self._news.clear()
                await self._news.wait()
        return None

    def _fail(self, case: CompressionPlan, failure: Failure) -> None:
        self.report.changes.failures.append((case.memory.key, failure))
        self.report.changes.left -= 1

    def _refuse_hopeless(self, error: ModelError) -> None:
        self._failed += 1
        if not self._summarised and self._failed >= HOPELESS:
            raise Unavailable(
                f"none of the first {self._failed} memories could be summarized: {error.message}",
                "try one memory with --max-memories 1",
            ) from error

    def _render(self, found: Summary | str) -> str:
        return render_free(found) if isinstance(found, str) else found.render(self.options.template)

    def _spend(self, usage: Usage, calls: int) -> None:
        self._answered = self._answered or calls > 0
        report = self.report
        report.calls += calls
        report.usage = report.usage.plus(usage)
        if (prices := self.summarizer.prices) is not None:
            report.cost = (report.cost or 0.0) + prices.of(usage)


@dataclass(eq=False)
class CompressRun(ChangeRun):
    """A run that summarizes old messages, and commits a memory as soon as its summary is ready.

    Raises:
        UsageError: the cost is limited, and the summarizer has no prices.
    """

    wanted: CompressOptions
    summarizer: Summarizer
    permits: Permits | None = None
    """Says which messages may be summarized; None permits all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wanted.max_cost is not None and self.summarizer.prices is None:
            name = self.summarizer.name
            raise UsageError(
                f"--max-cost needs the prices of {name!r}",
                f"set input_price and output_price in [summarizers.{name}]",
            )
        self.compressed = CompressReport(self.report, self.summarizer.counted_by)
        if self.summarizer.prices is not None:
            self.compressed.cost = 0.0
        self.preview = self.compressed if self.dry_run else CompressReport()
        """The counts of ``plan``, which a dry run reports."""
        self._parts = ChunkedSummarizer(self.summarizer, lambda *_: None)
        self._written = False

    @property
    def changed(self) -> bool:
        """Return whether the journal has changes of a memory."""
        return self._written

    @property
    def deleted(self) -> int:
        return self.preview.changes.planned.deleted

    @property
    def noun(self) -> str:
        return self.preview.changes.noun

    def counts(self) -> dict[str, int]:
        """Return the numbers of summarized memories, and of deleted and marked messages."""
        done = self.report.done
        return {"summarised": done.memories, "deleted": done.deleted, "marked": done.marked}

    async def plan(self, store: Store) -> bool:
        """Count the memories to compress in ``preview``, and estimate the cost.

        Return False if there are no such memories.  ``carry_out`` will examine only these memories
        again.

        Raises:
            MemctlError: as ``plan_compression``.
        """
        found = self.preview
        keys: set[MemoryKey] = set()
        budget = Budget(self.wanted.max_cost, self.summarizer, self._parts)

        def seen(case: CompressionPlan) -> None:
            keys.add(case.memory.key)
            if not budget.allows(case, self._estimated()):
                found.leave(case, self.wanted.mode)
                return
            budget.settle(case)
            changes = found.changes
            changes.planned_by_memory[case.memory.key] = case.messages + case.gone
            changes.staying[case.memory.key] = case.stay
            found.estimate(case, budget.estimate(case), self._parts.calls(case.tokens))

        await self._scan(store, None, seen, found)
        if self.summarizer.prices is not None:
            found.cost = self._estimated()
        self.most = await self.most_allowed(store)
        if self.dry_run:
            return bool(keys)
        self.report.failures += found.changes.failures
        if not keys:
            self.compressed.largest = found.largest
            return False
        self.where = self.where.only(frozenset(keys))
        return True

    def _estimated(self) -> float:
        prices = self.summarizer.prices
        return 0.0 if prices is None else prices.of(self.preview.usage)

    async def execute(self, store: Store) -> None:
        """Lock the store, and summarize and commit the memories.

        Without a limit, memories are not counted first.  A dry run only plans.

        Raises:
            MemctlError: as ``plan`` and ``carry_out``.
        """
        store.refuse_edits()
        if not self.dry_run:
            await lock(store)
        something = not self.dry_run and self.options.limit is None
        if not something:
            something = await self.plan(store)
            self.refuse_many()
        if something and not self.dry_run:
            await self.carry_out(store)

    async def carry_out(self, store: Store) -> None:
        """Find memories and summarize them at the same time, and commit them.

        Raises:
            Unavailable: the model or the store cannot be reached any more; no memory is half
                changed.
            Interrupted: a stop was asked for; no memory is half changed.
        """
        with Spool(self.journal.folder) as spool:
            work = CompressionPipeline(
                *(spool, self.wanted, self.summarizer, self.compressed, self.stop),
                *(store.dialect, self.most),
            )
            await work.run(
                lambda: self._scan(store, spool, lambda _: work.found(), self.compressed),
                lambda ready: self._commit(store, spool, ready),
            )
        if left := self.compressed.over_budget:
            self._observer.warn(
                f"{count(left, 'memory')} not compressed because of --max-cost: run again, or "
                "raise it"
            )

    async def _scan(
        self,
        store: Store,
        spool: Spool | None,
        then: Callable[[CompressionPlan], None],
        report: CompressReport,
    ) -> None:
        deletes = self.wanted.mode is CompressMode.REPLACE
        if deletes:
            await self.refuse_deletion(store)
        first: list[MemoryKey] = []

        def found(case: CompressionPlan) -> None:
            if not first:
                first.append(case.memory.key)
            then(case)

        with self._observer.progress("reading") as progress:
            await plan_compression(
                *(store, self.where, self.wanted, self.summarizer.count, spool),
                *(report, found, progress, self.held(store), self.permits),
            )
        if deletes and first:
            await self.refuse_missing_right(store, first[0])
        self.note_damage(store)
        if not report.changes.planned.memories:
            await self._refuse_absent(store)

    async def _commit(
        self, store: Store, spool: Spool, ready: asyncio.Queue[SummarizedMemory | None]
    ) -> None:
        self.begin()
        with (
            self.journal.writer(growing=True) as writer,
            store.foreseen(self.journal.foresee),
            self._observer.summarising(self.report.planned.memories) as watching,
        ):
            commits = SummaryCommitter(self, store, spool, writer, watching, self._observer)
            try:
                await commits.run(ready)
            finally:
                self._written = commits.begun
                if commits.begun:
                    self._finish(writer)

    def _finish(self, writer: ChangesWriter) -> None:
        try:
            writer.finish()
        except Unavailable as error:
            # Committed memories are synced; undo works with the incomplete file.
            self._observer.warn(f"cannot record the end of the run: {error.message}")
