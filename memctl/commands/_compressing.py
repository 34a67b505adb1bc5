"""A run of ``compress``: found and spooled, summarised, committed memory by memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rich.console import RenderableType

from memctl.commands._changing import Changing
from memctl.commands._context import Run
from memctl.commands._reports import ChangeOutcome
from memctl.errors import Failure, Unavailable
from memctl.journal.changes import ChangesWriter
from memctl.journal.runs import Journal
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.chosen import scope
from memctl.ops.compress.budget import Budget
from memctl.ops.compress.commit import Commits
from memctl.ops.compress.parts import Parts
from memctl.ops.compress.plan import Case, Mode, Wanted
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.scan import scan
from memctl.ops.compress.spool import Spool
from memctl.ops.compress.work import Work
from memctl.output.numbers import count
from memctl.selection import Selection
from memctl.store import Store
from memctl.summarizer import Summarizer


class CompressOutcome(ChangeOutcome):
    """What compress reports."""

    def __init__(self, target: str, summarizer: Summarizer, mode: Mode, *, dry_run: bool) -> None:
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
        from memctl.output import compress as drawn  # needs Rich, which helping does not

        if not (self.ended or self.begun):
            return None
        return drawn.outcome(
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
        wanted: Wanted,
        summarizer: Summarizer,
        *,
        backup: bool,
    ) -> None:
        super().__init__(run, outcome, argument, location, where, backup=backup)
        self._compress = outcome
        self._report = outcome.compressed
        self._wanted = wanted
        self._summarizer = summarizer
        self._stack = ExitStack()
        self._spool: Spool | None = None
        self._written = False
        """Whether the journal knows of any memory."""
        self._parts = Parts(summarizer, lambda _: None)

    def compress(self) -> None:
        """Finds what there is to do, and does it.

        Raises:
            MemctlError: see ``Changing.run``, ``Work.run`` and the summarizers.
        """
        with self._stack:
            self._run(lambda _: True, asks=False)

    async def _look(self, store: Store, journal: Journal | None) -> bool:
        """Puts what is to be summarised into a spool; False where that is nothing."""
        await store.prove(scope(self._where))
        if journal is not None:
            self._spool = self._stack.enter_context(Spool(journal.folder))
        budget = Budget(None, self._summarizer, self._parts)

        def seen(case: Case) -> None:
            self._report.plan(case, deleted=self._wanted.mode is Mode.REPLACE)
            if self._compress.dry_run:
                self._report.estimate(case, budget.estimate(case), self._parts.calls(case.tokens))

        def left(key: MemoryKey, failure: Failure) -> None:
            self._report.changes.failures.append((key, failure))

        with self._output.progress("reading") as progress:
            await scan(
                *(store, self._where, self._wanted, self._summarizer.count, self._spool),
                *(seen, left, progress),
            )
        something = bool(self._report.changes.planned.memories)
        if self._compress.dry_run and self._summarizer.prices is not None:
            self._report.cost = self._summarizer.prices.of(self._report.usage)
        if not something:
            await self._refuse_absent(store)
        return something

    async def _apply(self, store: Store, journal: Journal) -> None:
        outcome, spool = self._compress, self._spool
        assert spool is not None
        with (
            journal.writer(growing=True) as writer,
            self._output.summarising(outcome.changes.planned.memories) as watching,
        ):
            commits = Commits(store, spool, self._summarizer, writer, self._report, watching)
            try:
                async with self._summarizer as summarizer:
                    outcome.begun = True
                    outcome.run = self._record.id if self._backup else None
                    work = Work(spool, self._wanted, summarizer, self._report, self._stop)
                    await work.run(commits)
            except Unavailable as error:
                raise self._cut_short(error) from error
            finally:
                self._written = commits.begun
                if commits.begun:
                    self._finish(writer)
        if self._report.over_budget:
            self._output.warn(
                f"{count(self._report.over_budget, 'memory')} left for --max-cost: run again, or "
                "allow more"
            )

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
