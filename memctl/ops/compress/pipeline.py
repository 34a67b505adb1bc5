"""A compression run: memories are found, summarized concurrently, and committed.

One pass over the store fills the spool, without waiting for the model.
"""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import COMPRESSED, SUMMARY, Dialect
from memctl.errors import Failure, Unavailable
from memctl.inference.errors import ModelError, Unreachable
from memctl.inference.settings import Usage
from memctl.inference.summary import Summary, render_free
from memctl.location import without_secrets
from memctl.model import Page
from memctl.ops.change.apply import Held
from memctl.ops.change.marks import require_mark
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.commit import SummarizedMemory, summarized
from memctl.ops.compress.plan import (
    CompressionPlan,
    CompressionPlanner,
    CompressMode,
    CompressOptions,
    Permits,
)
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.report import Progress
from memctl.ops.retry import undamaged_pages
from memctl.ops.select import places, select_with_anchors, whole_memories
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.store import Store, refuse_facts
from memctl.summarizer import Summarizer

PROMPT_TOKENS = 500
REPLY_TOKENS = 500
"""The approximate tokens of a prompt without the conversation, and of a summary."""


class Budget:
    """The limit of the cost of a compression, with the reserved costs of unfinished memories."""

    def __init__(
        self, limit: float | None, summarizer: Summarizer, parts: ChunkedSummarizer
    ) -> None:
        """``limit`` is in the currency of the summarizer's prices; None sets no limit."""
        self._limit = limit
        self._prices = summarizer.prices
        self._asks = summarizer.kind != "extractive"
        self._parts = parts
        self._going_on: dict[int, float] = {}

    def estimate(self, case: CompressionPlan) -> Usage:
        """Return the estimated tokens of all requests for a memory; zero without a model."""
        if not self._asks:
            return Usage()
        calls = self._parts.calls(case.tokens)
        read = case.tokens + (calls - 1) * REPLY_TOKENS + (REPLY_TOKENS if case.earlier else 0)
        return Usage(read + calls * PROMPT_TOKENS, calls * REPLY_TOKENS)

    def allows(self, case: CompressionPlan, spent: float) -> bool:
        """Return whether a memory may be summarized; if so, reserve its estimated cost.

        ``spent`` is the cost of all requests so far.  The sum of ``spent``, the reserved costs of
        other memories and the estimated cost must not exceed the limit.
        """
        if self._limit is None or self._prices is None:
            return True
        cost = self._prices.of(self.estimate(case))
        if spent + sum(self._going_on.values()) + cost > self._limit:
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


class CompressionPipeline:
    """Concurrent jobs that summarize the memories in a spool and commit the finished summaries."""

    def __init__(
        self,
        spool: Spool,
        options: CompressOptions,
        summarizer: Summarizer,
        report: CompressReport,
        stop: Stop,
        dialect: Dialect = AGENTSCOPE1,
        most: float = math.inf,
    ) -> None:
        """``most`` is the largest number of messages to delete.

        A memory that would exceed ``most`` becomes a failure of ``report``.  ``run`` opens the
        summarizer.

        Raises:
            UsageError: as ``ChunkedSummarizer``.
        """
        self._summarizer = summarizer
        self._spool = spool
        self._options = options
        self._report = report
        self._stop = stop
        self._dialect = dialect
        self._prices = summarizer.prices
        self._parts = ChunkedSummarizer(summarizer, self._spend)
        self._budget = Budget(options.max_cost, summarizer, self._parts)
        self._ahead = AHEAD * options.jobs
        """The number of memories that may be summarized before all memories are found."""
        self._all_found = False
        """True after the last memory was added to the spool."""
        self._news = asyncio.Event()
        """Set if a waiting job should look for a memory in the spool again."""
        self._ready: asyncio.Queue[SummarizedMemory | None] = asyncio.Queue()
        """The summarized memories that wait for a commit; None is the end."""
        self._answered = False
        """True if the model has answered a request."""
        self._most = most
        self._deleted = 0
        """The number of messages to delete in the memories that jobs have taken."""
        self._summarised = self._failed = 0
        self._silent = 0
        """The number of memories in a row whose requests were not answered."""

    def found(self) -> None:
        """Count a memory that was added to the spool, and wake a waiting job."""
        self._report.changes.left += 1
        if self._spool.taken < self._ahead:
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
        with self._stop.cooperative_while():
            jobs = asyncio.create_task(self._summarise_all())
            try:
                await self._find(find, jobs)
                if self._spool.cases:
                    await self._commit(commit, jobs)
                await asyncio.wait({jobs})
            finally:
                jobs.cancel()
                await asyncio.wait({jobs})
        jobs.result()
        self._stop.end_if_asked()

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
        async with self._summarizer:
            await self._do_jobs()

    async def _do_jobs(self) -> None:
        tasks = [asyncio.create_task(self._job()) for _ in range(self._options.jobs)]
        asked = asyncio.create_task(self._stop.wait())
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
                turns = (line.turn for line in self._spool.lines(case) if case.goes(line))
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
                mode = self._options.mode
                await self._ready.put(summarized(case, text, mode, self._dialect))
            finally:
                self._budget.settle(case)

    async def _next(self) -> CompressionPlan | None:
        """Return the plan of the next memory in the spool that the limits allow.

        None if there are no further memories, or a stop was asked for.
        """
        while not self._stop.asked:
            may_begin = self._all_found or self._spool.taken < self._ahead
            case = self._spool.take() if may_begin else None
            if case is not None:
                deleted = self._deleted + case.deleted(self._options.mode)
                if not self._budget.allows(case, self._report.cost or 0.0):
                    self._report.over_budget += 1
                    self._report.changes.left -= 1
                elif deleted > self._most:
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
        self._report.changes.failures.append((case.memory.key, failure))
        self._report.changes.left -= 1

    def _refuse_hopeless(self, error: ModelError) -> None:
        self._failed += 1
        if not self._summarised and self._failed >= HOPELESS:
            raise Unavailable(
                f"none of the first {self._failed} memories could be summarized: {error.message}",
                "try one memory with --max-memories 1",
            ) from error

    def _render(self, found: Summary | str) -> str:
        return (
            render_free(found) if isinstance(found, str) else found.render(self._options.template)
        )

    def _spend(self, usage: Usage, calls: int) -> None:
        self._answered = self._answered or calls > 0
        report = self._report
        report.calls += calls
        report.usage = report.usage.plus(usage)
        if self._prices is not None:
            report.cost = (report.cost or 0.0) + self._prices.of(usage)
