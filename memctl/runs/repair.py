"""A run that repairs: edits of messages, and what the store itself repairs, undone together."""

from __future__ import annotations

from collections.abc import Mapping

from memctl.errors import UsageError
from memctl.journal import runs
from memctl.model import Finding, MemoryKey
from memctl.ops.apply import ChangeReport
from memctl.ops.doctor.check import Limits
from memctl.ops.doctor.findings import KINDS
from memctl.ops.doctor.repair import RepairPlanner, StoreRepairs
from memctl.runs.change import ChangeRun, RunOptions
from memctl.selection import Selection
from memctl.store import Store


class RepairRun(ChangeRun):
    """A run that repairs the findings of some codes."""

    def __init__(
        self,
        record: runs.Run,
        where: Selection,
        codes: frozenset[str],
        limits: Limits,
        options: RunOptions,
    ) -> None:
        self._planner = RepairPlanner(codes, limits)
        self._store_repairs = StoreRepairs(codes)
        super().__init__(
            record,
            where,
            self._planner,
            options,
            ChangeReport(changed=set()),
        )

    @property
    def planned(self) -> int:
        """The number of findings to be repaired."""
        return self.report.planned.messages + self._store_repairs.planned.total()

    def repaired(self) -> list[Finding]:
        """Return what was repaired, by memory where messages were edited; see ``repairable``."""
        if self.dry_run:
            return self.repairable()
        changed = self.report.changed or set()
        edited = {
            key: codes for key, codes in self._planner.repaired_by_key.items() if key in changed
        }
        return _sorted(edited, self._store_repairs.done)

    def repairable(self) -> list[Finding]:
        """Return what is planned to be repaired."""
        return _sorted(self._planner.repaired_by_key, self._store_repairs.planned)

    async def plan(self, store: Store) -> bool:
        """Plan the edits, and ask the store what it can repair."""
        store.skip_damage()  # what is to be repaired is no reason to refuse
        something = await super().plan(store)
        if left := len(self._planner.left):
            memories = "1 memory is" if left == 1 else f"{left:,} memories are"
            self._observer.warn(
                f"{memories} left as found: after a repair of some findings there would be others"
            )
        something = await self._store_repairs.plan(store, self.where) or something
        if self._store_repairs.sets_aside and not self._options.backup:
            raise UsageError(
                "--no-backup cannot be combined with a repair that sets damaged data aside",
                "leave out --no-backup: the backup is where the data go",
            )
        return something

    async def carry_out(self, store: Store) -> None:
        """Edit the messages, then have the store repair the rest."""
        if self.report.planned.memories:
            await super().carry_out(store)
        self.begin()
        with self._observer.progress("repairing"):
            await self._store_repairs.carry_out(store, self.where, self.journal.folder)

    def done(self) -> str:
        """Return what has been changed, by edits and by the store itself."""
        repairs, repaired = self._store_repairs, ""
        if repairs.noted:
            number = repairs.done.total()
            some = f"at least {number:,}" if number else "perhaps some"
            repaired = f"{some} repairs of the store"
        return " and ".join(filter(None, [super().done(), repaired]))

    def counts(self) -> dict[str, int]:
        """Return the numbers of changes that the history shows."""
        repaired = self._store_repairs.done.total()
        return super().counts() | ({"mended": repaired} if repaired else {})


def _sorted(
    edited: Mapping[MemoryKey, Mapping[str, int]], repairs: Mapping[str, int]
) -> list[Finding]:
    """Return repairs of messages and of the store itself as findings, in the order of KINDS."""
    found = [
        Finding(code, key, number)
        for key, codes in edited.items()
        for code, number in codes.items()
        if number
    ]
    found += [Finding(code, None, number) for code, number in repairs.items() if number]
    order = {code: position for position, code in enumerate(KINDS)}
    return sorted(found, key=lambda one: (order[one.code], one.key or ("", "", "")))
