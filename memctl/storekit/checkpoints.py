"""The rows of checkpoints: what a store with checkpoints offers to prune them and to put them back.

A checkpoint is the state of an agent's graph after a step.  A row stays in the form in which the
database has it.  Between a store and an archive, a row is a line of JSON, without a line end::

    {"table":"checkpoints","row":{"thread_id":"t","checkpoint_ns":"","checkpoint":{"base64":"..."}}}

Bytes are base64.  All other values are JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct

from memctl.errors import BadData, Failure


class CheckpointArchive(BadData):
    """The archive is one of checkpoints, and was to be read as an archive of messages."""


class CheckpointRow(NamedTuple):
    """A row: the line, and whether the row is a checkpoint; if so, its local time.

    A row with a ``failure`` cannot be put back, so that the row and its checkpoint must stay.
    """

    line: bytes
    is_checkpoint: bool = False
    moment: datetime | None = None
    failure: Failure | None = None


class OldCheckpoints(Struct):
    """The checkpoints of a thread that no newer checkpoint needs, or the reason to leave it alone.

    ``rows`` yields the rows of these checkpoints, once.
    """

    thread: str
    number: int = 0
    failure: Failure | None = None
    rows: AsyncGenerator[CheckpointRow] | None = None


class Pruned(Struct):
    """The result of pruning a thread.

    ``left`` counts the old checkpoints that stay, because the archive lacks one of their rows.
    """

    checkpoints: int = 0
    rows: int = 0
    left: int = 0
    failure: Failure | None = None


class PutBack(Struct):
    """The result of putting rows back.

    ``rows`` counts the rows that came back, and ``checkpoints`` the checkpoints among them.
    ``there`` counts the checkpoints that exist already.  ``others`` counts the rows in whose place
    another row exists, which stays.
    """

    checkpoints: int = 0
    rows: int = 0
    there: int = 0
    others: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(
            self.checkpoints + other.checkpoints,
            self.rows + other.rows,
            self.there + other.there,
            self.others + other.others,
        )


class Checkpoints(ABC):
    """The checkpoints of an open store."""

    engine: str
    """The database whose rows the store has, such as ``sqlite``: rows do not fit into another."""

    @abstractmethod
    def old(
        self, threads: frozenset[str], until: datetime | None
    ) -> AsyncGenerator[OldCheckpoints]:
        """Yield the old checkpoints of each of the threads; no threads mean all threads.

        ``until`` is a local time without a zone: checkpoints from then on are not old; None means
        no limit.  Threads without an old checkpoint are left out.

        Raises:
            MemctlError: as ``Store.read``.
        """

    @abstractmethod
    async def prune(
        self, thread: str, until: datetime | None, is_archived: Callable[[bytes], bool]
    ) -> Pruned:
        """Delete old checkpoints of a thread, in a transaction that decides anew what is old.

        A checkpoint is deleted only if ``is_archived`` returns True for the line of each of its
        rows.

        Raises:
            MemctlError: the store failed; nothing is deleted.
        """

    @abstractmethod
    async def put_back(
        self, thread: str, lines: Sequence[bytes], *, dry_run: bool = False
    ) -> PutBack:
        """Insert the rows of a thread that are missing, in one transaction.

        With ``dry_run``, nothing is inserted; the result is the same.

        Raises:
            BadData: a line is not that of a row.
            MemctlError: the store failed; nothing is inserted.
        """
