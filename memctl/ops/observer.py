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
from memctl.wrappers.timeout import limited


class Observer(Protocol):
    """The receiver of progress, warnings and notes, such as the output of a command."""

    @property
    def timeout(self) -> float | None:
        """The seconds to wait for each answer of a store; None for no limit."""

    def progress(
        self, description: str, total: Callable[[], Total | None] = ..., /
    ) -> AbstractContextManager[Progress]:
        """Return a context manager that shows the progress of one phase of an operation.

        ``description`` names the phase.  ``total`` returns the amount of work in the phase, or None
        as long as the amount is unknown.
        """

    def summarising(self, memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Return a context manager that shows the progress of summarizing ``memories`` memories."""

    def warn(self, text: str, /) -> None:
        """Show a warning."""

    def note(self, text: str, /) -> None:
        """Show a note."""

    def detail(self, text: str, /) -> None:
        """Show a detail."""

    def retry(self, text: str, /) -> None:
        """Show a text about a new attempt after a lost connection."""

    def store_opened(self, store: Store, /) -> None:
        """Show the ``details`` of a store that was opened."""

    def store_closing(self, store: Store, /) -> None:
        """Show the ``warnings`` of a store, and the memories that it left out as damaged."""


class Unobserved:
    """An observer for programs: texts go to the logger ``memctl``, progress to a listener."""

    timeout: float | None = None

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or SilentProgress()
        self._logger = logging.getLogger("memctl")

    def progress(
        self, _description: str, _total: Callable[[], Total | None] = lambda: None, /
    ) -> AbstractContextManager[Progress]:
        """Return a context manager for the listener of the program."""
        return nullcontext(self._progress)

    def summarising(self, _memories: int, /) -> AbstractContextManager[SummaryProgress]:
        """Return a context manager for a listener that ignores the progress."""
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
    """Open the store within the block, and show its details and warnings to the observer.

    Calls of the store end after the ``timeout`` of the observer.
    """
    store = limited(store, observer.timeout, observer.note)
    async with store:
        observer.store_opened(store)
        shown = len(store.details)
        try:
            yield store
        finally:
            for text in store.details[shown:]:
                observer.detail(text)
            observer.store_closing(store)


async def warn_of_other_contents(store: Store, observer: Observer) -> None:
    """Warn if the store has no memories, but its database or file has other contents."""
    if await store.is_empty() and (text := await store.other_contents()):
        observer.warn(text)
