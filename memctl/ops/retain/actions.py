"""The actions of retention policies: their contract, and what the actions have in common.

An action is a class for one ``PolicyAction``, made for one policy and one store.  ``run.py`` calls
the methods in this order, and each method opens the store itself::

    found = await action.plan()               # a dry run, or before the user is asked
    found = await action.export(location)     # a new archive; no file if nothing is selected
    await action.carry_out(location, acted)   # acts on what the archive holds

An action that removes nothing is an ``InPlaceAction``: ``act`` takes the place of the last two.  An
action on messages is a ``MessageAction``, which counts the selection and writes the archive.

``carry_out`` is also called, before ``export``, for the archive of a run that was killed after the
archive was complete.  So an action keeps nothing between the calls: ``carry_out`` reads the archive
back from where it lies, and acts only on data that the archive holds as they are in the store now.
Data that changed meanwhile stay, and are counted in ``Acted.left``: the next run takes them.

A new action is a module of this package and an entry of ``run.ACTIONS``; ``config/retention.py``
lists its name and the keys of its ``select``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from memctl.dialects.view import Dialect
from memctl.errors import Failure, Loss, Unavailable
from memctl.journal.runs import Run
from memctl.location import Location
from memctl.model import MemoryKey, Page
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.observer import opened
from memctl.ops.recording import write_archive
from memctl.ops.report import Progress
from memctl.ops.retry import leaving_damaged
from memctl.ops.select import most_deletions, whole_memories
from memctl.ops.stop import Stop
from memctl.registry import make_store
from memctl.retention import Policy
from memctl.store import OpenMode, Store
from memctl.summarizer import Summarizer
from memctl.text.numbers import count


class Found(Struct):
    """The counts of a policy's selection, or of an archive.

    ``messages`` counts messages, facts, checkpoints or files, and ``bytes`` their stored size.
    ``oldest`` and ``newest`` are their earliest and latest time, local and without a zone; None if
    no time is known.  ``held`` are the memories that are selected, but held.
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


def add_message(found: Found, dialect: Dialect, message: bytes) -> None:
    """Count a message by its JSON text."""
    time: str | None = None
    with suppress(ValueError):  # a message that is not JSON
        time = dialect.role_and_time(message)[1]
    found.add(len(message), dialect.moment(time))


class Acted(Struct):
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


class Surroundings(Struct, frozen=True):
    """The surroundings of an action: the options, the stop and the records of its runs.

    ``options`` are those of all policies; each policy has its ``backup``.  ``record`` returns the
    record of a new run on the store for the history.  ``stop`` ends an action early, when no memory
    is half changed.  ``summarizer`` is for COMPRESS.
    """

    options: RunOptions
    record: Callable[[], Run]
    stop: Stop
    summarizer: Summarizer | None = None


@dataclass(slots=True)
class RetentionAction(ABC):
    """The action of one policy on one store, which is at ``location``."""

    policy: Policy
    location: Location
    around: Surroundings

    @abstractmethod
    async def plan(self) -> Found:
        """Return what the policy selects, without held memories; write nothing.

        Raises:
            Loss: more than the limit of the policy is selected.
            MemctlError: as ``Store.read``.
        """

    def opened(self, mode: OpenMode = OpenMode.READ) -> AbstractAsyncContextManager[Store]:
        """Return a context manager that opens the store of the policy."""
        return opened(make_store(self.location, mode), self.around.options.observer)

    def refuse_many(self, found: Found, most: float, of: str = "") -> None:
        """Refuse a selection of more than ``most`` messages; ``of`` names the store.

        Raises:
            Loss: there are more.
        """
        if found.messages > most:
            raise Loss(
                f"more than max_delete {self.policy.limit_text}{of} would be removed: at least "
                f"{count(found.messages, found.noun)}",
                "nothing was removed; preview with --dry-run",
            )

    # The run that carries out the action

    def record(self, archive: Location | None = None) -> Run:
        """Return the record of a new run, which may act on an archive, for the history."""
        record = self.around.record()
        record.policy = self.policy.name
        record.archive = "" if archive is None else archive.label
        return record

    def options(self, *, dry_run: bool = False) -> RunOptions:
        """Return the options of the run."""
        given = replace(self.around.options, stop=self.around.stop, limit=None, approve=None)
        backup = self.policy.backup
        return replace(given, backup=backup, dry_run=dry_run, must_exist=False)

    async def execute(self, run: ChangeRun, acted: Acted, left: Collection[MemoryKey] = ()) -> None:
        """Carry out a run that acts on an archive; add what was done to ``acted``.

        ``left`` are the memories that the run leaves alone, filled in meanwhile.  Memories that
        agents changed again and again are left for the next run, too.

        Raises:
            MemctlError: as ``ChangeRun.perform``.
        """
        try:
            await run.perform(self.location)
        finally:
            done, failures = run.report.done, run.report.failures
            changed = {key for key, failure in failures if failure.code == "changed"}
            acted.memories += done.memories
            acted.messages += done.deleted
            acted.left += len(changed.union(left))
            acted.failures += [item for item in failures if item[0] not in changed]
            acted.runs += [run.id] if run.id is not None else []


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


class MessageAction(ArchivingAction):
    """An action on the messages of a store."""

    @abstractmethod
    def pages(self, store: Store, found: Found) -> AsyncGenerator[Page]:
        """Yield what the policy selects as pages for the archive, without held memories.

        The held memories are added to ``found.held``.  A memory without a selected message has no
        page.

        Raises:
            DamagedMemory: a memory is damaged; the next call leaves the memory out.
            MemctlError: as ``Store.read``.
        """

    async def plan(self) -> Found:
        async with self.opened() as store:
            store.refuse_changes()
            return await self._counted(store, None)

    async def export(self, archive: Location) -> Found:
        if not archive.url and not archive.path.parent.is_dir():
            raise Unavailable(f"the folder of {archive.label} does not exist", "create it first")
        async with self.opened() as store:
            return await self._counted(store, archive)

    async def _counted(self, store: Store, archive: Location | None) -> Found:
        """Count what the policy selects, and write it to the archive, if there is one."""
        await store.check_integrity(whole_memories(self.policy.where), complete=True)
        limit = self.policy.limit
        most = inf if limit is None else await most_deletions(store, self.policy.where, limit)
        description = "planning" if archive is None else "archiving"

        async def attempt() -> Found:
            found = Found(store.dialect.noun)
            with self.around.options.observer.progress(description) as progress:
                pages = self._watched(store, found, most, progress)
                if archive is None:
                    async with aclosing(pages):
                        async for _ in pages:
                            pass
                else:
                    await write_archive(archive, store, pages)
            return found

        found = await leaving_damaged(attempt)
        found.damaged = dict(store.left_out.failures)
        return found

    async def _watched(
        self, store: Store, found: Found, most: float, progress: Progress
    ) -> AsyncGenerator[Page]:
        """Yield the selected pages, counted.

        Raises:
            Loss: more than ``most`` messages are selected.
        """
        async with aclosing(self.pages(store, found)) as pages:
            async for page in pages:
                for entry in page.messages:
                    add_message(found, store.dialect, entry.message)
                found.memories += page.last
                self.refuse_many(found, most, f" of {store.label}")
                progress.advance(memories=int(page.last), messages=len(page.messages))
                yield page
                del page  # free a large page before the next read
