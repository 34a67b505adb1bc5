"""The reports of commands that copy or change memories, and the errors of their runs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from msgspec import UNSET

from memctl.errors import BadData, Conflict, Failure, MemctlError, Partial
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.ops.change.apply import ChangeReport
from memctl.ops.change.change import ChangeRun
from memctl.ops.holds import all_held, nothing_but_held
from memctl.ops.report import DOCTOR, CopyReport, embedded_row, only_damage
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.reports.change import (
    ChangedMemories,
    ChangedMessages,
    DeleteReport,
    MarkReport,
    PlannedRow,
    UndoReport,
)
from memctl.reports.copy import (
    Example,
    Followed,
    ImportReport,
    LossRow,
    MigrateReport,
    RestoredMemory,
    RestoreReport,
)
from memctl.reports.history import RunRow
from memctl.reports.report import FailureRow, Report
from memctl.text.numbers import count

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


R = TypeVar("R", bound=ChangeRun)


_COPIES = {"import": ImportReport, "migrate": MigrateReport, "restore": RestoreReport}


@dataclass
class CopyOutcome:
    """The report of ``import``, ``restore`` and ``migrate``."""

    command: str
    source: str
    target: str
    _: KW_ONLY
    dry_run: bool
    copied: CopyReport = field(default_factory=CopyReport)
    plan: list[RestoredMemory] | None = None
    """The changes of memories of the target, if both sides were compared before."""
    ended: bool = False
    """True if the run reached its end: it is then reported even if it copied nothing."""

    def printout(self) -> Printout:
        """Return the report in every format."""
        return Printout(self.report, self._table, of_run=not self.dry_run)

    def report(self) -> Report:
        """Return the report as it is now."""
        copied = self.copied
        report: Report = _COPIES[self.command](
            dry_run=self.dry_run,
            source=self.source,
            target=self.target,
            **copied_fields(copied),
            embedded=embedded_row(copied.embedding),
            verified=UNSET if copied.verified is None else copied.verified,
            run=copied.run or UNSET,
            **({} if self.plan is None else {"plan": self.plan}),
        )
        if isinstance(report, MigrateReport) and copied.rounds:
            memories, messages = len(copied.settled), sum(copied.settled.values())
            report.follow = Followed(memories, messages, copied.rounds)
        return report

    def _table(self) -> RenderableType | None:
        from memctl.output import restoring, tables  # only needed to draw

        plan = self.plan or []
        if self.command == "restore" and (self.dry_run or not plan):
            return restoring.plan(plan)
        about = self.copied, self.source, self.target
        if self.copied.rounds and self.ended:
            found: Text | None = tables.followed(*about, self.copied.rounds)
        else:
            found = tables.copy(*about, dry_run=self.dry_run, ended=self.ended)
        wrote = self.copied.memories.written or not self.ended  # the answer to a write may be lost
        if found is not None and self.copied.run and wrote:
            found.append(f"\nundo it with: memctl undo {self.copied.run}", "not bold dim")
        return restoring.planned(plan, found) if plan and found else found

    def error(self) -> MemctlError | None:
        """Return the error if memories could not be copied; None if all were copied."""
        failures = self.copied.failures
        if not failures:
            return None
        if all(failure.code == "conflict" for _, failure in failures):
            return Conflict(
                f"{count(len(failures), 'memory')} left unchanged: {self.target} has different "
                "messages",
                "use --on-conflict skip or append, or replace with --yes"
                if self.copied.rounds
                else "use --on-conflict skip, append, merge or replace",
            )
        if damage := self.copied.damage():
            return damage
        if len(failures) == self.copied.memories.selected and all_held(failures):
            return nothing_but_held(failures)
        key, failure = next(item for item in failures if item[1].code != "conflict")
        return Partial(
            f"{count(len(failures), 'memory')} could not be written; the first: {key}: "
            f"{failure.message}",
            _report_hint(others=not self.dry_run and len(failures) < self.copied.memories.selected),
        )


def _report_hint(*, others: bool) -> str:
    """Return the hint of an error about memories that failed.

    With ``others``, the run has succeeded with other memories.
    """
    return "see the report for each; the others were done" if others else "see the report for each"


def copied_fields(copied: CopyReport) -> dict[str, Any]:
    """Return the fields of a report that say what became of the memories of a copy."""
    return {
        "memories": copied.memories,
        "messages": copied.messages,
        "failures": FailureRow.of(copied.failures),
        "losses": [
            LossRow(lost.kind, lost.memories, Example(lost.example.user, lost.example.session))
            for lost in copied.losses
        ],
    }


def _plan(changes: ChangeReport) -> list[PlannedRow]:
    """Return a row for each memory of a plan: the numbers of messages to change and to keep."""
    return [
        PlannedRow(*key[:2], number, key.part or UNSET, changes.staying.get(key, UNSET))
        for key, number in changes.planned_by_memory.items()
    ]


def run_row(run: Run, size: int) -> RunRow:
    """Return the row of a kept run; ``size`` is its size in bytes."""
    names = "deleted", "marked", "restored", "added", "replaced"
    counts = {name: run.counts.get(name, 0) for name in names}
    return RunRow(
        run=run.id,
        command=run.command,
        store=run.store,
        started=run.started,
        ended=run.ended or None,
        outcome=run.outcome,
        memories=run.memories,
        **counts,
        bytes=size,
        undoes=run.undoes or None,
        undone_by=run.undone_by or None,
        erased=run.erased,
        job=run.job or None,
        shard=run.shard or None,
        policy=run.policy or None,
        archive=run.archive or None,
        renamed=run.counts.get("renamed", 0),
    )


_CHANGES: dict[str, type[DeleteReport | MarkReport | UndoReport]] = {
    "delete": DeleteReport,
    "mark": MarkReport,
    "undo": UndoReport,
}


class ChangeOutcome(Generic[R]):
    """The report of a command that changes the store at a location: of ``delete`` and others.

    ``change`` is the run, as soon as it begins.
    """

    change: R

    def __init__(self, location: Location) -> None:
        self.target = location.label
        self.ended = False

    def watch(self, change: R) -> Self:
        """Report on a run that begins."""
        self.change, self.changes, self.dry_run = change, change.report, change.dry_run
        return self

    def report_to(self, output: Output) -> None:
        """Make this the report that ``output`` writes when the run ends or fails."""
        output.printout = Printout(self.report, self._table, of_run=not self.dry_run)

    def report(self) -> Report:
        """Return the report as it is now."""
        report = _CHANGES[self.change.record.command]
        return report(**self.fields(), **self.change.details())

    def fields(self) -> dict[str, Any]:
        """Return the fields of the report that all changes have."""
        planned, done = self.changes.planned, self.changes.done
        seen = planned if self.dry_run else done
        failed = 0 if self.dry_run else planned.messages - done.messages
        begun = self.change.begun or self.dry_run
        return {
            "dry_run": self.dry_run,
            "target": self.target,
            "memories": ChangedMemories(
                planned.memories, seen.memories, len(self.changes.failures)
            ),
            "messages": ChangedMessages(
                planned.messages,
                seen.deleted if begun else 0,
                seen.marked if begun else 0,
                seen.restored,
                max(0, failed) if self.change.begun else 0,
            ),
            "failures": FailureRow.of(self.changes.failures),
            "plan": _plan(self.changes) if self.dry_run else UNSET,
            "run": self.change.id or UNSET,
        }

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.change.begun):
            return None
        from memctl.output import changes  # only needed to draw

        about = self.changes, self.target, self.change.id
        return changes.change_outcome(*about, dry_run=self.dry_run, nothing=self.change.nothing)

    @property
    def something(self) -> bool:
        """True if the run changed something, or would in a dry run."""
        return bool(self.changes.planned.memories if self.dry_run else self.change.done())

    def reason(self, failure: Failure) -> str:
        """Return the reason of a failure, for the error."""
        return failure.message

    def cut_short(self, error: MemctlError) -> MemctlError:
        """Return Partial if the failed run has changed the store; if not, return ``error``."""
        if not (done := self.change.done()):
            return error
        return Partial(
            f"{error.message}; done: {done}, not done: {self.change.left() or 0}",
            "run again for the rest; what was done is complete",
        )

    def error(self) -> MemctlError | None:
        """Return the error if memories could not be changed; None if all were changed."""
        failures = self.changes.failures
        if not failures:
            return None
        key, failure = failures[0]
        if all(failure.code == "conflict" for _, failure in failures):
            return Conflict(
                f"{count(len(failures), 'memory')} left unchanged: {key}: {failure.message}",
                "undo later runs on it first; see the report for each",
            )
        part = self.change.where.shard is not None  # other parts may have something to do
        if not self.something and all_held(failures) and not part:
            return nothing_but_held(failures)
        if not self.changes.planned.memories and only_damage(failures):
            return BadData(f"{key} is damaged: {failure.message}", DOCTOR)
        return Partial(
            f"{count(len(failures), 'memory')} could not be changed; the first: {key}: "
            f"{self.reason(failure)}",
            _report_hint(others=bool(self.changes.done.memories)),
        )
