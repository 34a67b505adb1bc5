"""``memctl undo``: reverts the changes of a run."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec

from memctl.commands._change import confirm, perform, refuse_unasked
from memctl.commands._context import Run as ThisRun
from memctl.commands._journal import record, run_options
from memctl.commands._options import (
    DryRunOption,
    SessionOption,
    UserOption,
    YesOption,
    divisible_change,
)
from memctl.commands._parameters import argument, option
from memctl.commands._part_line import LEFT_OUT, Work
from memctl.commands._parts_report import merged_report, of_job
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import wait_for
from memctl.errors import Interrupted, MemctlError, Unavailable, UsageError
from memctl.journal.runs import Job, Run, Runs, new_job
from memctl.location import Location, visible
from memctl.ops.same_store import is_on
from memctl.ops.undo.reversal import (
    find_run,
    refuse_older,
    reversing,
    runs_to_undo,
)
from memctl.output.history import job_state, run_changes, run_state, run_store
from memctl.parts.divide import error_of
from memctl.parts.merge import merge
from memctl.parts.part import PartResult
from memctl.reports.change import ChangedMemories, ChangedMessages, UndoReport
from memctl.reports.report import Error
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.text.numbers import count, local_time


def _nothing(job: Job, *, dry_run: bool) -> UndoReport:
    """Return the report of a job without parts to undo."""
    return UndoReport(
        dry_run=dry_run,
        target=visible(run_store(job)),
        memories=ChangedMemories(0, 0, 0),
        messages=ChangedMessages(0, 0, 0, 0, 0),
        failures=[],
        undoes=job.name,
    )


def parts_of_job(this: ThisRun, given: Mapping[str, Any], shards: int) -> Work:
    """Return what to undo in ``shards`` parts, after a confirmation as that of ``undo``.

    ``given`` are the parameters of the command.

    Raises:
        UsageError: the run was not divided into so many parts.
        MemctlError: as ``undo``.
    """
    runs = Runs()
    name, store = given["run_id"], given["store"]
    found = _found(this, runs, name, store)
    if isinstance(found, Run):
        raise UsageError(f"the run {found.id} is not a job, which has parts", "leave --shards out")
    if shards != found.of:
        raise UsageError(
            f"the job {found.name} has {count(found.of, 'part')}, not {shards:,}",
            f"write --shards {found.of}",
        )
    undone = runs_to_undo(runs, found)
    if undone and name is None and not given["dry_run"]:
        refuse_unasked(given["yes"])
        if given["yes"]:
            refuse_older(runs, undone[0], _place(this, store), this.address)
        _ask(this, found, yes=given["yes"])
    run = found.runs[0]
    place = store if store is not None and (name or run.secret) else run.argument
    # Without a name, --store may only have chosen the job.
    named = name is not None or run.secret
    return Work(
        sorted({Shard.parse(run.shard) for run in undone}),
        (found.name,),
        {"store": place},
        LEFT_OUT if named else LEFT_OUT | {"store"},
        _nothing(found, dry_run=given["dry_run"]),
    )


@partial(divisible_change, parts_of=parts_of_job)
def undo(
    this: ThisRun,
    run_id: Annotated[
        str | None,
        argument("RUN", "The id of a run or of a job, or its start or end; see memctl history."),
    ] = None,
    store: Annotated[
        str | None,
        option(
            "--store STORE",
            "Undo the last run on this store; with RUN, undo that run in this store.",
        ),
    ] = None,
    user: UserOption = None,
    session: SessionOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Undo a run.

    Restores messages, positions, marks, summaries and expiries. Keeps messages that were added
    since. If the part of a memory that would be restored has changed since, memctl leaves the
    memory alone and reports it (exit code 5). Without RUN, undoes the last run that is neither
    undone nor an undo, after a confirmation. Of a divided run, a job, all parts are undone. Name
    an undo as RUN to undo the undo; run doctor again to repeat repairs.

    Examples:
      memctl undo
      memctl undo --store agents.db --dry-run
      memctl undo 9603a --user ada
    """
    runs = Runs()
    if this.orders is not None:
        runs.refuse_other(this.orders.state)
    found = _found(this, runs, run_id, store)
    undone = runs_to_undo(runs, found, this.shard)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    undoing = _Undoing(this, runs, where, store, named=run_id is not None, dry_run=dry_run)
    if undone and run_id is None and not dry_run:
        refuse_unasked(yes)
        if yes:
            refuse_older(runs, undone[0], _place(this, store), this.address)
        undoing.place(undone[0])
        _ask(this, found, yes=yes)
    if isinstance(found, Job):
        this.job = this.job or new_job()
        _undo_job(this, undoing, found, undone)
    else:
        undoing.undo(found)
        this.output.emit()


def _found(this: ThisRun, runs: Runs, name: str | None, store: str | None) -> Run | Job:
    """Return the run or the job to undo; ``store`` is that of the option.

    Raises:
        MemctlError: as ``find_run``.
    """
    return find_run(runs, name, _place(this, store), this.address)


def _place(this: ThisRun, store: str | None) -> Location | None:
    return None if store is None else this.address(store)


def _ask(this: ThisRun, found: Run | Job, *, yes: bool) -> None:
    """Ask for a confirmation, or tell with ``--yes`` what is undone.

    Raises:
        Interrupted: the user does not confirm.
    """
    if yes:
        this.output.note(f"undoing {_about(found)}")
    else:
        confirm(f"undo {_about(found)}?")


@dataclass
class _Undoing:
    """Undoes runs as the options of the command say."""

    this: ThisRun
    runs: Runs
    where: Selection
    store: str | None
    _: KW_ONLY
    named: bool
    dry_run: bool
    _places: dict[str, tuple[Location, bool]] = field(default_factory=dict)
    """The location of each store, and whether it is another store than that of the run."""

    def undo(self, undone: Run) -> None:
        """Undo a run, with the report of the undo as that of the output.

        Of the part of a job, only its shard is locked.

        Raises:
            MemctlError: as ``change``.
        """
        this = self.this
        argument, store = self._argument(undone)
        place, elsewhere = self.place(undone)
        new_record = partial(record, this, "undo", argument)
        # Who names the store without a password names it on purpose.
        named = self.named and store is not None and not new_record(place).secret
        options = run_options(this, dry_run=self.dry_run)
        about = self.runs, undone, place, new_record, self.where, options
        with reversing(*about, named=named, elsewhere=elsewhere, job=this.job) as made:
            undoing, location = made
            outcome = ChangeOutcome[Any](location).watch(undoing)
            outcome.report_to(this.output)
            try:
                perform(outcome, lambda: wait_for(undoing.perform(location), undoing.stop))
            except Unavailable as error:
                if undone.secret and store is None:
                    error.hint = "name the store with its password: memctl undo RUN --store URL"
                raise

    def _argument(self, undone: Run) -> tuple[str, str | None]:
        """Return the name of the store in which to undo a run, and that which the user chose."""
        store = self.store
        if not self.named and not undone.secret:
            store = None  # it only selected the run; the record also has options such as ?state=
        return undone.argument if store is None else store, store

    def place(self, undone: Run) -> tuple[Location, bool]:
        """Return the location in which to undo a run, and whether the run was on another store.

        The user is asked for a password, and warned of another store, only once.
        """
        argument, store = self._argument(undone)
        if argument not in self._places:
            place = self.this.locate(argument)
            elsewhere = store is not None and not is_on(undone, place, self.this.address)
            if elsewhere:
                self.this.output.warn(
                    f"the run changed {undone.store}, but is being undone on {place.label}"
                )
            self._places[argument] = place, elsewhere
        return self._places[argument]


def _undo_job(this: ThisRun, undoing: _Undoing, job: Job, undone: list[Run]) -> None:
    """Undo the runs of the parts of a job one after another; report all of them.

    Raises:
        Interrupted: a signal came; the parts before are undone.
        MemctlError: as ``error_of``, or the error of the store.
    """
    begun = time.monotonic()
    results: list[PartResult] = []
    stopped: MemctlError | None = None
    for run in undone:
        start = time.monotonic()
        this.output.printout = None
        error: MemctlError | None = None
        try:
            undoing.undo(run)
        except MemctlError as found:
            error = found
        data = this.output.reported
        if error is not None:
            data["error"] = msgspec.to_builtins(Error.of(error))
        results.append(
            PartResult(
                Shard.parse(run.shard),
                0 if error is None else error.exit_code,
                data or None,
                host=socket.gethostname(),
                seconds=round(time.monotonic() - start, 3),
            )
        )
        if isinstance(error, Interrupted | Unavailable | UsageError):
            stopped = error
            break
    report = of_job(_nothing(job, dry_run=False), merge("undo", results).report)
    if any(part.run for part in report.parts or ()):
        report.job = this.job
    seconds = time.monotonic() - begun
    this.output.printout = merged_report(report, len(undone), "this machine", seconds)
    if error := stopped if isinstance(stopped, Interrupted) else error_of(results, len(undone)):
        raise error
    this.output.emit()


def _about(undone: Run | Job) -> str:
    if isinstance(undone, Job):
        run = undone.runs[-1]
        name, changed = f"all parts of the job {undone.name}", job_state(undone)
    else:
        run, name, changed = undone, undone.id, run_state(undone)
    changed = run_changes(undone) or changed
    return (
        f"{name}, the {run.command} of {local_time(run.started)} on "
        f"{visible(run_store(undone))} ({changed})"
    )
