"""The reports of ``index``."""

from __future__ import annotations

from memctl.reports.report import Amount, Count, Report, Row


class IndexRow(Row):
    """An index of searches."""

    store: str
    """The store; empty if the index is damaged."""
    kind: str
    memories: Count
    messages: Count
    bytes: Count
    updated: str
    model: str | None
    """The model of the vectors."""
    path: str


class UpdatedRow(Row):
    """An index that was brought up to date."""

    store: str
    messages: Count
    new: Count
    seconds: Amount


class IndexReport(Report):
    """The search indexes that exist."""

    lists = ("indexes",)
    indexes: list[IndexRow]


class IndexUpdateReport(Report, tag="memctl/index/1"):
    """The search indexes that were updated."""

    lists = ("updated",)
    updated: list[UpdatedRow]


class IndexRemoveReport(Report, tag="memctl/index/1"):
    """The search indexes that were removed."""

    lists = ("removed",)
    removed: list[IndexRow]
