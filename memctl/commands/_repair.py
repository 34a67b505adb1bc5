"""``doctor --repair``: edits of messages, and what the store mends itself, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memctl.commands._changing import Changing, at_terminal, confirmed
from memctl.commands._context import Run
from memctl.commands._reports import ChangeOutcome
from memctl.journal.repairs import FILE_NAME
from memctl.journal.runs import Journal
from memctl.location import Location, visible
from memctl.model import Finding
from memctl.ops.doctor.check import Limits
from memctl.ops.doctor.findings import KINDS
from memctl.ops.doctor.repair import RepairPlanner, StoreRepairs, revert_repairs
from memctl.output.numbers import count
from memctl.output.terminal import Output
from memctl.selection import Selection
from memctl.store import Store


class RepairOutcome(ChangeOutcome):
    """What was repaired; the report is that of ``doctor``."""

    def __init__(self, target: str, *, dry_run: bool) -> None:
        super().__init__("doctor", target, dry_run=dry_run)
        self.mends = StoreRepairs(frozenset())
        self.treating = RepairPlanner(frozenset(), Limits())

    def report_to(self, output: Output) -> None:
        """Nothing yet: what was mended is a part of what was found."""

    def failures(self) -> list[dict[str, Any]]:
        """The memories that were left as they are, as programs get them."""
        found: list[dict[str, Any]] = self._data()["failures"]
        return found

    def repaired(self) -> list[Finding]:
        """What was mended, or would be, by memory where it was messages."""
        failed = {key for key, _ in self.changes.failures}
        found: list[Finding] = []
        if self.begun or self.dry_run:
            for key, codes in self.treating.mended.items():
                if key not in failed:
                    found += [Finding(code, key, number) for code, number in codes.items()]
        mends = self.mends.planned if self.dry_run else self.mends.done
        found += [Finding(code, None, number) for code, number in mends.items() if number]
        order = {code: place for place, code in enumerate(KINDS)}
        return sorted(found, key=lambda fault: (order[fault.code], fault.key or ("", "", "")))


class Repairing(Changing):
    """A run that repairs."""

    def __init__(
        self,
        run: Run,
        outcome: RepairOutcome,
        argument: str,
        location: Location,
        where: Selection,
        codes: frozenset[str],
        limits: Limits,
        *,
        backup: bool,
    ) -> None:
        super().__init__(run, outcome, argument, location, where, backup=backup)
        outcome.mends = StoreRepairs(codes)
        outcome.treating = RepairPlanner(codes, limits)
        self._repair = outcome

    def repair(self, *, yes: bool) -> None:
        """Looks what there is to do, asks, and does it.

        Raises:
            MemctlError: see ``Changing.run``.
        """

        def approve(_: ChangeOutcome) -> bool:
            planned = self._repair.changes.planned.messages + self._repair.mends.planned.total()
            if yes or self._repair.dry_run or not planned:
                return True
            asked = f"repair {count(planned, 'fault')} of {visible(self._repair.target)}?"
            return confirmed(self._output, asked)

        self.run(self._repair.treating, approve, asks=not yes and at_terminal())

    async def _look(self, store: Store, journal: Journal | None) -> bool:
        something = await super()._look(store, journal)
        return await self._repair.mends.plan(store, self._where) or something

    async def _apply(self, store: Store, journal: Journal) -> None:
        if self._repair.changes.planned.memories:
            await super()._apply(store, journal)
        self._repair.begun = True
        self._repair.run = self._record.id if self._backup else None
        with self._output.progress("mending"):
            await self._repair.mends.carry_out(store, self._where, journal.folder)

    def _close(self, journal: Journal) -> None:
        super()._close(journal)
        mended = self._repair.mends.done.total()
        if self._repair.begun and mended:
            self._record.counts["mended"] = mended
            journal.save()


class TakingBack(Changing):
    """An undo, of what a store mended too."""

    def __init__(
        self,
        run: Run,
        outcome: ChangeOutcome,
        argument: str,
        location: Location,
        where: Selection,
        folder: Path,
    ) -> None:
        """``folder`` is that of the run to be undone."""
        super().__init__(run, outcome, argument, location, where)
        self._folder = folder
        self._mended = (folder / FILE_NAME).exists()
        if self._mended and where.named:
            run.output.warn("what the run mended beside the messages stays: it is of no one user")
            self._mended = False

    async def _look(self, store: Store, journal: Journal | None) -> bool:
        something = await super()._look(store, journal)
        return something or self._mended

    async def _apply(self, store: Store, journal: Journal) -> None:
        outcome = self._outcome
        if self._mended:
            outcome.begun = True
            outcome.run = self._record.id
            number = await revert_repairs(store, self._folder)
            outcome.more["unmended"] = number
            self._output.note(f"taken back beside the messages: {number:,}")
        if outcome.changes.planned.memories:
            await super()._apply(store, journal)
