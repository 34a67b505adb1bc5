"""A base class for stores in a format that no program reads any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from memctl.errors import UsageError
from memctl.model import Edit, Page, WriteMode, WriteResult
from memctl.store import Store


class RetiredStore(Store):
    """A store that memctl reads and erases, and does not change otherwise.

    Its features have ``retired``.
    """

    def _refusal(self) -> UsageError:
        return UsageError(
            f"{self.label} has a retired format, which no program reads: memctl only reads and "
            "erases it",
            "migrate it to a current store first, such as one with ?layout=agentscope2",
        )

    def refuse_changes(self) -> None:
        raise self._refusal()

    def refuse_erase(self) -> None:
        """Permit to erase the data of users."""

    def write(
        self,
        pages: AsyncGenerator[Page],  # noqa: ARG002
        mode: WriteMode = WriteMode.ADD,  # noqa: ARG002
    ) -> AsyncGenerator[WriteResult]:
        raise self._refusal()

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:  # noqa: ARG002
        raise self._refusal()
