"""The reports of ``hold``."""

from __future__ import annotations

from typing import Annotated

from memctl.reports.report import Report, Row, one_of


class HoldRow(Row):
    """A hold."""

    id: str
    """The name of the hold for 'memctl hold remove'; made from its content if the hold is in the
    configuration."""
    user: str | None
    """The user whose memories are held; null for every user."""
    session: str | None
    """The session that is held; null for every session."""
    store: str | None
    """The store, as the hold names it; null for every store."""
    reason: str
    until: str | None
    """The last day of the hold; null without an end."""
    state: Annotated[str, one_of("in-force ended removed")]
    source: Annotated[str, one_of("state configuration")]
    """Where the hold is: in the state folder, by 'memctl hold add', or in the configuration."""
    file: str | None
    """The configuration file, for a hold of the configuration."""
    by: str | None
    """The login name of who added the hold."""
    added: str | None
    """When the hold was added, in UTC."""
    removed_by: str | None
    """The login name of who removed the hold."""
    removed: str | None
    """When the hold was removed, in UTC."""
    removed_reason: str | None
    """Why the hold was removed."""


class HoldReport(Report):
    """The holds (hold list)."""

    lists = ("holds",)
    holds: list[HoldRow]


class HoldAddedReport(Report, tag="memctl/hold/1"):
    """The hold that was added."""

    lists = ("added",)
    added: HoldRow


class HoldRemovedReport(Report, tag="memctl/hold/1"):
    """The hold that was removed."""

    lists = ("removed",)
    removed: HoldRow
