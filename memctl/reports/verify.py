"""The reports of ``verify``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.model import MemoryKey
from memctl.reports.report import (
    Count,
    Divisible,
    Maybe,
    Path,
    Report,
    Row,
    Session,
    User,
    one_of,
)


class ComparedMemories(Row):
    """The memories of both stores, by outcome."""

    same: Count
    different: Count
    missing: Count
    extra: Count


class ComparedMessages(Row):
    """The messages of both stores."""

    source: Count
    target: Count


class DifferenceRow(Row, kw_only=True):
    """A difference of two stores, or a trace of erased data in one."""

    store: Maybe[str] = UNSET
    """With --receipt: the place where erased data was found."""
    user: User
    session: Session
    path: Maybe[Path] = UNSET
    code: Annotated[
        str,
        one_of(
            "memory-missing memory-extra message-missing message-extra content marks order summary "
            "settings expiry path name message undo-run text"
        ),
    ]
    """Stable."""
    id: str
    """The message; empty for the memory itself."""
    message: str
    diff: Maybe[list[str]] = UNSET
    """With --show: the lines that a person is shown, without colours."""

    @property
    def key(self) -> MemoryKey:
        """The memory."""
        return MemoryKey(self.user, self.session, self.path or "")


class VerifyReport(Divisible, kw_only=True):
    """How two stores differ."""

    lists = ("differences",)
    source: str
    """A, without passwords."""
    target: str
    """B, without passwords."""
    memories: ComparedMemories
    messages: ComparedMessages
    differences: list[DifferenceRow]


class ArchiveRow(Row):
    """An archive that is whole, and holds this many memories and messages."""

    url: str
    memories: Count
    messages: Count


class VerifyArchiveReport(Report, tag="memctl/verify/1"):
    """That an archive is whole."""

    archive: ArchiveRow


class UnsearchedRow(Row):
    """A store that could not be searched."""

    store: str
    """The place, without passwords."""
    code: str
    """As in errors."""
    message: str


class VerifyReceiptReport(Report, tag="memctl/verify/1"):
    """What stores hold of erased data (--receipt)."""

    lists = ("differences",)
    receipt: str
    """The receipt of an erase."""
    stores: list[str]
    """The searched places, without passwords."""
    differences: list[DifferenceRow]
    unsearched: Maybe[list[UnsearchedRow]] = UNSET
    """The stores that could not be searched."""
