"""The tables of changes: what was changed in each memory, or will be."""

from __future__ import annotations

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.ops.change.apply import SHOWN_MEMORIES, ChangeCounts, ChangeReport
from memctl.output.tables import Column, Grid, append_failures, key_columns
from memctl.text.numbers import count
from memctl.text.words import natural


def change_outcome(
    report: ChangeReport,
    target: str,
    run: str | None,
    *,
    dry_run: bool,
    nothing: str = "nothing matched",
) -> RenderableType:
    """Draw the changes of a run, then each memory that it left unchanged with the reason.

    With ``dry_run``, draw the planned changes.  ``run`` is the id for ``undo``, None without undo
    data.  ``nothing`` is the text if there was nothing to change.
    """
    shown = report.planned if dry_run else report.done
    text = Text(visible(target), "bold")
    said = change_facts(shown, report.noun, dry_run=dry_run) if report.planned.memories else nothing
    text.append("\n" + said, "not bold")
    if report.failures:
        text.append(f", {count(len(report.failures), 'memory')} left unchanged", "not bold")
    append_failures(text, report.failures)
    if run is not None and shown.memories:
        text.append(f"\nundo it with: memctl undo {run}", "not bold dim")
    return with_plan(text, report) if dry_run else text


def with_plan(text: Text, report: ChangeReport) -> RenderableType:
    if not report.planned_by_memory:
        return text
    parts = [text, Text(), change_plan(report)]
    hidden = report.planned.memories - SHOWN_MEMORIES
    if hidden > 0:
        parts.append(Text(f"and {count(hidden, 'memory')} more: --json lists all", "dim"))
    return Stack(*parts)


def change_facts(changes: ChangeCounts, noun: str, *, dry_run: bool = False) -> str:
    """Return the changes as text, such as ``12 messages deleted in 3 memories``.

    ``noun`` is the word for a message.  With ``dry_run``, the text says ``would be deleted``.
    """
    if not changes.memories:
        return "nothing was changed"
    would = "would be " if dry_run else ""
    parts = [
        f"{what} {would}{done}"
        for number, what, done in (
            (changes.deleted, count(changes.deleted, noun), "deleted"),
            (changes.marked, f"marks of {count(changes.marked, noun)}", "changed"),
            (changes.restored, count(changes.restored, noun), "restored"),
            (changes.renamed, count(changes.renamed, noun), "renamed"),
        )
        if number
    ]
    if changes.summaries:
        parts.append(f"{count(changes.summaries, 'summary')} {would}changed")
    if not parts:  # the memories have no messages
        return f"{count(changes.memories, 'memory')} {would}renamed"
    return f"{', '.join(parts)} in {count(changes.memories, 'memory')}"


def change_plan(report: ChangeReport) -> RenderableType:
    """Draw the first memories of a planned change: messages to change and messages to keep."""
    keys = sorted(list(report.planned_by_memory)[:SHOWN_MEMORIES], key=natural)
    if report.planned.deleted == report.planned.messages:
        goes = "delete"
    elif report.planned.marked == report.planned.messages:
        goes = "mark"
    elif report.planned.renamed == report.planned.messages:
        goes = "rename"
    else:
        goes = "change"
    planned, staying = report.planned_by_memory, report.staying
    columns = key_columns(keys)
    columns.append(Column(goes, [Text(f"{planned[key]:,}") for key in keys], right=True))
    if staying:
        kept = [Text(f"{staying[key]:,}" if key in staying else "") for key in keys]
        columns.append(Column("keep", kept, right=True))
    return Grid(columns)
