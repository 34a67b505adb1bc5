"""Rows that policies prune in a store, beside the messages of memories, and that come back.

An item is a checkpoint of LangGraph, the state of a graph after a step; or an archived memory file
of AgentScope Java.  An item has one row or several, and belongs to a group: a thread, or the folder
of a workspace.  A row stays in the form in which the database has it.  Between a store and an
archive, a row is a line of JSON, without a line end::

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
from memctl.model import MemoryKey
from memctl.selection import Selection

CHECKPOINTS, FILES = "checkpoints", "agentscope_store"
"""The tables with a row for each item."""
JAVA = "agentscope-java"
"""The ``Prunable.engine`` of memory files; those of checkpoints are databases."""


def noun_of(engine: str) -> str:
    """Return the noun for an item of a ``Prunable.engine``."""
    return "file" if engine == JAVA else "checkpoint"


def folder_of(group: str) -> str:
    """Return a group as users read it: a folder of a workspace has U+001F between its parts."""
    return group.rstrip("\x1f").replace("\x1f", "/")


class PrunedArchive(BadData):
    """The archive is one of pruned rows, and was to be read as an archive of messages."""


class PrunedRow(NamedTuple):
    """A row: the line, and whether it is the main row of its item; if so, the item's local time.

    A row with a ``failure`` cannot be put back, so that the row and its item must stay.
    """

    line: bytes
    is_item: bool = False
    moment: datetime | None = None
    failure: Failure | None = None


class OldItems(Struct):
    """The items of a group that can go, or the reason to leave the group alone.

    ``rows`` yields the rows of these items, once.
    """

    group: str
    number: int = 0
    failure: Failure | None = None
    rows: AsyncGenerator[PrunedRow] | None = None


class Pruned(Struct):
    """The result of pruning a group.

    ``left`` counts the old items that stay, because the archive lacks one of their rows.
    """

    items: int = 0
    rows: int = 0
    left: int = 0
    failure: Failure | None = None


class PutBack(Struct):
    """The result of putting rows back.

    ``rows`` counts the rows that came back, and ``items`` the items among them.  ``there`` counts
    the items that exist already.  ``others`` counts the rows of the archive that differ from the
    row of the store with the same key; the row of the store stays.
    """

    items: int = 0
    rows: int = 0
    there: int = 0
    others: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(
            self.items + other.items,
            self.rows + other.rows,
            self.there + other.there,
            self.others + other.others,
        )


class Prunable(ABC):
    """The rows in an open store that policies prune."""

    engine: str
    """Where the rows fit: the database of checkpoints, such as ``sqlite``, or ``JAVA``."""

    @abstractmethod
    def key_of(self, group: str) -> MemoryKey:
        """Return the user and the session to whom a group belongs; an empty name is of nobody."""

    @abstractmethod
    def old(self, where: Selection) -> AsyncGenerator[OldItems]:
        """Yield the old items of each selected group.

        ``where.until`` is a local time without a zone: items from then on are not old; None means
        no limit.  Groups without an old item are left out.

        Raises:
            MemctlError: as ``Store.read``.
        """

    @abstractmethod
    async def prune(
        self, group: str, until: datetime | None, is_archived: Callable[[bytes], bool]
    ) -> Pruned:
        """Delete old items of a group, in a transaction that decides anew what is old.

        An item is deleted only if ``is_archived`` returns True for the line of each of its rows.

        Raises:
            MemctlError: the store failed; nothing is deleted.
        """

    @abstractmethod
    async def put_back(
        self, group: str, lines: Sequence[bytes], *, dry_run: bool = False
    ) -> PutBack:
        """Insert the rows of a group that are missing, in one transaction.

        With ``dry_run``, nothing is inserted; the result is the same.

        Raises:
            BadData: a line is not that of a row.
            MemctlError: the store failed; nothing is inserted.
        """
