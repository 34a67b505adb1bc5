"""A run of ``compress``: found and spooled, summarised, committed memory by memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType

from memctl.commands._changing import Approve, Changing
from memctl.commands._context import Run
from memctl.commands._reports import ChangeOutcome
from memctl.errors import Unavailable
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import Journal
from memctl.location import Location
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.ops.compress.commit import SummarizedMemory, SummaryCommitter
from memctl.ops.compress.plan import CompressionPlan, CompressMode, CompressOptions
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.run import Budget, CompressionRun, plan_compression
from memctl.ops.compress.spool import Spool
from memctl.output import tables
from memctl.output.numbers import count
from memctl.selection import Selection
from memctl.store import Store
from memctl.summarizer import Summarizer


class CompressOutcome(ChangeOutcome):
    """What compress reports."""

    def __init__(
        self, target: str, summarizer: Summarizer, mode: CompressMode, *, dry_run: bool
    ) -> None:
        super().__init__("compress", target, dry_run=dry_run)
        self.summarizer = summarizer
        self.mode = mode
        self.compressed = CompressReport(self.changes, summarizer.counted_by)
        if summarizer.prices is not None:
            self.compressed.cost = 0.0

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        found, messages = self.compressed, data["messages"]
        data["memories"]["left"] = self.changes.left + found.over_budget
        data["messages"] = {
            "selected": found.selected,
            "marked": messages["marked"],
            "deleted": messages["deleted"],
            "failed": found.selected - found.messages if self.begun else 0,
        }
        data["summarizer"] = {"name": self.summarizer.name, "kind": self.summarizer.kind}
        data["mode"] = self.mode.value
        data["tokens"] = {
            "summarised": found.summarised,
            "before": found.before,
            "after": None if self.dry_run else found.after,
            "ratio": found.ratio,
            "counted_by": found.counted_by,
        }
        data["model"] = {
            "calls": found.calls,
            "tokens_in": found.usage.tokens_in,
            "tokens_out": found.usage.tokens_out,
            "exact": found.usage.exact,
            "cost": None if found.cost is None else round(found.cost, 6),
        }
        return data

    def _rows(self) -> list[dict[str, Any]]:
        [row] = super()._rows()
        data = self._data()
        for what in ("tokens", "model"):
            row |= {f"{what}_{name}": value for name, value in data[what].items()}
        return [row | {"mode": data["mode"], "summarizer": self.summarizer.name}]

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.begun):
            return None
        return tables.compress_outcome(
            self.compressed, self.summarizer, self.target, self.run, dry_run=self.dry_run
        )


class Compressing(Changing):
    """One such run."""

    def __init__(
        self,
        run: Run,
        outcome: CompressOutcome,
        argument: str,
        location: Location,
        where: Selection,
        options: CompressOptions,
        summarizer: Summarizer,
        *,
        backup: bool,
    ) -> None:
        super().__init__(run, outcome, argument, location, where, backup=backup)
        self._compress = outcome
        self._report = outcome.compressed
        self._options = options
        self._summarizer = summarizer
        self._written = False
        """Whether the journal knows of any memory."""
        self._parts = ChunkedSummarizer(summarizer, lambda _: None)

    def compress(self) -> None:
        """Finds what there is to do, and does it.

        Raises:
            MemctlError: see ``Changing.run``, ``CompressionRun.run`` and the summarizers.
        """
        self._run(lambda _: True, asks=False)

    async def _look(self, store: Store, journal: Journal | None) -> bool:
        """Finds out what there is to do, for ``--dry-run``; False where that is nothing."""
        assert journal is None
        budget = Budget(None, self._summarizer, self._parts)

        def seen(case: CompressionPlan) -> None:
            self._report.estimate(case, budget.estimate(case), self._parts.calls(case.tokens))

        await self._scan(store, None, seen)
        if self._summarizer.prices is not None:
            self._report.cost = self._summarizer.prices.of(self._report.usage)
        return bool(self._report.changes.planned.memories)

    async def _scan(
        self, store: Store, spool: Spool | None, then: Callable[[CompressionPlan], None]
    ) -> None:
        with self._output.progress("reading") as progress:
            await plan_compression(
                *(store, self._where, self._options, self._summarizer.count, spool),
                *(self._report, then, progress),
            )
        if not self._report.changes.planned.memories:
            await self._refuse_absent(store)

    async def _at_once(self, journal: Journal, _approve: Approve) -> None:
        """All of it, for nobody is asked: the first memories while the others are found."""
        async with self._locked() as store:
            with Spool(journal.folder) as spool:
                work = CompressionRun(
                    *(spool, self._options, self._summarizer, self._report, self._stop),
                    store.dialect,
                )
                try:
                    await work.run(
                        lambda: self._scan(store, spool, lambda _: work.found()),
                        lambda ready: self._commit(store, spool, journal, ready),
                    )
                except Unavailable as error:
                    raise self._cut_short(error) from error
        if self._report.over_budget:
            self._output.warn(
                f"{count(self._report.over_budget, 'memory')} left for --max-cost: run again, or "
                "allow more"
            )

    async def _commit(
        self,
        store: Store,
        spool: Spool,
        journal: Journal,
        ready: asyncio.Queue[SummarizedMemory | None],
    ) -> None:
        outcome = self._compress
        outcome.begun = True
        outcome.run = self._record.id if self._backup else None
        with (
            journal.writer(growing=True) as writer,
            self._output.summarising(outcome.changes.planned.memories) as watching,
        ):
            commits = SummaryCommitter(
                store, spool, self._summarizer, writer, self._report, watching
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
            # What was committed is synced, and can be undone from what there is of the file.
            self._output.warn(f"the record of the run has no end: {error.message}")

    def _close(self, journal: Journal) -> None:
        if not self._written:
            self._compress.run = None
            journal.discard()
            return
        super()._close(journal)

    def _counts(self) -> dict[str, int]:
        done = self._report.changes.done
        return {"summarised": done.memories, "deleted": done.deleted, "marked": done.marked}
