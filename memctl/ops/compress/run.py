"""A run that compresses memories; each memory is committed as soon as it is summarized."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from memctl.errors import Unavailable
from memctl.journal import runs
from memctl.journal.changes import ChangesWriter
from memctl.model import Edit
from memctl.ops.change import ChangeRun, RunOptions
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.commit import SummarizedMemory, SummaryCommitter
from memctl.ops.compress.pipeline import Budget, CompressionPipeline, plan_compression
from memctl.ops.compress.plan import CompressionPlan, CompressMode, CompressOptions
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.lock import lock
from memctl.selection import Selection
from memctl.store import Store
from memctl.summarizer import Summarizer


async def _no_edits(_store: Store, _where: Selection) -> AsyncGenerator[Edit]:
    """Yield no edits: ``CompressRun`` plans each memory while earlier memories are summarized."""
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
    ) -> None:
        super().__init__(
            record,
            where,
            _no_edits,
            options,
        )
        self.wanted = wanted
        self.summarizer = summarizer
        self.compressed = CompressReport(self.report, summarizer.counted_by)
        if summarizer.prices is not None:
            self.compressed.cost = 0.0
        self._parts = ChunkedSummarizer(summarizer, lambda _: None)
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
        """Plan and estimate the compression for a dry run; return False if no memory qualifies."""
        budget = Budget(self.wanted.max_cost, self.summarizer, self._parts)

        def seen(case: CompressionPlan) -> None:
            if not budget.allows(case, self._estimated()):
                self.compressed.leave(case, deleted=self.wanted.mode is CompressMode.REPLACE)
                return
            budget.settle(case)
            self.report.planned_by_memory[case.memory.key] = case.messages
            self.report.staying[case.memory.key] = case.stay
            self.compressed.estimate(case, budget.estimate(case), self._parts.calls(case.tokens))

        await self._scan(store, None, seen)
        if self.summarizer.prices is not None:
            self.compressed.cost = self._estimated()
        return bool(self.report.planned.memories)

    def _estimated(self) -> float:
        prices = self.summarizer.prices
        return 0.0 if prices is None else prices.of(self.compressed.usage)

    async def execute(self, store: Store) -> None:
        """Lock the store, find memories and summarize them at the same time, and commit them.

        A dry run only plans.

        Raises:
            Unavailable: the model or the store cannot be reached any more; no memory is half
                changed.
            MemctlError: as ``ChangeRun.execute``.
        """
        if self.dry_run:
            await self.plan(store)
            return
        await lock(store)
        with Spool(self.journal.folder) as spool:
            work = CompressionPipeline(
                *(spool, self.wanted, self.summarizer, self.compressed, self.stop), store.dialect
            )
            await work.run(
                lambda: self._scan(store, spool, lambda _: work.found()),
                lambda ready: self._commit(store, spool, ready),
            )
        if left := self.compressed.over_budget:
            memories = "1 memory" if left == 1 else f"{left:,} memories"
            self._observer.warn(
                f"{memories} not compressed because of --max-cost: run again, or raise it"
            )

    async def _scan(
        self, store: Store, spool: Spool | None, then: Callable[[CompressionPlan], None]
    ) -> None:
        if self.wanted.mode is CompressMode.REPLACE:
            await self.refuse_deletion(store)
        with self._observer.progress("reading") as progress:
            await plan_compression(
                *(store, self.where, self.wanted, self.summarizer.count, spool),
                *(self.compressed, then, progress),
            )
        self.note_damage(store)
        if not self.report.planned.memories:
            await self._refuse_absent(store)

    async def _commit(
        self, store: Store, spool: Spool, ready: asyncio.Queue[SummarizedMemory | None]
    ) -> None:
        self.begin()
        with (
            self.journal.writer(growing=True) as writer,
            self._observer.summarising(self.report.planned.memories) as watching,
        ):
            commits = SummaryCommitter(
                *(store, spool, self.summarizer, writer, self.compressed, watching),
                *(self.journal.note, self._observer.warn),
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
