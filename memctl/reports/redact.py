"""The report of ``redact``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta

from memctl.reports.copy import Embedded
from memctl.reports.report import Count, DryRun, ErrorCode, Maybe, Place, Report, Row

Kind = Annotated[str, Meta(description="The rule, such as github-pat; 'text' or 'match'.")]
Shown = Annotated[str, Meta(description="The first characters, at most four.")]


class PlaceRow(Row):
    """A value that was taken out, or would be."""

    place: str
    kind: Kind
    value: Shown


class LeftRow(Row):
    """A value that stays."""

    store: Place
    place: str
    kind: Kind
    value: Shown
    why: str


class FailedStore(Row):
    """A store that could not be searched, or only in part be changed."""

    store: Place
    code: Annotated[str, ErrorCode]
    message: str


class RedactedStore(Row):
    """The values in one store, and in the undo runs on it."""

    flat = "store", "kind", "redacted", "left", "signatures", "runs"
    store: Place
    kind: str
    redacted: Count
    """Values taken out, or to be taken out with --dry-run."""
    kinds: dict[str, Count]
    """The number of values by rule."""
    places: list[PlaceRow]
    """The first 1,000 values."""
    left: Count
    """Values that stay."""
    signatures: Count
    """Signatures of thinking that were removed, because they covered a redacted text."""
    runs: list[str]
    """The undo runs with values."""
    not_reached: list[str]
    """The data that memctl cannot reach in a store of this kind."""


class RedactReport(Report, kw_only=True):
    """The result of a redaction."""

    lists = ("stores",)
    dry_run: DryRun
    stores: list[RedactedStore]
    left: list[LeftRow]
    failures: list[FailedStore]
    not_reached: list[str]
    """Data that memctl cannot reach."""
    embedded: Maybe[Embedded] = UNSET
    receipt: Maybe[str] = UNSET
    """The file of the receipt."""
