"""The report of ``doctor``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import UNSET

from memctl.reports.report import (
    Count,
    Divisible,
    DryRun,
    FailureRow,
    Maybe,
    Path,
    Place,
    Row,
    RunId,
    Session,
    User,
    added,
    first,
    one_of,
)

Severity = one_of("error warning notice")


class StoreRow(Row):
    """The examined store."""

    url: Place
    kind: str
    """A kind that 'memctl stores' lists."""


class FindingRow(Row, kw_only=True):
    """A finding; user and session are null if the finding is about the whole store."""

    rules: ClassVar = {"ids": first, "repairable": first}
    code: str
    """Stable: docs/doctor.md lists them."""
    severity: Annotated[str, Severity]
    user: User | None
    session: Session | None
    path: Maybe[Path] = UNSET
    count: Count
    """Messages, or what the finding counts."""
    ids: list[str]
    """The first few."""
    message: str
    meaning: str
    """What it means for the agent."""
    remedy: str
    """How to fix the finding."""
    repairable: bool

    @property
    def place(self) -> tuple[object, ...]:
        """What was found, and where."""
        return self.code, self.user, self.session, self.path, self.message


class RepairedRow(Row, kw_only=True):
    """A repair; user and session are null if the finding was about the whole store."""

    code: str
    user: User | None
    session: Session | None
    path: Maybe[Path] = UNSET
    count: Count

    @property
    def place(self) -> tuple[object, ...]:
        """What was repaired, and where."""
        return self.code, self.user, self.session, self.path


class DoctorReport(Divisible, kw_only=True):
    """The findings of doctor in a store."""

    lists = ("findings",)
    rules: ClassVar = Divisible.rules | {"findings": added("place"), "repaired": added("place")}
    store: StoreRow
    healthy: Maybe[bool] = UNSET
    """True without errors and warnings; left out if the store could not be examined again."""
    memories: Maybe[Count] = UNSET
    messages: Maybe[Count] = UNSET
    findings: list[FindingRow]
    dry_run: Maybe[DryRun] = UNSET
    repaired: Maybe[list[RepairedRow]] = UNSET
    failures: Maybe[list[FailureRow]] = UNSET
    run: Maybe[RunId] = UNSET
    quarantine: Maybe[str] = UNSET
    """The quarantine file with the damaged data."""
