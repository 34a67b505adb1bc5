"""What runs changed, for people."""

from __future__ import annotations

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.journal.runs import CUT_SHORT, Run
from memctl.location import visible
from memctl.ops.change import ChangeReport, Changes
from memctl.output.grid import Column, Grid, cell
from memctl.output.numbers import count, size


def outcome(
    report: ChangeReport,
    target: str,
    run: str | None,
    *,
    dry_run: bool,
    nothing: str = "nothing matched",
) -> RenderableType:
    """What a run changed, or would change, then every memory that it left alone."""
    shown = report.planned if dry_run else report.done
    text = Text(visible(target), "bold")
    said = facts(shown, dry_run=dry_run) if report.planned.memories else nothing
    text.append("\n" + said, "not bold")
    if report.failures:
        text.append(f", {count(len(report.failures), 'memory')} left as they were", "not bold")
    for key, failure in report.failures:
        text.append(
            f"\n{visible(str(key))}  {failure.code}: {visible(failure.message)}", "not bold red"
        )
    if run is not None and shown.memories:
        text.append(f"\nmemctl undo {run} takes it back", "not bold dim")
    return text


def facts(changes: Changes, *, dry_run: bool = False) -> str:
    """``12 messages deleted in 3 memories``."""
    if not changes.memories:
        return "nothing was changed"
    would = "would be " if dry_run else ""
    parts = [
        f"{count(number, 'message')} {would}{word}"
        for number, word in (
            (changes.deleted, "deleted"),
            (changes.marked, "marked otherwise"),
            (changes.restored, "put back"),
        )
        if number
    ]
    if changes.summaries:
        parts.append(f"{count(changes.summaries, 'summary')} {would}changed")
    return f"{', '.join(parts)} in {count(changes.memories, 'memory')}"


def plan(report: ChangeReport) -> RenderableType:
    """The first memories that a plan is about."""
    keys = report.planned_by_memory
    return Grid(
        [
            Column("user", [cell(key.user) for key in keys], shrinks=True),
            Column("session", [cell(key.session) for key in keys], shrinks=True),
            Column("messages", [Text(f"{number:,}") for number in keys.values()], right=True),
        ]
    )


def history(runs: list[Run], sizes: dict[str, int], hidden: int) -> RenderableType:
    """The runs, a row each; ``hidden`` others are older."""
    if not runs:
        return Text("no run is kept")
    table = _runs(runs, sizes)
    if not hidden:
        return table
    return Stack(table, Text(f"and {hidden:,} more: --limit 0 shows all", "dim"))


def _runs(runs: list[Run], sizes: dict[str, int]) -> Grid:
    return Grid(
        [
            Column("run", [Text(visible(run.id), "cyan") for run in runs]),
            Column("command", [Text(visible(run.command)) for run in runs]),
            Column("changed", [Text(changed(run)) for run in runs]),
            Column("store", [cell(run.store) for run in runs], shrinks=True),
            Column("size", [Text(size(sizes[run.id])) for run in runs], right=True, leaves=1),
            Column("state", [Text(visible(state(run))) for run in runs]),
        ]
    )


def changed(run: Run) -> str:
    """``12 deleted, 3 marked``; empty where that was not noted."""
    words = [f"{number:,} {name}" for name, number in run.counts.items() if number]
    return ", ".join(words)


def state(run: Run) -> str:
    """How a run ended, and whether it was taken back."""
    if run.undone_by:
        return f"undone by {run.undone_by}"
    if run.settled:
        return "nothing to undo"
    return (run.outcome or CUT_SHORT).replace("-", " ")
