"""A run that compresses memories; each memory is committed as soon as it is summarized."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial

from memctl.errors import Unavailable
from memctl.journal import runs
from memctl.journal.changes import ChangesWriter
from memctl.model import Edit, MemoryKey
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.commit import SummarizedMemory, SummaryCommitter
from memctl.ops.compress.pipeline import Budget, CompressionPipeline, plan_compression
from memctl.ops.compress.plan import CompressionPlan, CompressMode, CompressOptions, Permits
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.lock import lock
from memctl.ops.select import most_deletions
from memctl.selection import Selection
from memctl.store import Store
from memctl.summarizer import Summarizer
from memctl.text.numbers import count


async def _no_edits(_store: Store, _where: Selection) -> AsyncGenerator[Edit]:
    return
    yield


class CompressRun(ChangeRun):
    """A run that summarizes old messages, and commits a memory as soon as its summary is ready."""

    def __init__(
        self,
        record: runs.Run,
        where: Selection,
        wanted: CompressOptions,
        summarizer: Summarizer,
        options: RunOptions,
        limit: tuple[float, bool] | None = None,
    ) -> None:
        """``limit`` is the largest number of messages to delete, as for ``DeleteRun``."""
        super().__init__(
            record,
            where,
            _no_edits,
            options,
        )
        self.wanted = wanted
        self.permits: Permits | None = None
        """Says which messages may be summarized; None permits all."""
        self.summarizer = summarizer
        self.compressed = CompressReport(self.report, summarizer.counted_by)
        if summarizer.prices is not None:
            self.compressed.cost = 0.0
        self.preview = self.compressed if self.dry_run else CompressReport()
        """The counts of ``plan``, which a dry run reports."""
        self._limit = limit
        self._parts = ChunkedSummarizer(summarizer, lambda *_: None)
        self._written = False

    @property
    def changed(self) -> bool:
        """Return whether the journal has changes of a memory."""
        return self._written

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
        if self._limit is not None:
            self.most = await most_deletions(store, self.where, self._limit)
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
        """Lock the store, and summarize and commit the memories if ``approve`` returns True.

        Without a limit, memories are not counted first.  A dry run only plans.

        Raises:
            MemctlError: as ``plan`` and ``carry_out``.
        """
        store.refuse_changes()
        if not self.dry_run:
            await lock(store)
        if self.dry_run:
            await self.plan(store)
            self.approve()
        elif self._limit is None or (await self.plan(store) and self.approve()):
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
            commits = SummaryCommitter(
                *(store, spool, self.summarizer, writer, self.compressed, watching),
                *(self.journal.note, self._observer.warn, partial(self.held, store)),
            )
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
