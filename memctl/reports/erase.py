"""The report of ``erase``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.reports.report import Count, DryRun, Maybe, Place, Report, Row, one_of


class ErasedMemory(Row):
    """A memory that was erased, or is to be erased with --dry-run."""

    user: str
    session: str
    messages: Count


class ErasedRuns(Row):
    """The undo records that held erased data."""

    removed: list[str]
    rewritten: list[str]


class StoreOutcome(Row):
    """The outcome of an erase in one store."""

    flat = "store", "kind", "state", "messages", "memories", "runs"
    store: Place
    kind: str
    state: Annotated[str, one_of("planned pending begun erased partial failed nothing-there")]
    """The outcome; 'planned' with --dry-run."""
    messages: Count
    """Erased, or to be erased with --dry-run."""
    memories: list[ErasedMemory]
    runs: ErasedRuns
    not_reached: list[str]
    """The data that an erase leaves in a store of this kind."""


class NotErased(Row, kw_only=True):
    """What could not be erased: a memory, an undo record, or all of a store."""

    store: str
    user: Maybe[str] = UNSET
    session: Maybe[str] = UNSET
    run: Maybe[str] = UNSET
    code: str
    """Stable."""
    message: str


class EraseReport(Report, kw_only=True):
    """The result of an erasure."""

    lists = ("stores",)
    dry_run: DryRun
    stores: list[StoreOutcome]
    failures: list[NotErased]
    not_reached: list[str]
    """Data that erase cannot reach."""
    receipt: Maybe[str] = UNSET
    """The file of the receipt."""
    blobs: Maybe[list[str]] = UNSET
    """The removed files with offloaded contents to which only erased messages referred."""
