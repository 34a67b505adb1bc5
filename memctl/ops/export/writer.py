"""The contract of writers that turn the pages of a store into a file for readers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from datetime import datetime
from types import TracebackType
from typing import Self, TextIO

from msgspec import Struct, field

from memctl.dialects.view import Dialect
from memctl.machine.system import user_name
from memctl.model import Page

_SURROGATES = re.compile("[\ud800-\udfff]")


def storable(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class Cover(Struct, frozen=True):
    """The head of a file for readers.

    ``title`` is empty for a title from the names of the memories.  ``selected`` says what was
    selected; empty for a whole store.  ``unfolded`` opens what is folded otherwise.  With
    ``pseudonyms``, numbers stand for users and sessions, and roles for speakers.  ``clean`` leaves
    out what only memctl reads.
    """

    title: str = ""
    selected: str = ""
    unfolded: bool = False
    pseudonyms: bool = False
    clean: bool = False
    by: str = field(default_factory=user_name)
    """The user who exports."""
    when: datetime = field(default_factory=lambda: datetime.now().astimezone())


class PageWriter(ABC):
    """A writer of the pages of a store into a file for readers.

    The end of the block calls ``discard``::

        with CsvFile(file, store.dialect) as writer:
            writer.begin(Cover())
            writer.add(page)
            writer.finish()
    """

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        """``file`` is open for text in UTF-8, without conversion of line ends; it stays open.

        ``dialect`` is the dialect of the messages.
        """
        self._file = file
        self._dialect = dialect
        self.left_out = 0
        """The number of memories that the format cannot represent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def begin(self, cover: Cover) -> None:  # noqa: B027 - most files have no head
        """Begin the file."""

    @abstractmethod
    def add(self, page: Page) -> None:
        """Write the next page; the pages of a memory follow one another.

        Raises:
            MemctlError: the page cannot be written in this format.
            OSError: the operating system refuses the write.
        """

    def finish(self) -> None:  # noqa: B027 - most files end with their last page
        """Write the end of the file, after the last page.

        Raises:
            OSError: the operating system refuses the write.
        """

    def discard(self) -> None:  # noqa: B027 - most writers hold nothing
        """Drop data that are not in the file yet."""

    def remarks(self) -> list[str]:
        """Return lines of text about differences between the file and the store, for the user."""
        return []
