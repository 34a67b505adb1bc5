"""The contract of a writer that turns the pages of a store into a file for readers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, TextIO

from memctl.dialects.view import Dialect
from memctl.model import Page

_SURROGATES = re.compile("[\ud800-\udfff]")


def storable(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class PageWriter(ABC):
    """A file in the making: a context manager that discards an unfinished file.

    ::

        with writer(file, store.dialect) as pages:
            pages.add(page)
            pages.finish()
    """

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        """Take an empty file in UTF-8, without conversion of line ends; the file stays open."""
        self._file = file
        self._dialect = dialect
        self.left_out = 0
        """The number of memories without a place in the file."""

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
        """Write the next page; pages come memory after memory.

        Raises:
            MemctlError: the page cannot be written in this format.
            OSError: the system refuses.
        """

    def finish(self) -> None:  # noqa: B027 - most files end with their last page
        """Write the end of the file.

        Raises:
            OSError: the system refuses.
        """

    def discard(self) -> None:  # noqa: B027 - most writers hold nothing
        """Drop data that is not written."""

    def remarks(self) -> list[str]:
        """Return lines for the operator about differences between the file and the store."""
        return []
