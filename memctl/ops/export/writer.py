"""The contract of a writer that turns the pages of a store into one file for readers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, TextIO

from memctl.dialects.view import Dialect
from memctl.model import Page

_SURROGATES = re.compile("[\ud800-\udfff]")


def storable(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which UTF-8 cannot write."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class PageWriter(ABC):
    """A file in the making: a context manager that gives up what is not finished.

    ::

        with writer(file, store.dialect) as pages:
            pages.add(page)
            pages.finish()
    """

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        """Take an empty file, in UTF-8 and without changes of line ends; it stays open."""
        self._file = file
        self._dialect = dialect
        self.left_out = 0
        """The memories that have no place in the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    @abstractmethod
    def add(self, page: Page) -> None:
        """Write the next page; those of a memory follow one another.

        Raises:
            MemctlError: it cannot be written in this format.
            OSError: the system refuses.
        """

    def finish(self) -> None:  # noqa: B027 - most files end with their last page
        """Write what comes after the last page.

        Raises:
            OSError: the system refuses.
        """

    def discard(self) -> None:  # noqa: B027 - most writers hold nothing
        """Let go of what is not written."""

    def remarks(self) -> list[str]:
        """Lines for the operator, of what is not in the file as it is in the store."""
        return []
