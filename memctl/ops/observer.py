"""Progress, warnings and notes of an operation, for its caller while it runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from memctl.ops.report import (
    Progress,
    SilentProgress,
    SilentSummaryProgress,
    SummaryProgress,
    Total,
)
from memctl.store import Store


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

    def retry(self, text: str, /) -> None:
        """Show that a lost connection is made again."""

    def store_opened(self, store: Store, /) -> None:
        """Take note of a store that was opened, with its ``details``."""

    def store_closing(self, store: Store, /) -> None:
        """Take the ``warnings`` of a store, and what of it was ``left_out``."""


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

    def retry(self, text: str, /) -> None:
        """Log a warning."""
        self._logger.warning(text)

    def store_opened(self, store: Store, /) -> None:
        """Log its details."""
        for text in store.details:
            self.detail(text)

    def store_closing(self, store: Store, /) -> None:
        """Log its warnings."""
        for text in store.warnings:
            self.warn(text)


@asynccontextmanager
async def opened(store: Store, observer: Observer) -> AsyncGenerator[Store]:
    """An open store, whose warnings reach the observer."""
    async with store:
        observer.store_opened(store)
        try:
            yield store
        finally:
            observer.store_closing(store)


async def warn_of_other_contents(store: Store, observer: Observer) -> None:
    """Warn of what else is in the place of a store that holds no memory."""
    if await store.is_empty() and (text := await store.other_contents()):
        observer.warn(text)
