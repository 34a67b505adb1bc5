"""The report of ``retain``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.reports.report import Count, DryRun, Error, Maybe, Place, Report, Row, one_of


class PolicyRow(Row):
    """The outcome of a policy."""

    flat = (
        *("policy", "store", "action", "state", "archive", "memories", "messages", "archived"),
        *("oldest", "newest", "bytes", "held", "left", "resumed", "runs", "receipts", "error.code"),
    )
    joined = "resumed", "runs", "receipts"
    policy: str
    """The name of the policy."""
    store: Place
    action: Annotated[str, one_of("delete compress erase prune offload")]
    state: Annotated[str, one_of("planned pending nothing done failed stopped")]
    """'planned' with --dry-run; 'nothing' if nothing was selected, or all of it is held; 'pending'
    if a signal came before, 'stopped' if it came during the policy."""
    archive: str | None
    """The new archive, without passwords."""
    memories: Count
    """Changed, or to be changed with --dry-run."""
    messages: Count
    """Removed from the store, or to be removed with --dry-run."""
    archived: Count
    """The messages in the new archive."""
    oldest: str | None
    """The earliest local time of a selected message."""
    newest: str | None
    """The latest local time of a selected message."""
    bytes: Count
    """The size of the selected messages in the store."""
    held: Count
    """The selected memories that stay because they are held."""
    left: Count
    """The archived memories that changed meanwhile; the next run takes them."""
    resumed: list[str]
    """The archives of killed runs that were acted on."""
    runs: list[str]
    """The runs for memctl undo."""
    receipts: list[str]
    """The receipts of erased users."""
    error: Error | None
    """Why the policy failed, or left something."""


class RetainFailure(Row, kw_only=True):
    """A memory that stays: held, damaged, or failed."""

    policy: str
    user: str
    session: str
    path: Maybe[str] = UNSET
    code: str
    """Stable."""
    message: str


class RetainReport(Report):
    """The result of the policies of retention."""

    lists = ("policies",)
    dry_run: DryRun
    policies: list[PolicyRow]
    failures: list[RetainFailure]
    """The memories that stay: held, damaged, or failed."""
    held: Count
    """The memories that stay because they are held: no failure of the run."""
