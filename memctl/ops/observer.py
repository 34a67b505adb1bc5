"""Progress, warnings and notes of a running operation."""

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
    """The receiver of progress, warnings and notes, such as the output of a command."""

    def progress(
        self, description: str, total: Callable[[], Total | None] = ..., /
    ) -> AbstractContextManager[Progress]:
        """Show the progress of one phase; ``total`` returns its size, None while unknown."""

    def summarising(self, memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Show the progress of the summaries of ``memories``."""

    def warn(self, text: str, /) -> None:
        """Show a warning."""

    def note(self, text: str, /) -> None:
        """Show a note."""

    def detail(self, text: str, /) -> None:
        """Show a detail."""

    def retry(self, text: str, /) -> None:
        """Show that the operation connects again after a lost connection."""

    def store_opened(self, store: Store, /) -> None:
        """Take the ``details`` of an opened store."""

    def store_closing(self, store: Store, /) -> None:
        """Take the ``warnings`` and ``left_out`` of a store."""


class Unobserved:
    """The observer of a program: warnings go to the logger ``memctl``, progress to the caller."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or SilentProgress()
        self._logger = logging.getLogger("memctl")

    def progress(
        self, _description: str, _total: Callable[[], Total | None] = lambda: None, /
    ) -> AbstractContextManager[Progress]:
        """Return the progress of the caller."""
        return nullcontext(self._progress)

    def summarising(self, _memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Return a silent progress."""
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
        """Log the details of the store."""
        for text in store.details:
            self.detail(text)

    def store_closing(self, store: Store, /) -> None:
        """Log the warnings of the store."""
        for text in store.warnings:
            self.warn(text)


@asynccontextmanager
async def opened(store: Store, observer: Observer) -> AsyncGenerator[Store]:
    """Open the store for the block; the observer gets its details and warnings."""
    async with store:
        observer.store_opened(store)
        try:
            yield store
        finally:
            observer.store_closing(store)


async def warn_of_other_contents(store: Store, observer: Observer) -> None:
    """Warn of other contents in the place of a store without memories."""
    if await store.is_empty() and (text := await store.other_contents()):
        observer.warn(text)
