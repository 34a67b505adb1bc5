"""The report of ``history``."""

from __future__ import annotations

from memctl.reports.report import Count, Place, Report, Row


class RunRow(Row):
    """A run that can be undone."""

    run: str
    command: str
    store: Place
    started: str
    """ISO time."""
    ended: str | None
    """ISO time."""
    outcome: str
    """done, partial, cut-short, running."""
    memories: Count
    deleted: Count
    marked: Count
    restored: Count
    added: Count
    replaced: Count
    bytes: Count
    """The bytes that the undo record takes."""
    undoes: str | None
    """The run that this run undid."""
    undone_by: str | None
    """The run that undid this run."""
    erased: Count
    """The memories that memctl erase has since removed from the run."""
    job: str | None
    """The name that the runs of a divided run share; memctl undo takes it."""
    shard: str | None
    """The shard that the run was limited to, such as 3/16."""
    policy: str | None
    """The policy of retention that memctl retain carried out."""
    archive: str | None
    """The archive that holds what memctl retain removed."""
    renamed: Count
    """The messages of memories that got another name."""


class HistoryReport(Report):
    """The runs that can be undone, newest first."""

    lists = ("runs",)
    runs: list[RunRow]
