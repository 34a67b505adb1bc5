"""``memctl doctor``: finds and repairs problems in a store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET
from msgspec.structs import replace
from rich.console import RenderableType

from memctl import api
from memctl.commands._change import change, confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    MaxDeleteOption,
    PathOption,
    SessionOption,
    StoreArgument,
    UserOption,
    YesOption,
    divisible_change,
)
from memctl.commands._parameters import argument, option
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable, readable, wait_for
from memctl.config.offload import read_offload
from memctl.errors import BadData, MemctlError, Unavailable, UsageError
from memctl.location import Location, redact_value, visible
from memctl.ops.doctor.check import MAX_RESULT, Diagnosis, Limits, unhealthy
from memctl.ops.doctor.findings import KINDS, OVERSIZED, Severity
from memctl.ops.doctor.repair import RepairRun
from memctl.output import diagnosis
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.reports.doctor import DoctorReport, StoreRow
from memctl.reports.report import FailureRow
from memctl.selection import Selection
from memctl.text.numbers import count
from memctl.text.words import did_you_mean


class FailOn(StrEnum):
    """The least severity of a finding with which ``doctor`` fails."""

    ERROR = "error"
    WARNING = "warning"


@divisible_change
def doctor(
    run: Run,
    store: StoreArgument,
    codes: Annotated[list[str] | None, argument("CODE", "Only findings with this code.")] = None,
    user: UserOption = None,
    session: SessionOption = None,
    ignore: Annotated[
        list[str] | None,
        option("--ignore CODE", "Neither report nor repair findings with this code."),
    ] = None,
    fail_on: Annotated[
        FailOn, option("--fail-on SEVERITY", "End with exit code 6 from this severity on")
    ] = FailOn.WARNING,
    max_result: Annotated[
        int, option("--max-result BYTES", "Report tool results larger than BYTES.", min=1)
    ] = MAX_RESULT,
    quick: Annotated[
        bool, option("--quick", "Do not compare the indexes of a SQLite file with its tables.")
    ] = False,
    repair: Annotated[bool, option("--repair", "Repair what can be repaired; asks first.")] = False,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
    path: PathOption = None,
) -> None:
    """Find and repair problems in a store.

    Each finding has a code, its meaning for the agent, and a fix. Exit code 6 means errors or
    warnings, with --fail-on error only errors; notices alone are healthy. With --repair, the report
    shows what is left, and the file that damaged data were moved to; memctl undo restores all else
    that a repair changed.

    Examples:
      memctl doctor agents.db
      memctl doctor agents.db --ignore leftover-hint --fail-on error
      memctl doctor agents.db --repair
    """
    output = run.output
    wanted = _known(codes or KINDS) - _known(ignore or ())
    where = Selection(
        users=frozenset(user or ()), sessions=frozenset(session or ()), shard=run.shard
    )
    limits = Limits(max_result)
    examine = partial(api.examine, limits=limits, quick=quick, must_exist=True, observer=output)
    offered = ""
    if read_offload(run.configuration()).to:
        offered = f"memctl offload {shlex.quote(store)} --larger {max_result}"
    options = run_options(run, store, backup=backup, dry_run=dry_run, max_delete=max_delete)
    fix = "" if repair else _repair_command(store, user or [], session or [])
    outcome: RepairOutcome | None = None
    if repair:
        if not dry_run:
            refuse_unasked(yes)
        location = changeable(run, store, where, path)
        outcome = repairing = RepairOutcome(location)

        def ask() -> None:
            output.show(diagnosis.repair_plan(repairing.change.repairable()))
            number = count(repairing.change.planned, "problem")
            confirm(f"repair {number} of {visible(location.label)}?")

        work = partial(api.repair, location, where, codes=wanted, limits=limits)
        try:
            change(output, repairing, work, options, None if yes else ask)
            try:
                found = wait_for(examine(location, repairing.change.where))
            except (Unavailable, BadData) as error:  # the store can no longer be read
                raise repairing.cut_short(error) from error
        except MemctlError:
            if repairing.change.begun or repairing.changes.failures:
                output.printout = _report(location, None, outcome)  # report the work done so far
            raise
    else:
        with readable(run.locate(store), where, path) as location:
            found = wait_for(examine(location, where))
    _finish(output, location, found, wanted, outcome, fail_on, offered, fix)


class RepairOutcome(ChangeOutcome[RepairRun]):
    """The result of a repair, as a part of the report of ``doctor``."""

    @property
    def something(self) -> bool:
        return bool(self.change.repaired())

    @property
    def quarantine(self) -> str | None:
        """The path of the file with damaged data; None if no damaged data were moved."""
        path = self.change.quarantine
        return None if path is None else str(path)

    def report_to(self, output: Output) -> None:
        """Set no report, because ``doctor`` reports after it has examined the store again."""


def _finish(
    output: Output,
    location: Location,
    found: Diagnosis,
    wanted: frozenset[str],
    outcome: RepairOutcome | None,
    fail_on: FailOn,
    offered: str,
    fix: str,
) -> None:
    """Write the report of the findings with the codes ``wanted``, and of the repair, if any.

    ``offered`` is the command that offloads large results of tools; empty if none is configured.
    ``fix`` is the command that repairs, to be shown.

    Raises:
        Unhealthy: the findings include errors or, with ``FailOn.WARNING``, warnings.
    """
    found.faults = [
        replace(finding, remedy=offered) if finding.code == OVERSIZED and offered else finding
        for finding in found.faults
        if finding.code in wanted
    ]
    output.printout = _report(location, found, outcome, fix)
    failing = {Severity.ERROR} if fail_on is FailOn.ERROR else {Severity.ERROR, Severity.WARNING}
    if any(KINDS[finding.code].severity in failing for finding in found.faults):
        raise unhealthy(location.label, found)
    output.emit()


def _known(codes: Iterable[str]) -> frozenset[str]:
    """Return the codes of findings as a set.

    Raises:
        UsageError: a code is unknown.
    """
    found = frozenset(codes)
    for code in sorted(found - KINDS.keys()):
        hint = did_you_mean(code, KINDS, f"known: {', '.join(KINDS)}")
        raise UsageError(f"unknown finding {visible(code)!r}", hint)
    return found


def _repair_command(store: str, users: list[str], sessions: list[str]) -> str:
    """Return the command line that repairs what was examined; empty for stdin."""
    if store == "-":
        return ""
    named = [("--user", name) for name in users] + [("--session", name) for name in sessions]
    chosen = "".join(f" {option}={shlex.quote(name)}" for option, name in named)
    return f"memctl doctor {shlex.quote(redact_value(store))}{chosen} --repair"


def _report(
    location: Location, found: Diagnosis | None, outcome: RepairOutcome | None, fix: str = ""
) -> Printout:
    """Return the report of ``doctor``.

    ``found`` are the findings, None if the store could not be examined.  ``outcome`` is the repair,
    None without ``--repair``.  ``fix`` is as for ``_finish``.
    """

    def report() -> DoctorReport:
        fields: dict[str, Any] = {}
        if found:
            fields |= {
                "healthy": found.healthy,
                "memories": found.memories,
                "messages": found.messages,
            }
        if outcome:
            fields |= {
                "dry_run": outcome.dry_run,
                "repaired": [diagnosis.repaired_row(one) for one in outcome.change.repaired()],
                "failures": FailureRow.of(outcome.changes.failures),
                "run": outcome.change.id or UNSET,
                "quarantine": outcome.quarantine or UNSET,
            }
        return DoctorReport(
            store=StoreRow(location.label, found.kind if found else location.kind),
            findings=[diagnosis.finding_row(one) for one in found.faults] if found else [],
            **fields,
        )

    def table() -> RenderableType:
        parts = []
        if outcome:
            about = {"dry_run": outcome.dry_run, "failed": found is None}
            repaired, id = outcome.change.repaired(), outcome.change.id
            parts.append(diagnosis.repairs(repaired, id, outcome.quarantine, **about))
        if found:
            parts.append(diagnosis.findings(location.label, found, fix))
        return diagnosis.stacked(parts)

    return Printout(report, table, of_run=not (outcome and outcome.dry_run))
