"""The reports of commands that copy or change memories, and the errors of their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memctl.errors import BadData, Conflict, Failure, Loss, MemctlError, Partial
from memctl.holds import HELD, LIST
from memctl.journal.runs import Run
from memctl.model import MemoryKey
from memctl.ops.change.apply import ChangeReport
from memctl.ops.change.change import ChangeRun
from memctl.ops.report import DOCTOR, CopyReport, only_damage
from memctl.output.report import Report
from memctl.output.terminal import Output
from memctl.text.numbers import count

if TYPE_CHECKING:
    from rich.console import RenderableType


class CopyOutcome:
    """The report of ``import`` and ``migrate``."""

    def __init__(
        self,
        command: str,
        source: str,
        target: str,
        *,
        dry_run: bool,
        copied: CopyReport | None = None,
    ) -> None:
        self.command = command
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.copied = copied or CopyReport()
        self.ended = False
        """True if the run reached its end: it is then reported even if it copied nothing."""

    def report(self) -> Report:
        """Return the report in every format."""
        of_run = not self.dry_run
        return Report(self.command, self._data, self._rows, self._table, of_run)

    def _data(self) -> dict[str, Any]:
        memories, messages = self.copied.memories, self.copied.messages
        data: dict[str, Any] = {
            "dry_run": self.dry_run,
            "source": self.source,
            "target": self.target,
            "memories": {
                "selected": memories.selected,
                "written": memories.written,
                "unchanged": memories.unchanged,
                "skipped": memories.skipped,
                "failed": memories.failed,
            },
            "messages": {
                "selected": messages.selected,
                "written": messages.written,
                "skipped": messages.skipped,
                "deleted": messages.deleted,
                "failed": messages.failed,
            },
            "failures": [_failure(*item) for item in self.copied.failures],
            "losses": losses(self.copied),
        }
        made = self.copied.embedding
        if made.embedder is not None and made.texts:
            data["embedded"] = {
                "embedder": made.embedder.name,
                "model": made.embedder.model,
                "texts": made.texts,
                "tokens": made.usage.tokens_in,
                "cost": made.cost,
            }
        if self.copied.verified is not None:
            data["verified"] = self.copied.verified
        if self.copied.run:
            data["run"] = self.copied.run
        if self.copied.rounds:
            settled = self.copied.settled
            data["follow"] = {
                "memories": len(settled),
                "messages": sum(settled.values()),
                "rounds": self.copied.rounds,
            }
        return data

    def _rows(self) -> list[dict[str, Any]]:
        flat = flat_row(self._data(), "dry_run", "source", "target")
        return [flat]

    def _table(self) -> RenderableType | None:
        from memctl.output import tables  # only needed to draw

        if self.copied.rounds and self.ended:
            about = self.copied, self.source, self.target, self.copied.rounds
            return tables.followed(*about)
        found = tables.copy(
            self.copied, self.source, self.target, dry_run=self.dry_run, ended=self.ended
        )
        wrote = self.copied.memories.written or not self.ended  # the answer to a write may be lost
        if found is not None and self.copied.run and wrote:
            found.append(f"\nundo it with: memctl undo {self.copied.run}", "not bold dim")
        return found

    def error(self) -> MemctlError | None:
        """Return the error if memories could not be copied; None if all were copied."""
        failures = self.copied.failures
        if not failures:
            return None
        if all(failure.code == "conflict" for _, failure in failures):
            return Conflict(
                f"{count(len(failures), 'memory')} left unchanged: {self.target} has different "
                "messages",
                "use --on-conflict skip or append, or replace with --no-backup --yes"
                if self.copied.rounds
                else "use --on-conflict skip, append or replace",
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


def all_held(failures: list[tuple[MemoryKey, Failure]]) -> bool:
    """Return whether memories have failed, all of them because they are held."""
    return bool(failures) and all(failure.code == HELD for _, failure in failures)


def nothing_but_held(failures: list[tuple[MemoryKey, Failure]]) -> Loss:
    """Return the error of a run that did nothing, because all that was selected is held."""
    key, failure = failures[0]
    first = f"{key}: {failure.message}"
    number = len(failures)
    return Loss(
        first if number == 1 else f"{number:,} memories are held; the first: {first}",
        f"nothing was changed; {LIST}",
    )


def _report_hint(*, others: bool) -> str:
    """Return the hint of an error about memories that failed.

    With ``others``, the run has succeeded with other memories.
    """
    return "see the report for each; the others were done" if others else "see the report for each"


def losses(copied: CopyReport) -> list[dict[str, Any]]:
    """Return a row for each kind of data that a copy has lost, for JSON reports."""
    return [
        {
            "kind": lost.kind,
            "memories": lost.memories,
            "example": {"user": lost.example.user, "session": lost.example.session},
        }
        for lost in copied.losses
    ]


def flat_row(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a row for CSV: the values of ``names`` and all counts of a JSON report ``data``."""
    flat = {name: data[name] for name in names}
    for what in ("memories", "messages"):
        flat |= {f"{what}_{name}": number for name, number in data[what].items()}
    return flat


def _plan(changes: ChangeReport) -> list[dict[str, Any]]:
    """Return a row for each memory of a plan: the numbers of messages to change and to keep."""
    rows = []
    for key, number in changes.planned_by_memory.items():
        row: dict[str, Any] = {"user": key.user, "session": key.session, "messages": number}
        if key.part:
            row["path"] = key.part
        if key in changes.staying:
            row["stay"] = changes.staying[key]
        rows.append(row)
    return rows


def _failure(key: Any, failure: Any) -> dict[str, Any]:
    row = {"user": key.user, "session": key.session, "code": failure.code}
    if key.part:
        row["path"] = key.part
    return row | {"message": failure.message}


def run_row(run: Run, size: int) -> dict[str, Any]:
    """Return the row of a kept run for JSON reports; ``size`` is its size in bytes."""
    return {
        "run": run.id,
        "command": run.command,
        "store": run.store,
        "started": run.started,
        "ended": run.ended or None,
        "outcome": run.outcome,
        "memories": run.memories,
        **{
            name: run.counts.get(name, 0)
            for name in ("deleted", "marked", "restored", "added", "replaced")
        },
        "bytes": size,
        "undoes": run.undoes or None,
        "undone_by": run.undone_by or None,
        "erased": run.erased,
        "job": run.job or None,
        "shard": run.shard or None,
        "policy": run.policy or None,
        "archive": run.archive or None,
    }


class ChangeOutcome:
    """The report of a command that changes a store: delete, mark, undo, compress or repair."""

    def __init__(self, change: ChangeRun, target: str) -> None:
        self.change = change
        self.command = change.record.command
        self.target = target
        self.dry_run = change.dry_run
        self.changes = change.report
        self.ended = False
        self.more: dict[str, Any] = {}
        """Additional keys for the report of a command."""

    @property
    def run(self) -> str | None:
        """The id of the run for ``memctl undo``; None if there is nothing to undo."""
        return self.change.id

    @property
    def begun(self) -> bool:
        """True after the run has begun to change the store."""
        return self.change.begun

    def report_to(self, output: Output) -> None:
        """Make this the report that ``output`` writes when the run ends or fails."""
        of_run = not self.dry_run
        output.report = Report(self.command, self._data, self._rows, self._table, of_run)

    def _data(self) -> dict[str, Any]:
        planned, done = self.changes.planned, self.changes.done
        seen = planned if self.dry_run else done
        failed = 0 if self.dry_run else planned.messages - done.messages
        data: dict[str, Any] = {
            "dry_run": self.dry_run,
            "target": self.target,
            "memories": {
                "selected": planned.memories,
                "written": seen.memories,
                "failed": len(self.changes.failures),
            },
            "messages": {
                "selected": planned.messages,
                "deleted": seen.deleted,
                "marked": seen.marked,
                "restored": seen.restored,
                "failed": max(0, failed) if self.begun else 0,
            },
            "failures": [_failure(*item) for item in self.changes.failures],
        }
        if self.dry_run:
            data["plan"] = _plan(self.changes)
        if not self.begun and not self.dry_run:
            data["messages"]["deleted"] = data["messages"]["marked"] = 0
        if self.run is not None:
            data["run"] = self.run
        return data | self.more | self.change.details()

    def _rows(self) -> list[dict[str, Any]]:
        flat = flat_row(self._data(), "dry_run", "target")
        return [flat | {"run": self.run}]

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.begun):
            return None
        from memctl.output import changes  # only needed to draw

        about = self.changes, self.target, self.run
        return changes.change_outcome(*about, dry_run=self.dry_run, nothing=self.change.nothing)

    @property
    def something(self) -> bool:
        """True if the run changed something, or would in a dry run."""
        return bool(self.changes.planned.memories if self.dry_run else self.change.done())

    def reason(self, failure: Failure) -> str:
        """Return the reason of a failure, for the error."""
        return failure.message

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
