"""``memctl undo``: reverts the changes of a run."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from memctl.commands._change import confirm, perform, refuse_unasked
from memctl.commands._context import Run as ThisRun
from memctl.commands._journal import is_on, record, run_options
from memctl.commands._merged import in_job, merged_report
from memctl.commands._options import (
    DryRunOption,
    SessionOption,
    UserOption,
    YesOption,
    divisible_change,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._whole import JobParts
from memctl.errors import Busy, Interrupted, MemctlError, NotFound, Unavailable, UsageError
from memctl.journal.runs import Job, Run, Runs, new_job
from memctl.location import Location, visible
from memctl.numbers import count, local_time
from memctl.ops.apply import ChangeReport
from memctl.ops.places import recorded_location
from memctl.ops.restore import CopyUndoRun, RestoreRun
from memctl.ops.undo import UndoRun
from memctl.output.history import job_state, run_changes, run_state, run_store
from memctl.output.report import error_row
from memctl.parts.divide import error_of
from memctl.parts.merge import merge
from memctl.parts.part import PartResult
from memctl.registry import as_recorded
from memctl.selection import Selection
from memctl.shard import Shard

_EMPTY: dict[str, Any] = {
    "dry_run": False,
    "memories": {"selected": 0, "written": 0, "failed": 0},
    "messages": {"selected": 0, "deleted": 0, "marked": 0, "restored": 0, "failed": 0},
    "failures": [],
}
"""The report of a job without parts to undo."""


def parts_of_job(this: ThisRun, given: Mapping[str, Any], shards: int) -> JobParts:
    """Return what to undo in ``shards`` parts, after a confirmation as that of ``undo``.

    ``given`` are the parameters of the command.

    Raises:
        UsageError: the run was not divided into so many parts.
        MemctlError: as ``undo``.
    """
    runs = Runs()
    name, store = given["run_id"], given["store"]
    found = _the_undone(this, runs, name, store)
    if isinstance(found, Run):
        raise UsageError(f"the run {found.id} is not a job, which has parts", "leave --shards out")
    if shards != found.of:
        raise UsageError(
            f"the job {found.name} has {count(found.of, 'part')}, not {shards:,}",
            f"write --shards {found.of}",
        )
    undone = _runs_to_undo(runs, found, None)
    if undone and name is None and not given["dry_run"]:
        refuse_unasked(given["yes"])
        if store is None and given["yes"]:
            _refuse_older(runs, undone[0])
        _ask(this, found, yes=given["yes"])
    run = found.runs[0]
    return JobParts(
        found.name,
        sorted({Shard.parse(run.shard) for run in undone}),
        store if store is not None and (name or run.secret) else run.argument,
        name is not None or run.secret,
        _EMPTY | {"dry_run": given["dry_run"], "target": visible(run_store(found))},
    )


@partial(divisible_change, parts_of=parts_of_job)
def undo(
    this: ThisRun,
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The id of a run or of a job, or its start or end; see memctl history.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="Undo the last run on this store; with RUN, undo that run in this store.",
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
    undone nor an undo, after a confirmation. Of a divided run, a job, all parts are undone. To
    undo an undo, name it as RUN; doctor makes repairs again.

    Examples:
      memctl undo
      memctl undo --store agents.db --dry-run
      memctl undo 9603a --user ada
    """
    runs = Runs()
    if this.orders is not None:
        runs.refuse_other(this.orders.state)
    found = _the_undone(this, runs, run_id, store)
    undone = _runs_to_undo(runs, found, this.shard)
    parts = runs.parts(found) if isinstance(found, Run) else []
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    undoing = _Undoing(this, runs, where, store, named=run_id is not None, dry_run=dry_run)
    if undone and run_id is None and not dry_run:
        refuse_unasked(yes)
        if store is None and yes:
            _refuse_older(runs, undone[0])
        undoing.place(undone[0])
        _ask(this, found, yes=yes)
    if isinstance(found, Job):
        this.job = this.job or new_job()
        _undo_job(this, undoing, found, undone)
    else:
        undoing.undo(found, parts)
        this.output.emit()


def _the_undone(this: ThisRun, runs: Runs, name: str | None, store: str | None) -> Run | Job:
    """Return the run or the job to undo.

    ``name`` is its id, or the start or end of its id.  Without ``name``, the newest run that can be
    undone is returned; with ``store``, the newest such run on this store.  Of a part of a job, the
    whole job is returned.

    Raises:
        NotFound: there is no such run.
        BadData: the record of the run is damaged.
    """
    if name is not None:
        return runs.find(name)
    at = None if store is None else this.address(store)
    run = runs.last(lambda one: at is None or is_on(this, one, at))
    if run is not None:
        return runs.job(run.job) if run.job else run
    where = "" if at is None else f" on {at.label}"
    raise NotFound(
        f"no run{where} can be undone",
        "list the runs with memctl history; if the store has moved, use undo RUN --store STORE",
    )


def _runs_to_undo(runs: Runs, found: Run | Job, shard: Shard | None) -> list[Run]:
    """Return the runs to undo, newest first: of a job, those that are not undone yet.

    ``shard`` chooses the runs of one part of a job.

    Raises:
        UsageError: the run or the job has no such part.
        Busy: a run is still going on.
    """
    if isinstance(found, Run):
        if shard is not None:
            raise UsageError(
                f"the run {found.id} is not a job, which has parts", "leave --shard out"
            )
        undone = [found]
    else:
        if shard is not None and shard.of != found.of:
            raise UsageError(
                f"the job {found.name} has {count(found.of, 'part')}, not {shard.of:,}",
                f"write --shard K/{found.of}",
            )
        chosen = [run for run in found.runs if shard is None or run.shard == str(shard)]
        undone = [run for run in chosen if not run.over]
    for run in undone:
        if runs.goes_on(run):
            part = f"part {run.shard} of the job {run.job}, " if isinstance(found, Job) else ""
            raise Busy(
                f"{part}the run {run.id} is still running",
                "wait for it to end, or stop it",
            )
    if isinstance(found, Run):
        return undone
    # A part that was killed early has changed nothing.
    return [run for run in undone if run.ended or (not run.planned and runs.has_changes(run))]


def _ask(this: ThisRun, found: Run | Job, *, yes: bool) -> None:
    """Ask for a confirmation, or tell with ``--yes`` what is undone.

    Raises:
        Interrupted: the user does not confirm.
    """
    if yes:
        this.output.note(f"undoing {_about(found)}")
    else:
        confirm(f"undo {_about(found)}?")


class _Undoing:
    """Undoes runs as the options of the command say."""

    def __init__(
        self,
        this: ThisRun,
        runs: Runs,
        where: Selection,
        store: str | None,
        *,
        named: bool,
        dry_run: bool,
    ) -> None:
        self._this = this
        self.runs = runs
        self._where = where
        self._store = store
        self._named = named
        self._dry_run = dry_run
        self._places: dict[str, tuple[Location, bool]] = {}
        """The location of each store, and whether it is another store than that of the run."""

    def undo(self, undone: Run, parts: list[Path]) -> None:
        """Undo a run, with the report of the undo as that of the output.

        ``parts`` are the files of its changes.

        Of the part of a job, only its shard is locked.

        Raises:
            MemctlError: as ``change``.
        """
        this, runs, dry_run = self._this, self.runs, self._dry_run
        argument, store = self._argument(undone)
        place, elsewhere = self.place(undone)
        location = _with_record(this, undone, place, elsewhere=elsewhere)
        where = self._where
        if this.job:
            where = replace(where, shard=undone.part)
        options, report = run_options(this, dry_run=dry_run), ChangeReport()

        # Who names the store without a password names it on purpose.
        secret = record(this, "undo", argument, location).secret
        named = self._named and store is not None and not secret

        def new_record() -> Run:
            found = record(this, "undo", argument, location)
            if not elsewhere:  # the record names options, such as ?state=, that the user left out
                found.argument, found.secret = undone.argument, secret or undone.secret
            found.undoes, found.dialect = undone.id, undone.dialect
            found.shard = undone.shard if this.job else ""
            found.stores = undone.stores if this.job else 1
            return found

        folder = runs.folder / undone.id
        new = new_record()
        archive = runs.replaced(undone)
        with closing(runs.before(undone)) as notes:
            kind: type[UndoRun] | partial[CopyUndoRun] = UndoRun
            if archive is not None:
                restoring = RestoreRun(new_record(), archive, parts, notes, options, report)
                kind = partial(CopyUndoRun, restoring)
            undoing = kind(
                *(new, where, parts, folder, options, report, notes),
                undone=None if named else undone,
                skips_damage=runs.origin(undone).command == "doctor",
            )
            outcome = ChangeOutcome(undoing, location.label)
            outcome.more["undoes"] = undone.id
            outcome.report_to(this.output)
            try:
                perform(this.output, undoing, location, outcome)
            except Unavailable as error:
                if undone.secret and store is None:
                    error.hint = "name the store with its password: memctl undo RUN --store URL"
                raise
            finally:
                whole = outcome.ended and not where.named and not dry_run
                if whole and not outcome.changes.failures:
                    _note(runs, undone, outcome.run)

    def _argument(self, undone: Run) -> tuple[str, str | None]:
        """Return the name of the store in which to undo a run, and that which the user chose."""
        store = self._store
        if not self._named and not undone.secret:
            store = None  # it only selected the run; the record also has options such as ?state=
        return undone.argument if store is None else store, store

    def place(self, undone: Run) -> tuple[Location, bool]:
        """Return the location in which to undo a run, and whether the run was on another store.

        The user is asked for a password, and warned of another store, only once.
        """
        argument, store = self._argument(undone)
        if argument not in self._places:
            place = self._this.locate(argument)
            elsewhere = store is not None and not is_on(self._this, undone, place)
            if elsewhere:
                self._this.output.warn(
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
        this.output.report = None
        error: MemctlError | None = None
        try:
            undoing.undo(run, undoing.runs.parts(run))
        except MemctlError as found:
            error = found
        report = None if this.output.report is None else this.output.report.data()
        if error is not None:
            report = {**(report or {}), "error": error_row(error)}
        results.append(
            PartResult(
                Shard.parse(run.shard),
                0 if error is None else error.exit_code,
                report,
                host=socket.gethostname(),
                seconds=round(time.monotonic() - start, 3),
            )
        )
        if isinstance(error, Interrupted | Unavailable | UsageError):
            stopped = error
            break
    merged = merge(results)
    data = _EMPTY | {"target": visible(run_store(job))} | merged.data
    data = in_job(data | {"undoes": job.name}, this.job)
    this.output.report = merged_report(
        "undo", data, len(undone), "this machine", time.monotonic() - begun
    )
    if error := stopped if isinstance(stopped, Interrupted) else error_of(results, len(undone)):
        raise error
    this.output.emit()


def _refuse_older(runs: Runs, undone: Run) -> None:
    """Refuse to undo ``undone``, which the user did not name, if a newer run has no undo record.

    Raises:
        UsageError: there is such a newer run.
    """
    newer = runs.unrecorded()
    if newer is not None and newer.number > undone.number:
        raise UsageError(
            f"the last run, {newer.command} on {visible(newer.store)}, has no undo record",
            f"to undo the {undone.command} on {visible(undone.store)}, run: "
            f"memctl undo {undone.id}",
        )


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


def _note(runs: Runs, undone: Run, by: str | None) -> None:
    """Record that the run ``by`` undid ``undone``, or that there was nothing to undo.

    ``by`` is the id of the undo; None if there was nothing to undo.  If ``undone`` is itself an
    undo, the run that it reversed can be undone again.
    """
    undone.undone_by = by or undone.undone_by
    undone.settled = by is None
    runs.update(undone)
    for run in runs.all() if by and undone.undoes else ():
        if run.id == undone.undoes and run.undone_by == undone.id:
            run.undone_by, run.settled = "", False
            runs.update(run)


def _with_record(this: ThisRun, undone: Run, location: Location, *, elsewhere: bool) -> Location:
    """Return the location in which to undo a run, with what the run recorded of its store.

    The record has the layout, which cannot be detected if the run emptied the store, and options
    that the user may have left out, such as ``?state=``.  ``elsewhere`` is True if ``location`` is
    another store.
    """
    if elsewhere:
        options = {name: text for name, text in undone.options.items() if name != "layout"}
        return as_recorded(location, options)
    recorded = recorded_location(undone, this.address)
    if location.path.name:
        return as_recorded(recorded, undone.options)
    left_out = recorded.options.keys() - location.options.keys()
    options = {name: recorded.options[name] for name in left_out}
    return as_recorded(location, options | undone.options)
