"""The reports of commands that change a store: delete, mark, undo, compress and offload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from msgspec import UNSET

from memctl.reports.report import (
    Amount,
    Count,
    Differ,
    Divisible,
    DryRun,
    FailureRow,
    Maybe,
    Place,
    Positive,
    Report,
    Row,
    RunId,
    Untimed,
    one_of,
)


class ChangedMemories(Row):
    """The selected memories, by outcome."""

    selected: Count
    written: Count
    failed: Count


class ChangedMessages(Row):
    """The selected messages, by outcome."""

    selected: Count
    deleted: Count
    marked: Count
    restored: Count
    failed: Count


class PlannedRow(Row):
    """A memory that would change."""

    user: str
    session: str
    messages: Count
    """Messages that would change."""
    path: Maybe[str] = UNSET
    stay: Maybe[Count] = UNSET
    """Messages that would stay as they are."""


class _Change(Divisible, kw_only=True):
    flat = "dry_run", "target", "memories", "messages", "run"
    dry_run: DryRun
    target: Place
    memories: ChangedMemories
    messages: ChangedMessages
    failures: list[FailureRow]
    plan: Maybe[list[PlannedRow]] = UNSET
    """With --dry-run: each memory that would change."""
    run: Maybe[RunId] = UNSET


class DeleteReport(_Change, kw_only=True):
    """The result of a deletion."""

    parted_tool_calls: Maybe[Positive] = UNSET
    """Selected tool calls or results whose other half is not selected and stays."""


class MarkReport(_Change):
    """The changed marks."""


class MarkRow(Row):
    """A mark of messages."""

    mark: str
    memories: Count
    messages: Count


class MarksReport(Report, tag="memctl/mark/1", kw_only=True):
    """The existing marks (mark list)."""

    lists = ("marks",)
    marks: list[MarkRow]
    untimed: Maybe[Untimed] = UNSET


class UndoReport(_Change, kw_only=True):
    """The result of an undo."""

    undoes: Maybe[str] = UNSET
    """The undone run."""
    unmended: Maybe[Count] = UNSET
    """Restored keys, rows or ids of the store that a repair had changed."""


class CompressedMemories(Row):
    """The selected memories, by outcome."""

    selected: Count
    written: Count
    failed: Count
    left: Count
    """Not processed before the run ended."""


class CompressedMessages(Row):
    """The messages to summarize, by outcome."""

    selected: Count
    marked: Count
    deleted: Count
    failed: Count


class SummarizerRow(Row):
    """The configured summarizer."""

    name: str
    kind: str


class CompressedTokens(Row):
    """The tokens of the compressed memories."""

    summarised: Count
    """The tokens of the summarized messages."""
    before: Count
    """The tokens that agents read of these memories before the compression."""
    after: Count | None
    """The tokens after the compression; null in a dry run."""
    ratio: Amount | None
    """after / before."""
    counted_by: str
    """estimate, or the tokenizer."""

    @classmethod
    def sum_of(cls, some: Sequence[Self], differ: Differ) -> Self:
        """Return the sum of objects, with the ratio of the sums."""
        found = super().sum_of(some, differ)
        known = found.after is not None and found.before
        found.ratio = (found.after or 0) / found.before if known else None
        return found


class ModelUse(Row):
    """The use of the model."""

    calls: Count
    """The requests to the model, with retries."""
    tokens_in: Count
    tokens_out: Count
    exact: bool
    """True if the model reported the count."""
    cost: Amount | None
    """In the currency of the configured prices; null where there are none."""


class CompressReport(Divisible, kw_only=True):
    """The result of a compression."""

    flat = (
        "dry_run",
        "target",
        "memories",
        "messages",
        "run",
        "tokens",
        "model",
        "mode",
        "summarizer.name",
    )
    dry_run: DryRun
    target: Place
    memories: CompressedMemories
    messages: CompressedMessages
    failures: list[FailureRow]
    plan: Maybe[list[PlannedRow]] = UNSET
    """With --dry-run: each memory that would change."""
    run: Maybe[RunId] = UNSET
    summarizer: SummarizerRow
    mode: Annotated[str, one_of("mark message replace")]
    tokens: CompressedTokens
    model: ModelUse


class RewrittenMessages(Row):
    """The selected messages, by outcome."""

    selected: Count
    changed: Count
    failed: Count


class BeforeAfter(Row):
    """A size before and after the change."""

    before: Count
    after: Count


class RewrittenRow(Row, kw_only=True):
    """A memory that would change."""

    user: str
    session: str
    path: Maybe[str] = UNSET
    messages: Count
    """Messages that would change."""
    bytes: BeforeAfter


class BlobsRow(Row):
    """The files with the contents."""

    place: str
    written: Count
    """New files; contents that were there do not count."""


class RehydrateReport(Report, kw_only=True):
    """The result of putting offloaded contents back."""

    flat = "dry_run", "target", "memories", "messages", "bytes", "tokens", "run"
    dry_run: DryRun
    target: Place
    memories: ChangedMemories
    messages: RewrittenMessages
    failures: list[FailureRow]
    plan: Maybe[list[RewrittenRow]] = UNSET
    """With --dry-run: each memory that would change."""
    run: Maybe[RunId] = UNSET
    bytes: BeforeAfter
    """The stored size of the changed messages."""
    tokens: BeforeAfter
    """The estimated tokens of the texts and tool results of the changed messages."""
    left: Count
    """Large contents that stay in their messages: they are in no form that could be restored
    exactly."""
    untimed: Maybe[Untimed] = UNSET


class RenameReport(Report, kw_only=True):
    """The result of a rename; the rows of plan have the old names."""

    flat = "dry_run", "target", "renames", "old", "new", "memories", "messages", "run"
    dry_run: DryRun
    target: Place
    renames: Annotated[str, one_of("user session project")]
    """The kind of what gets another name."""
    old: str
    new: str
    memories: ChangedMemories
    messages: RewrittenMessages
    failures: list[FailureRow]
    plan: Maybe[list[PlannedRow]] = UNSET
    """With --dry-run: each memory that would get another name."""
    run: Maybe[RunId] = UNSET


class OffloadReport(RehydrateReport, kw_only=True):
    """The result of moving large contents out of messages."""

    blobs: Maybe[BlobsRow] = UNSET


class BlobRow(Row):
    """A file that nothing refers to."""

    blob: str
    """The name of the file, without the extension of a compression."""
    bytes: Count
    """The stored size."""


class NotAsked(Row):
    """A store that could not be asked whether it needs a file."""

    store: str
    message: str


class PruneReport(Report, tag="memctl/offload/1"):
    """The result of offload --prune."""

    lists = ("removed",)
    dry_run: DryRun
    target: Place
    removed: list[BlobRow]
    """With --prune: the files that nothing refers to."""
    asked: list[str]
    """With --prune: the stores that were asked whether they need a file."""
    not_asked: list[NotAsked]
    """With --prune: the stores that could not be asked; all files stay."""
