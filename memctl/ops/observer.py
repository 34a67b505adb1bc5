"""What an operation tells its caller while it runs: progress, warnings, notes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from memctl.ops.report import (
    Progress,
    SilentProgress,
    SilentSummaryProgress,
    SummaryProgress,
    Total,
)


class Observer(Protocol):
    """The side of a caller that a run reports to; the output of a command is one."""

    def progress(
        self, description: str, total: Callable[[], Total | None] = ..., /
    ) -> AbstractContextManager[Progress]:
        """Show the progress of one phase; ``total`` returns its size once that is known."""

    def summarising(self, memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Show the progress of so many summaries."""

    def warn(self, text: str, /) -> None:
        """Show a warning."""

    def note(self, text: str, /) -> None:
        """Show a note."""

    def detail(self, text: str, /) -> None:
        """Show a detail."""


class Unobserved:
    """The observer of a program: warnings go to the logger ``memctl``, progress to its caller."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or SilentProgress()
        self._logger = logging.getLogger("memctl")

    def progress(
        self, _description: str, _total: Callable[[], Total | None] = lambda: None, /
    ) -> AbstractContextManager[Progress]:
        """Return the progress that the caller watches."""
        return nullcontext(self._progress)

    def summarising(self, _memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Return a progress that is not shown."""
        return nullcontext(SilentSummaryProgress())

    def warn(self, text: str, /) -> None:
        """Log a warning."""
        self._logger.warning(text)

    def note(self, text: str, /) -> None:
        """Log a note."""
        self._logger.info(text)

    def detail(self, text: str, /) -> None:
        """Log a detail."""
        self._logger.debug(text)
