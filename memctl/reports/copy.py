"""The reports of ``import``, ``migrate`` and ``export``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import UNSET

from memctl.reports.report import (
    Count,
    Divisible,
    DryRun,
    FailureRow,
    Maybe,
    OfMemory,
    Place,
    Row,
    RunId,
    added,
    one_of,
)


class CopiedMemories(Row):
    """The selected memories, by outcome."""

    selected: Count
    written: Count
    unchanged: Count
    skipped: Count
    failed: Count


class CopiedMessages(Row):
    """The messages of the selected memories, by outcome."""

    selected: Count
    written: Count
    skipped: Count
    deleted: Count
    failed: Count


class Example(Row):
    """One of the affected memories."""

    user: str
    session: str


LossKind = one_of(
    "summary expiry repeated-id details times record encrypted calls waiting-calls "
    "content-not-shown unknown-roles session compressed"
)


class LossRow(Row):
    """Data that the target cannot hold."""

    kind: Annotated[str, LossKind]
    """The data that is lost."""
    memories: Count
    """The number of affected memories."""
    example: Example


class Embedded(Row):
    """The vectors of facts that an embedder made."""

    embedder: str
    model: str
    texts: Count
    tokens: Count
    cost: float | None
    """Null if the embedder has no price."""


class Followed(Row):
    """With --follow: the contents of source and target at the end, and the number of copies."""

    memories: Count
    messages: Count
    rounds: Count


class CopiedReport(Divisible, kw_only=True):
    """The result of a copy into a store."""

    flat: ClassVar[tuple[str, ...]] = "dry_run", "source", "target", "memories", "messages"
    rules: ClassVar = Divisible.rules | {"losses": added("kind")}
    dry_run: DryRun
    source: Place
    target: Place
    memories: CopiedMemories
    messages: CopiedMessages
    failures: list[FailureRow]
    losses: list[LossRow]
    """The data that the target cannot hold: an error, unless --lossy drops the data."""
    embedded: Maybe[Embedded] = UNSET
    verified: Maybe[bool] = UNSET
    """Whether both sides are equal; left out if they were not compared."""
    run: Maybe[RunId] = UNSET


class MigrateReport(CopiedReport, kw_only=True):
    """The result of a migration."""

    follow: Maybe[Followed] = UNSET


class RestoredMemory(OfMemory, kw_only=True):
    """The changes of a memory by a restore or an import."""

    whole: bool
    """True if the store lacks the memory: all of it comes back."""
    back: Count
    """The messages that come back."""
    changed: Count
    """The messages that get the content, the marks or the place that the archive has."""
    stay: Count
    """The messages of the store that the archive lacks, which stay."""
    summary: bool
    """True if the summary of the archive replaces that of the store."""


class ImportReport(CopiedReport, kw_only=True):
    """The result of an import."""

    plan: Maybe[list[RestoredMemory]] = UNSET
    """In a dry run, the memories of the store that differ from the file, or that it lacks."""


class RestoreReport(CopiedReport, kw_only=True):
    """The result of a restore."""

    flat = ()
    lists = ("plan",)
    plan: list[RestoredMemory]
    """The memories that differ, and what comes back; empty if there is nothing to restore."""


_SHAPE = one_of(
    "state-dict archive session-dir markdown html csv parquet atif openai hermes opencode zip"
)


class CollectedStore(Row, kw_only=True):
    """The part of a store in a page or a ZIP file of several."""

    store: Place
    memories: Count
    messages: Count
    repeated: Count
    """The memories that are equal to those of stores before, and are shown there."""
    file: Maybe[str] = UNSET
    """The archive in the ZIP file."""


class ExportReport(Divisible, kw_only=True, rename={"as_": "as"}):
    """The written memories and the removed files."""

    flat = "dry_run", "source", "file", "as", "bytes", "memories", "messages", "removed"
    rules: ClassVar = Divisible.rules | {"losses": added("kind")}
    dry_run: DryRun
    source: Place
    memories: CopiedMemories
    messages: CopiedMessages
    failures: list[FailureRow]
    losses: list[LossRow]
    """The data that the target cannot hold: an error, unless --lossy drops the data."""
    file: str
    """The file or folder. With --shards, {shard} stands for the part."""
    as_: Annotated[str, _SHAPE]
    bytes: Count | None
    """The size of the file; null for a folder and in a dry run."""
    removed: list[str]
    """Removed files; with --dry-run, files to remove."""
    stores: Maybe[list[CollectedStore]] = UNSET
    """The part of each store, if there are several or the output is a ZIP file."""
