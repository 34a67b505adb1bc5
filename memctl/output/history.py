"""The table of ``history``, and texts about a run for other commands."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.journal.runs import CUT_SHORT, RUNNING, Job, Run, as_jobs
from memctl.location import visible
from memctl.output.tables import Column, Grid, cell
from memctl.output.terminal import WIDE
from memctl.text.numbers import count, local_time, size


def run_table(
    runs: list[Run], sizes: dict[str, int], names: Mapping[str, str], hidden: int
) -> RenderableType:
    """Draw a row per run that can be undone, with the size of its undo data in bytes.

    ``sizes`` and ``names`` map the id of a run to its size and to its short id, which is shown on a
    terminal.  ``hidden`` is the number of older runs that ``runs`` leaves out.
    """
    if not runs:
        return Text("no runs are kept")
    table = _Runs(runs, sizes, names)
    if not hidden:
        return table
    return Stack(table, Text(f"and {hidden:,} more: --limit 0 shows all", "dim"))


class _Runs:
    """A table of runs, with short ids on a terminal and full ids in a pipe; a job is one row."""

    def __init__(self, runs: list[Run], sizes: dict[str, int], names: Mapping[str, str]) -> None:
        self._lines = as_jobs(runs)
        self._sizes = sizes
        self._names = names

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = self._names if options.max_width < WIDE else {}
        rows = [self._row(line, names) for line in self._lines]
        ids, commands, stores, changes, times, sizes, states = map(list, zip(*rows, strict=True))
        yield Grid(
            [
                Column("run", ids),
                Column("command", commands),
                Column("store", stores, shrinks=True, enough=_STORE, keeps_end=True),
                Column("changed", changes, leaves=3, shrinks=True, enough=_CHANGED),
                Column("when", times, leaves=2),
                Column("size", sizes, right=True, leaves=1),
                Column("state", states, shrinks=True, enough=_STATE),
            ]
        )

    def _row(self, line: Run | Job, names: Mapping[str, str]) -> tuple[Text, ...]:
        if isinstance(line, Job):
            run, id, command = line.runs[-1], line.name, line.runs[-1].command
            bytes_ = sum(self._sizes[one.id] for one in line.runs)
            state = job_state(line)
        else:
            run, id, command = line, line.id, run_command(line)
            bytes_ = self._sizes[line.id]
            state = run_state(line, names)
        return (
            Text(visible(names.get(id, id)), "cyan"),
            Text(visible(command)),
            cell(run_store(line)),
            Text(run_changes(line)),
            Text(visible(local_time(run.started))),
            Text(size(bytes_)),
            Text(visible(state)),
        )


_STORE, _CHANGED, _STATE = 8, 13, 15
"""The widths that suffice for the columns of ``history``: the store, the changes and the state."""


def run_command(run: Run) -> str:
    """Return the command of a run, with its policy, or its shard if it was limited to one."""
    if run.policy:
        return f"{run.command} {run.policy}"
    return f"{run.command} {run.shard}" if run.shard else run.command


def run_store(run: Run | Job) -> str:
    """Return the store that a run changed; of a job on several, their number."""
    if isinstance(run, Run):
        return run.store
    names = {one.store for one in run.runs}
    return count(len(names), "store") if len(names) > 1 else names.pop()


def run_changes(run: Run | Job) -> str:
    """Return the counts of a run as text, such as ``12 deleted, 3 marked``."""
    command = run.runs[0].command if isinstance(run, Job) else run.command
    repair = {"restored": "added"} if command == "doctor" else {}
    words = [
        f"{number:,} {repair.get(name, name)}" for name, number in run.counts.items() if number
    ]
    return ", ".join(words)


def run_state(run: Run, names: Mapping[str, str] = {}) -> str:
    """Return the outcome of a run as text, or the run that has undone it.

    ``names`` maps the id of a run to its short id.  The text also has the number of memories that
    were erased from the record of the run.
    """
    erased = f", {count(run.erased, 'memory')} erased" if run.erased else ""
    return f"{_end_of(run, names)}{erased}"


def job_state(job: Job) -> str:
    """Return the outcome of a job as text, such as ``done, 16 of 16 parts``.

    The outcome is that of the last run of each part.  A part without changes has no run.
    """
    last = {run.shard: run for run in reversed(job.runs)}
    outcomes = {run.outcome or CUT_SHORT for run in last.values()}
    left = {run.shard for run in job.runs if not run.over}
    parts = f"{job.shards:,} of {count(job.of, 'part')}"
    erased = sum(run.erased for run in job.runs)
    more = f", {count(erased, 'memory')} erased" if erased else ""
    if RUNNING in {run.outcome for run in job.runs}:
        return f"{RUNNING}, {parts}{more}"
    if len(left) < job.shards:
        undone = f"{job.shards - len(left):,} of {count(job.of, 'part')}" if left else parts
        return f"undone, {undone}{more}"
    worst = next((one for one in (CUT_SHORT, "partial") if one in outcomes), "done")
    return f"{worst.replace('-', ' ')}, {parts}{more}"


def _end_of(run: Run, names: Mapping[str, str]) -> str:
    if run.undone_by:
        return f"undone by {names.get(run.undone_by, run.undone_by)}"
    if run.settled:
        return "nothing to undo"
    return (run.outcome or CUT_SHORT).replace("-", " ")
