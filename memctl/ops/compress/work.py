"""Having memories summarised, many at once, and committing each as soon as it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from memctl.errors import Failure, Interrupted, Unavailable
from memctl.ops.compress.budget import Budget
from memctl.ops.compress.commit import Commits
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


class Work:
    """One run: what is in the spool is summarised by several jobs, and committed beside them."""

    def __init__(
        self,
        spool: Spool,
        wanted: Wanted,
        summarizer: Summarizer,
        report: CompressReport,
        stop: Stop,
    ) -> None:
        """See ``Parts`` for what it may raise."""
        self._spool = spool
        self._wanted = wanted
        self._report = report
        self._stop = stop
        self._prices = summarizer.prices
        self._parts = Parts(summarizer, self._spend)
        self._budget = Budget(wanted.max_cost, summarizer, self._parts)
        self._cases: Iterator[Case] = spool.rewind()
        self._ready: asyncio.Queue[Done | None] = asyncio.Queue()
        self._answered = asyncio.Event()
        """Whether the model is there: one request alone finds that out."""
        self._summarised = self._failed = 0
        self._silent = 0
        """Requests in a row that found nobody."""

    async def run(self, commits: Commits) -> None:
        """Has everything summarised and committed.

        Raises:
            Unavailable: the model or the store went away; what the report says is done is durable.
            Interrupted: a stop was asked for; the same holds.
        """
        self._report.changes.left = self._report.changes.planned.memories
        with self._stop.heeded():
            committing = asyncio.create_task(commits.run(self._ready))
            jobs = asyncio.create_task(self._summarise_all())
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
        jobs.result()
        if self._stop.asked:
            raise Interrupted("stopped as asked", "what was reported as done is whole")

    async def _summarise_all(self) -> None:
        tasks = [asyncio.create_task(self._job())]
        asked = asyncio.create_task(self._stop.wait())
        answered = asyncio.create_task(self._answered.wait())
        try:
            first = {tasks[0], asked, answered}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                tasks += [asyncio.create_task(self._job()) for _ in range(self._wanted.jobs - 1)]
            every: asyncio.Future[Any] = asyncio.gather(*tasks)
            await asyncio.wait({every, asked}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({every}, timeout=GRACE_SECONDS)
            if every.done():
                every.result()
        finally:
            for task in (*tasks, asked, answered):
                task.cancel()
            await asyncio.wait([*tasks, asked, answered])

    async def _job(self) -> None:
        while (case := self._next()) is not None:
            try:
                turns = (line.turn for line in self._spool.lines(case) if case.goes(line))
                found = await self._parts.summarise(filter(None, turns), case.earlier, case.tokens)
            except SummaryError as error:
                self._fail(case, Failure(error.code, error.message))
                self._refuse_hopeless(error)
            except Unreachable as error:
                self._silent += 1
                if not self._answered.is_set() or self._silent >= UNREACHABLE_IN_A_ROW:
                    raise
                self._fail(case, Failure("unreachable", error.message))
            else:
                self._silent = 0
                self._summarised += 1
                await self._ready.put(done(case, self._render(found), self._wanted.mode))
            finally:
                self._budget.settle(case)

    def _next(self) -> Case | None:
        """The next memory that the budget allows."""
        if self._stop.asked:
            return None
        for case in self._cases:
            if self._budget.allows(case, self._report.cost or 0.0):
                return case
            self._report.over_budget += 1
            self._report.changes.left -= 1
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
        self._answered.set()
        report = self._report
        report.calls += 1
        report.usage = report.usage.plus(usage)
        if self._prices is not None:
            report.cost = (report.cost or 0.0) + self._prices.of(usage)
