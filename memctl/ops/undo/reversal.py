"""The undo of a recorded run: finds the run and its store, and records the undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from memctl.errors import Busy, NotFound, UsageError
from memctl.journal.runs import Job, Run, Runs
from memctl.location import Location, visible
from memctl.ops.change.apply import ChangeReport
from memctl.ops.change.change import RunOptions
from memctl.ops.same_store import Locate, recorded_location
from memctl.ops.undo.restore import CopyUndoRun, RestoreRun
from memctl.ops.undo.undo import UndoRun
from memctl.registry import as_recorded
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.text.numbers import count


def find_run(runs: Runs, name: str | None, wanted: Callable[[Run], bool], where: str) -> Run | Job:
    """Return the run or the job to undo.

    ``name`` is its id, or the start or end of its id.  Without ``name``, the newest run that can be
    undone and is ``wanted`` is returned; of a part of a job, the whole job.  ``where`` names the
    store in the error, such as `` on agents.db``.

    Raises:
        NotFound: there is no such run.
        BadData: the record of the run is damaged.
    """
    if name is not None:
        return runs.find(name)
    run = runs.last(wanted)
    if run is not None:
        return runs.job(run.job) if run.job else run
    raise NotFound(
        f"no run{where} can be undone",
        "list the runs with memctl history; if the store has moved, use undo RUN --store STORE",
    )


def runs_to_undo(runs: Runs, found: Run | Job, shard: Shard | None = None) -> list[Run]:
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


def refuse_older(runs: Runs, undone: Run) -> None:
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


def with_record(undone: Run, location: Location, locate: Locate, *, elsewhere: bool) -> Location:
    """Return the location in which to undo a run, with what the run recorded of its store.

    The record has the layout, which cannot be detected if the run emptied the store, and options
    that the user may have left out, such as ``?state=``.  ``elsewhere`` is True if ``location`` is
    another store.
    """
    if elsewhere:
        options = {name: text for name, text in undone.options.items() if name != "layout"}
        return as_recorded(location, options)
    recorded = recorded_location(undone, locate)
    if location.path.name:
        return as_recorded(recorded, undone.options)
    left_out = recorded.options.keys() - location.options.keys()
    options = {name: recorded.options[name] for name in left_out}
    return as_recorded(location, options | undone.options)


@contextmanager
def reversing(
    runs: Runs,
    undone: Run,
    new_record: Callable[[], Run],
    where: Selection,
    options: RunOptions,
    *,
    named: bool,
    elsewhere: bool,
    job: str = "",
) -> Iterator[UndoRun]:
    """Return a context manager with the run that undoes ``undone``.

    ``new_record`` returns a record for the undo.  With ``named``, the user has named the store on
    purpose, perhaps another store than the run changed; ``elsewhere`` is True if it is another one.
    ``job`` is the name of the undo of a job, of which only the shard of ``undone`` is locked.

    If the block succeeds and nothing of the run is left, the run is recorded as undone.
    """

    def record() -> Run:
        found = new_record()
        if not elsewhere:  # the record names options, such as ?state=, that the user left out
            found.argument, found.secret = undone.argument, found.secret or undone.secret
        found.undoes, found.dialect = undone.id, undone.dialect
        found.job = job
        found.shard, found.stores = (undone.shard, undone.stores) if job else ("", 1)
        return found

    folder, report = runs.folder / undone.id, ChangeReport()
    parts, archive, origin = runs.parts(undone), runs.replaced(undone), runs.origin(undone)
    own = record()
    with closing(runs.before(undone)) as notes:
        kind: type[UndoRun] | partial[CopyUndoRun] = UndoRun
        if archive is not None:
            restoring = RestoreRun(record(), archive, parts, notes, options, report)
            kind = partial(CopyUndoRun, restoring)
        undoing = kind(
            *(own, replace(where, shard=undone.part) if job else where, parts, folder),
            *(options, report, notes),
            undone=None if named else undone,
            skips_damage=origin.command == "doctor",
            rewrites=_rewrites(origin),
        )
        yield undoing
    if where == Selection() and not (options.dry_run or report.failures):
        _note_undone(runs, undone, undoing.id)


def _rewrites(run: Run) -> bool:
    """Return whether a run gave messages another text; ``retain`` may have done so, too."""
    return run.command in ("offload", "rehydrate") or run.counts.keys() == {"replaced"}


def _note_undone(runs: Runs, undone: Run, by: str | None) -> None:
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
