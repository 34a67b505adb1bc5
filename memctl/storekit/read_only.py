"""Base classes for stores whose memories memctl does not change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import NoReturn

from memctl.errors import UsageError
from memctl.model import Edit, Page, WriteMode, WriteResult
from memctl.store import Store


class ReadOnlyStore(Store):
    """A store that memctl reads, and does not change."""

    @abstractmethod
    def refuse_changes(self) -> NoReturn:
        """Raise a UsageError, whose hint names another way to change the data."""

    def write(
        self,
        pages: AsyncGenerator[Page],  # noqa: ARG002
        mode: WriteMode = WriteMode.ADD,  # noqa: ARG002
    ) -> AsyncGenerator[WriteResult]:
        self.refuse_changes()

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:  # noqa: ARG002
        self.refuse_changes()


class RetiredStore(ReadOnlyStore):
    """A store in a format that no program reads any more, which memctl also erases.

    Its features have ``retired``.
    """

    def refuse_changes(self) -> NoReturn:
        raise UsageError(
            f"{self.label} has a retired format, which no program reads: memctl only reads and "
            "erases it",
            "migrate it to a current store first, such as one with ?layout=agentscope2",
        )

    def refuse_erase(self) -> None:
        """Permit to erase the data of users."""
