"""The report of ``version``."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from memctl.reports.report import Maybe, Report, Row


class PackageRow(Row):
    """A package."""

    name: str
    version: str | None
    """null: it is not installed."""
    extra: str | None
    """The extra of memctl that installs it; null if memctl requires it."""


class Paths(Row):
    """The places of memctl's files."""

    configuration: str
    undo: str
    package: str
    python: str


class VersionReport(Report):
    """The version of memctl and, with --verbose, its installation."""

    lists = ("packages",)
    version: str
    python: Maybe[str] = UNSET
    platform: Maybe[str] = UNSET
    packages: Maybe[list[PackageRow]] = UNSET
    paths: Maybe[Paths] = UNSET
    conflicts: Maybe[list[str]] = UNSET
    """Other distributions that install files with the names of memctl's files."""

    def rows(self) -> list[dict[str, Any]]:
        """Return memctl and the packages as rows."""
        own = PackageRow(name="memctl", version=self.version, extra=None)
        return [own.row(), *super().rows()]
