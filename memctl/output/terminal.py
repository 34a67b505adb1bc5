"""The two streams of a run: the report on stdout, all the rest on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from memctl.errors import MemctlError
from memctl.location import visible
from memctl.ops.report import Progress, Silent, Unwatched, Watching
from memctl.output.report import Report

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from memctl.output.formats import Listing

WIDE = 10_000
"""Columns of a table that is piped: never cut."""


class Format(StrEnum):
    """How a report is written."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class LogFormat(StrEnum):
    """How messages on stderr are written."""

    TEXT = "text"
    JSON = "json"


@dataclass(slots=True)
class Output:
    """Where a run writes, and how."""

    format: Format = Format.TABLE
    color: Color = Color.AUTO
    log_format: LogFormat = LogFormat.TEXT
    quiet: bool = False
    verbose: bool = False
    report: Report | None = None
    listing: Listing | None = None
    """A report in JSON of which rows may have been written; it goes before ``report``."""
    warnings: list[str] = field(default_factory=list)

    def console(self) -> Console:
        """Rich's view of stdout: colours and widths of a terminal, plain and uncut in a pipe."""
        from memctl.output.console import Screen  # Rich is loaded when something is drawn

        forced = {Color.ALWAYS: True, Color.NEVER: False, Color.AUTO: None}[self.color]
        width = None if sys.stdout.isatty() else WIDE
        return Screen(
            file=sys.stdout,
            force_terminal=forced,
            no_color=True if self.color is Color.NEVER else None,
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    # Messages to the operator

    def show(self, table: RenderableType) -> None:
        """Draws a table for the person who is asked something."""
        from rich.console import Console  # Rich is loaded when something is drawn

        Console(file=sys.stderr, highlight=False, markup=False, emoji=False).print(table)

    def warn(self, text: str) -> None:
        """A warning: at once on stderr, and in the report."""
        if text not in self.warnings:
            self.warnings.append(text)
            self._log("warning", text)

    def note(self, text: str) -> None:
        """What is good to know, unless ``--quiet``."""
        if not self.quiet:
            self._log("info", text)

    def detail(self, text: str) -> None:
        """What is good to know with ``--verbose``."""
        if self.verbose:
            self._log("debug", text)

    def _log(self, level: str, text: str, **more: str) -> None:
        if self.log_format is LogFormat.JSON:
            record = {"time": datetime.now().astimezone().isoformat(), "level": level}
            line = json.dumps(record | {"message": text} | more)
        else:
            label = "" if level in ("info", "debug") else f"{level}: "
            line = f"memctl: {label}{visible(text)}"
            if "hint" in more:
                line += f"\n  hint: {visible(more['hint'])}"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    # The end of a run

    def emit(self, error: MemctlError | None = None) -> None:
        """Writes the report; with an error, as far as there is something to report."""
        if self.listing is not None:
            self.listing.close(self.warnings, error)
            self.listing = None
            return
        if self.report is None:
            return
        from memctl.output import formats  # only a run that reports needs them

        match self.format:
            case Format.JSON:
                formats.write_json(self.report, self.warnings, error)
            case Format.NDJSON:
                formats.write_ndjson(self.report.rows())
            case Format.CSV:
                formats.write_csv(self.report.rows())
            case Format.TABLE:
                table = self.report.table()
                if table is not None:
                    self.console().print(table)

    def fail(self, error: MemctlError, command: str = "") -> None:
        """Reports how far a run came, then why it ended."""
        if self.listing is None and self.report is None and self.format is Format.JSON:
            self.report = Report(command, dict, list, lambda: None)
        self.emit(error)
        more = {"code": error.code} if self.log_format is LogFormat.JSON else {}
        if error.hint:
            more["hint"] = error.hint
        self._log("error", error.message, **more)

    @property
    def _watched(self) -> bool:
        return not self.quiet and self.log_format is LogFormat.TEXT and sys.stderr.isatty()

    @contextmanager
    def summarising(self, memories: int) -> Iterator[Watching]:
        """Progress of so many summaries on a terminal; silence elsewhere."""
        if not self._watched:
            yield Unwatched()
            return
        from memctl.output.progress import Summarising  # drawn on terminals only

        with Summarising(memories) as live:
            yield live

    @contextmanager
    def progress(self, description: str) -> Iterator[Progress]:
        """Progress on a terminal; silence elsewhere."""
        if not self._watched:
            yield Silent()
            return
        from memctl.output.progress import Live  # drawn on terminals only

        with Live(description) as live:
            yield live
