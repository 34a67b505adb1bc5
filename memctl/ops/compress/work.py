"""Having memories summarised, many at once, and committing each as soon as it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from memctl.errors import Failure, Interrupted, Unavailable
from memctl.ops.compress.budget import Budget
from memctl.ops.compress.edits import Done, done
from memctl.ops.compress.parts import Parts
from memctl.ops.compress.plan import Case, Wanted
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.stop import Stop
from memctl.summarizer import Summarizer, SummaryError, Unreachable, Usage
from memctl.summary import Summary, render_free

GRACE_SECONDS = 10.0
"""How long requests that are paid for may go on after a stop is asked for."""
UNREACHABLE_IN_A_ROW = 3
"""After so many requests that found nobody the model is taken to be gone."""
HOPELESS = 20
"""So many memories may fail before the first one is summarised."""
AHEAD = 4
"""So many memories a job may be begun before all are found.

What they cost is lost if the store cannot be read to its end.
"""

Find = Callable[[], Coroutine[Any, Any, None]]
"""Puts what is to be summarised into the spool, and says so of each."""
Commit = Callable[[asyncio.Queue[Done | None]], Coroutine[Any, Any, None]]
"""Takes what comes out of the queue into the store, until None does."""


class Work:
    """One run: what is found is summarised by several jobs, and committed beside them."""

    def __init__(
        self,
        spool: Spool,
        wanted: Wanted,
        summarizer: Summarizer,
        report: CompressReport,
        stop: Stop,
    ) -> None:
        """``summarizer`` is opened by ``run``; see ``Parts`` for what it may raise."""
        self._summarizer = summarizer
        self._spool = spool
        self._wanted = wanted
        self._report = report
        self._stop = stop
        self._prices = summarizer.prices
        self._parts = Parts(summarizer, self._spend)
        self._budget = Budget(wanted.max_cost, summarizer, self._parts)
        self._ahead = AHEAD * wanted.jobs
        """How many memories may begin before all are found."""
        self._all_found = False
        self._news = asyncio.Event()
        """Whether there may be more to begin than when a job looked."""
        self._ready: asyncio.Queue[Done | None] = asyncio.Queue()
        self._answered = False
        """Whether the model is there: the first of the requests find that out."""
        self._summarised = self._failed = 0
        self._silent = 0
        """Requests in a row that found nobody."""

    def found(self) -> None:
        """Another memory is in the spool."""
        self._report.changes.left += 1
        if self._spool.taken < self._ahead:
            self._news.set()

    async def run(self, find: Find, commit: Commit) -> None:
        """Has everything summarised and committed that ``find`` puts into the spool.

        The model is asked from the first memory on, so that one that is not there is noticed before
        a large store is read to its end.  Nothing is committed before all is found: no store has to
        be read and written at once, and where it cannot be read nothing is changed.

        Raises:
            Unavailable: the model or the store went away; what the report says is done is durable.
            Interrupted: a stop was asked for; the same holds.
            MemctlError: as ``find``; nothing was committed.
        """
        with self._stop.heeded():
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
        if self._stop.asked:
            raise Interrupted("stopped as asked", "what was reported as done is whole")

    async def _find(self, find: Find, jobs: asyncio.Task[None]) -> None:
        finding = asyncio.create_task(find())
        try:
            await asyncio.wait({finding, jobs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Where the jobs have ended, nobody would begin what is found.
            finding.cancel()
            await asyncio.wait({finding})
        if not finding.cancelled():
            finding.result()
        self._all_found = True
        self._news.set()

    async def _commit(self, commit: Commit, jobs: asyncio.Task[None]) -> None:
        committing = asyncio.create_task(commit(self._ready))
        try:
            await asyncio.wait({committing, jobs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if committing.done() or not jobs.done():
                jobs.cancel()
            await asyncio.wait({jobs})
            # What was paid for is kept, however the rest ended.
            self._ready.put_nowait(None)
            await asyncio.wait({committing})
        committing.result()

    async def _summarise_all(self) -> None:
        async with self._summarizer:
            await self._do_jobs()

    async def _do_jobs(self) -> None:
        tasks = [asyncio.create_task(self._job()) for _ in range(self._wanted.jobs)]
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
            except SummaryError as error:
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
                await self._ready.put(done(case, self._render(found), self._wanted.mode))
            finally:
                self._budget.settle(case)

    async def _next(self) -> Case | None:
        """The next memory that the budget allows, as soon as it is found."""
        while not self._stop.asked:
            may_begin = self._all_found or self._spool.taken < self._ahead
            case = self._spool.take() if may_begin else None
            if case is not None:
                if self._budget.allows(case, self._report.cost or 0.0):
                    return case
                self._report.over_budget += 1
                self._report.changes.left -= 1
            elif self._all_found:
                break
            else:
                self._news.clear()
                await self._news.wait()
        return None

    def _fail(self, case: Case, failure: Failure) -> None:
        self._report.changes.failures.append((case.memory.key, failure))
        self._report.changes.left -= 1

    def _refuse_hopeless(self, error: SummaryError) -> None:
        self._failed += 1
        if not self._summarised and self._failed >= HOPELESS:
            raise Unavailable(
                f"none of the first {self._failed} memories could be summarised: {error.message}",
                "memctl compress --max-memories 1 tries one",
            ) from error

    def _render(self, found: Summary | str) -> str:
        return render_free(found) if isinstance(found, str) else found.render(self._wanted.template)

    def _spend(self, usage: Usage) -> None:
        self._answered = True
        report = self._report
        report.calls += 1
        report.usage = report.usage.plus(usage)
        if self._prices is not None:
            report.cost = (report.cost or 0.0) + self._prices.of(usage)
