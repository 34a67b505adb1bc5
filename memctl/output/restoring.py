"""The table of what a restore or an import would change."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.output.tables import Column, Grid, key_columns
from memctl.reports.copy import RestoredMemory
from memctl.text.numbers import count


def plan(memories: list[RestoredMemory]) -> RenderableType:
    """Draw the first memories of a plan: messages to put back, to change and to keep."""
    if not memories:
        return Text("nothing to restore: the store has all that the archive has")
    rows = memories[:SHOWN_MEMORIES]
    columns = key_columns([row.key for row in rows])
    columns += [
        Column(
            "comes back",
            [Text("all" if row.whole else f"{row.back:,}") for row in rows],
            right=True,
        ),
        Column("differs", [Text(f"{row.changed:,}") for row in rows], right=True),
        Column("only here, stays", [Text(f"{row.stay:,}") for row in rows], right=True),
    ]
    if any(row.summary for row in rows):
        columns.append(Column("summary", [Text("replaced" * row.summary) for row in rows]))
    if (hidden := len(memories) - len(rows)) > 0:
        return Group(
            Grid(columns), Text(f"and {count(hidden, 'memory')} more: --json lists all", "dim")
        )
    return Grid(columns)


def planned(memories: list[RestoredMemory], outcome: Text) -> RenderableType:
    """Draw the plan of an import above what the dry run says of its outcome."""
    return Group(plan(memories), Text(), outcome)
