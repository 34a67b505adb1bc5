"""The contract of the actions of retention policies.

An action is a class for one ``PolicyAction``, made for one policy and one store.  ``run.py`` calls
the methods in this order, and each method opens the store itself::

    found = await action.plan()               # a dry run, or before the user is asked
    found = await action.export(location)     # a new archive; no file if nothing is selected
    await action.carry_out(location, acted)   # acts on what the archive holds

An action that removes nothing is an ``InPlaceAction``: ``act`` takes the place of the last two.

``carry_out`` is also called, before ``export``, for the archive of a run that was killed after the
archive was complete.  So an action keeps nothing between the calls: ``carry_out`` reads the archive
back from where it lies, and acts only on data that the archive holds as they are in the store now.
Data that changed meanwhile stay, and are counted in ``Acted.left``: the next run takes them.

A new action is a module of this package and an entry of ``run.ACTIONS``; ``config/retention.py``
lists its name and the keys of its ``select``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from memctl.errors import Failure
from memctl.journal.retention import Retention
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.holds import HoldSource
from memctl.ops.observer import Observer
from memctl.ops.stop import Stop
from memctl.retention import Policy
from memctl.summarizer import Summarizer


@dataclass(slots=True)
class Found:
    """The counts of a policy's selection, or of an archive.

    ``messages`` counts messages, facts or checkpoints, and ``bytes`` their stored size.  ``oldest``
    and ``newest`` are their earliest and latest time, local and without a zone; None if no time is
    known.  ``held`` are the memories that are selected, but held.
    """

    noun: str = "message"
    memories: int = 0
    messages: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    held: dict[MemoryKey, Failure] = field(default_factory=dict)
    damaged: dict[MemoryKey, Failure] = field(default_factory=dict)

    def add(self, size: int, moment: datetime | None) -> None:
        """Count a message of ``size`` bytes from the time ``moment``."""
        self.messages += 1
        self.bytes += size
        if moment is not None:
            self.oldest = moment if self.oldest is None else min(self.oldest, moment)
            self.newest = moment if self.newest is None else max(self.newest, moment)


@dataclass(slots=True)
class Acted:
    """The result of an action on the archives of a policy in one run.

    ``left`` is the number of archived memories that stay because they changed meanwhile.  ``runs``
    are the ids for ``memctl undo``, ``receipts`` the paths of the receipts of erases.
    """

    memories: int = 0
    messages: int = 0
    left: int = 0
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of an action: observer, stop, holds, and the records of runs.

    ``record`` returns the record of a new run on the store for the history; ``runs_on`` the kept
    runs on a store.  ``keep`` says which records of older runs to keep.  ``stop`` ends an action
    early, when no memory is half changed.  ``summarizer`` is for COMPRESS.
    """

    observer: Observer
    stop: Stop
    holds: HoldSource
    record: Callable[[], Run]
    runs_on: Callable[[Location], list[Run]]
    keep: Retention | None = None
    summarizer: Summarizer | None = None


class RetentionAction(ABC):
    """The action of one policy on one store."""

    def __init__(self, policy: Policy, location: Location, around: Surroundings) -> None:
        """``location`` is the store of the policy."""
        self.policy = policy
        self.location = location
        self.around = around

    @abstractmethod
    async def plan(self) -> Found:
        """Return what the policy selects, without held memories; write nothing.

        Raises:
            Loss: more than the limit of the policy is selected.
            MemctlError: as ``Store.read``.
        """


class InPlaceAction(RetentionAction):
    """An action that removes nothing, and needs no archive."""

    @abstractmethod
    async def act(self, acted: Acted) -> Found:
        """Act on the messages that the policy selects; return their counts.

        Each change is added to ``acted``, even if an error ends the action.

        Raises:
            Loss: more than the limit of the policy is selected; nothing was changed.
            Interrupted: a stop was asked for; no memory is half changed.
            MemctlError: as the operation that acts.
        """


class ArchivingAction(RetentionAction):
    """An action that removes data after they are in an archive."""

    @abstractmethod
    async def export(self, archive: Location) -> Found:
        """Write what the policy selects to a new archive, and return what the archive holds.

        If nothing is selected, there is no archive.  Nothing of a held memory is in the archive.

        Raises:
            Loss: more than the limit of the policy is selected; there is no archive.
            Unavailable: the archive cannot be written.
            MemctlError: as ``Store.read``.
        """

    @abstractmethod
    async def carry_out(self, archive: Location, acted: Acted) -> None:
        """Act on what the archive holds, after a check of the whole archive.

        What was done is added to ``acted``, even if an error ends the action.

        Raises:
            NotFound: there is no such archive: the run that was to write the archive was killed.
            BadData: the archive is damaged.
            Interrupted: a stop was asked for; no memory is half changed.
            MemctlError: as the operation that acts.
        """
