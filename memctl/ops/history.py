"""The kept runs, as ``memctl history`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memctl.journal.runs import Job, Run, Runs, as_jobs, short_ids
from memctl.location import Location
from memctl.ops.same_store import Locate, is_on
from memctl.registry import parse


class RunList(NamedTuple):
    """The newest runs, newest first, each with its outcome; the runs of a job follow each other.

    ``sizes`` and ``names`` map the id of a run to the size of its undo data in bytes and to its
    short id.  ``hidden`` is the number of older runs that are left out, where a job counts as one.
    ``damaged`` are the ids of runs whose records are damaged.
    """

    runs: list[Run]
    sizes: dict[str, int]
    names: dict[str, str]
    hidden: int
    damaged: list[str]


def list_runs(
    at: Location | None,
    limit: int | None,
    locate: Locate = parse,
    wanted: Callable[[Run], bool] = lambda _: True,
) -> RunList:
    """Return the newest ``limit`` kept runs on the store ``at``; None for all runs, on any store.

    ``locate`` is as for ``is_on``.  Runs for which ``wanted`` returns False are left out.  A job
    counts as one run.

    Raises:
        Unavailable: the folder of the runs cannot be read.
    """
    kept = Runs()
    every = kept.all()
    found = as_jobs(run for run in every if wanted(run) and (at is None or is_on(run, at, locate)))
    newest = found[:limit]
    shown = [run for one in newest for run in (one.runs if isinstance(one, Job) else [one])]
    for run in shown:
        run.outcome = kept.outcome(run)
    sizes = {run.id: kept.size(run) for run in shown}
    return RunList(shown, sizes, short_ids(every), len(found) - len(newest), kept.damaged())
