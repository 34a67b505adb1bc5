"""The reports of ``config``."""

from __future__ import annotations

from typing import Any

import msgspec

from memctl.reports.report import Amount, Report, Row


class ConfigFile(Row):
    """The configuration file."""

    path: str
    exists: bool
    source: str
    """default, file, environment or command-line."""


class SettingRow(Row):
    """A setting."""

    key: str
    value: Any
    """A text, a number, a boolean, a list, or null."""
    source: str
    """default, file, environment or command-line."""
    where: str | None
    """The variable, or the place in the file."""


class ConfigReport(Report):
    """The settings with their origins (config show)."""

    lists = ("settings",)
    file: ConfigFile
    settings: list[SettingRow]


class CheckError(Row):
    """Why a check failed."""

    code: str
    message: str
    hint: str | None


class CheckRow(Row):
    """The check of a store, a summarizer, an embedder, the keys of archives, or a policy."""

    what: str
    """store, summarizer, embedder, encryption or retention."""
    name: str
    kind: str | None = None
    ok: bool = True
    capabilities: list[str] = msgspec.field(default_factory=list)
    seconds: Amount = 0.0
    """How long it took."""
    note: str | None = None
    error: CheckError | None = None


class ConfigCheckReport(Report, tag="memctl/config/1"):
    """The outcome for each store, summarizer and embedder (config check)."""

    lists = ("checks",)
    checks: list[CheckRow]
