"""``memctl undo``: reverts the changes of a run."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from memctl.commands._change import change, confirm, refuse_unasked
from memctl.commands._context import Run as ThisRun
from memctl.commands._options import (
    DryRunOption,
    SessionOption,
    UserOption,
    YesOption,
    opens_stores,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import is_on, record, run_options
from memctl.errors import Busy, NotFound, Unavailable, UsageError
from memctl.journal.runs import Run, Runs
from memctl.location import Location, visible
from memctl.numbers import local_time
from memctl.ops.apply import ChangeReport
from memctl.ops.places import recorded_location
from memctl.ops.restore import CopyUndoRun, RestoreRun
from memctl.ops.undo import UndoRun
from memctl.output import tables
from memctl.registry import as_recorded
from memctl.selection import Selection


@opens_stores
def undo(
    this: ThisRun,
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The id of a run, or its start or end; see memctl history.",
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
    undone nor an undo, after a confirmation. To undo an undo, name it as RUN; doctor makes
    repairs again.

    Examples:
      memctl undo
      memctl undo --store agents.db --dry-run
      memctl undo 9603a --user ada
    """
    runs = Runs()
    undone = _the_run(this, runs, run_id, store)
    if runs.goes_on(undone):
        raise Busy(
            f"the run {undone.id} is still running",
            "wait for it to end, or stop it",
        )
    parts = runs.parts(undone)
    if run_id is None and not dry_run:
        refuse_unasked(yes)
    if run_id is None and store is None and yes:
        _refuse_older(runs, undone)
    if run_id is None and not undone.secret:
        store = None  # --store only selected the run; the record also has options such as ?state=
    argument = undone.argument if store is None else store
    location = this.locate(argument)
    elsewhere = store is not None and not is_on(this, undone, location)
    location = _with_record(this, undone, location, elsewhere=elsewhere)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    options, report = run_options(this, dry_run=dry_run), ChangeReport()

    # Who names the store without a password names it on purpose.
    secret = record(this, "undo", argument, location).secret
    named = run_id is not None and store is not None and not secret

    def new_record() -> Run:
        found = record(this, "undo", argument, location)
        if not elsewhere:  # the record names options, such as ?state=, that the user left out
            found.argument, found.secret = undone.argument, secret or undone.secret
        found.undoes, found.dialect = undone.id, undone.dialect
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
        asks = run_id is None and not yes and not dry_run
        if asks:
            confirm(f"undo {_about(undone)}?")
        elif run_id is None and not dry_run:
            this.output.note(f"undoing {_about(undone)}")
        try:
            change(this.output, undoing, location, outcome)
        except Unavailable as error:
            if undone.secret and store is None:
                error.hint = "name the store with its password: memctl undo RUN --store URL"
            raise
        finally:
            if outcome.ended and not where.named and not dry_run and not outcome.changes.failures:
                _note(runs, undone, outcome.run)


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


def _about(undone: Run) -> str:
    changed = tables.run_changes(undone) or tables.run_state(undone)
    return (
        f"{undone.id}, the {undone.command} of {local_time(undone.started)} "
        f"on {visible(undone.store)} ({changed})"
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


def _the_run(this: ThisRun, runs: Runs, name: str | None, store: str | None) -> Run:
    """Return the run to undo.

    ``name`` is its id, or the start or end of its id.  Without ``name``, the newest run that can be
    undone is returned; with ``store``, the newest such run on this store.

    Raises:
        NotFound: there is no such run.
        BadData: the record of the run is damaged.
    """
    if name is not None:
        return runs.find(name)
    at = None if store is None else this.address(store)
    run = runs.last(lambda one: at is None or is_on(this, one, at))
    if run is not None:
        return run
    where = "" if at is None else f" on {at.label}"
    raise NotFound(
        f"no run{where} can be undone",
        "list the runs with memctl history; if the store has moved, use undo RUN --store STORE",
    )


def _with_record(this: ThisRun, undone: Run, location: Location, *, elsewhere: bool) -> Location:
    """Return the location in which to undo a run, with what the run recorded of its store.

    The record has the layout, which cannot be detected if the run emptied the store, and options
    that the user may have left out, such as ``?state=``.  ``elsewhere`` is True if ``location`` is
    another store.
    """
    if elsewhere:
        this.output.warn(f"the run changed {undone.store}, but is being undone on {location.label}")
        options = {name: text for name, text in undone.options.items() if name != "layout"}
        return as_recorded(location, options)
    recorded = recorded_location(undone, this.address)
    if location.path.name:
        return as_recorded(recorded, undone.options)
    left_out = recorded.options.keys() - location.options.keys()
    options = {name: recorded.options[name] for name in left_out}
    return as_recorded(location, options | undone.options)
