"""A run of retention: each policy exports to a new archive, and acts on what the archive holds.

The ledger names the archive before the export begins.  If the run is killed, the next run first
acts on the archive, if it is complete, and then goes on with a new archive.  So each message is at
every moment in the store or in an archive that was read back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from msgspec import Struct, field

from memctl.encryption import is_encrypted, read_identities, read_recipients
from memctl.errors import (
    BadData,
    Failure,
    Interrupted,
    MemctlError,
    Partial,
    UsageError,
)
from memctl.holds import HELD
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.ops.report import DOCTOR
from memctl.ops.retain.actions import (
    Acted,
    ArchivingAction,
    Found,
    InPlaceAction,
    RetentionAction,
    Surroundings,
)
from memctl.ops.retain.compress import CompressionAction
from memctl.ops.retain.delete import DeletionAction
from memctl.ops.retain.erase import ErasureAction
from memctl.ops.retain.ledger import ABSENT, ACTED, BEGUN, LEFT, Ledger, LedgerEntry
from memctl.ops.retain.offload import OffloadAction
from memctl.ops.retain.prune import PruneAction
from memctl.registry import file_of
from memctl.reports.report import Error, named
from memctl.reports.retain import PolicyRow, RetainFailure, RetainReport
from memctl.retention import Policy, PolicyAction
from memctl.storekit.files import refuse_shared
from memctl.storekit.locks import FileLock, lock_owner
from memctl.text.numbers import count

ACTIONS: dict[PolicyAction, type[RetentionAction]] = {
    PolicyAction.DELETE: DeletionAction,
    PolicyAction.COMPRESS: CompressionAction,
    PolicyAction.ERASE: ErasureAction,
    PolicyAction.PRUNE: PruneAction,
    PolicyAction.OFFLOAD: OffloadAction,
}
PENDING, PLANNED, STOPPED = "pending", "planned", "stopped"
NOTHING, DONE, FAILED = "nothing", "done", "failed"
"""The states of a policy in a run.  NOTHING is the state if nothing was selected, or all is held;
PENDING, if a signal came before the policy was reached; STOPPED, if it came while the policy was
carried out."""


class PolicyTask(Struct):
    """A policy in a run of retention, with its store, its state and its results.

    ``found`` is what the policy selects, ``archive`` the label of the new archive, and ``resumed``
    the labels of the archives of killed runs that were acted on.
    """

    policy: Policy
    location: Location
    around: Surroundings
    state: str = PENDING
    found: Found = field(default_factory=Found)
    acted: Acted = field(default_factory=Acted)
    archive: str | None = None
    resumed: list[str] = field(default_factory=list)
    error: MemctlError | None = None

    @property
    def failures(self) -> list[tuple[MemoryKey, Failure]]:
        """The memories that stay, with the reasons: held, damaged, or failed."""
        found = {**self.found.damaged, **self.found.held, **dict(self.acted.failures)}
        return [*found.items()]

    @property
    def held(self) -> int:
        """The number of memories that are selected, but held."""
        return sum(failure.code == HELD for _, failure in self.failures)

    def action(self) -> RetentionAction:
        """Return the action of the policy.

        Raises:
            UsageError: memctl has no such action.
        """
        made = ACTIONS.get(self.policy.action)
        if made is None:
            raise UsageError(f"retain cannot {self.policy.action.value} yet")
        return made(self.policy, self.location, self.around)

    def row(self, *, dry_run: bool) -> PolicyRow:
        """Return the outcome as it is now."""
        found, acted = self.found, self.acted
        done = found if dry_run else acted
        return PolicyRow(
            policy=self.policy.name,
            store=self.location.label,
            action=self.policy.action.value,
            state=self.state,
            archive=self.archive,
            memories=done.memories,
            messages=done.messages,
            archived=0 if dry_run or self.archive is None else found.messages,
            oldest=_time(found.oldest),
            newest=_time(found.newest),
            bytes=found.bytes,
            held=self.held,
            left=acted.left,
            resumed=self.resumed,
            runs=acted.runs,
            receipts=acted.receipts,
            error=None if self.error is None else Error.of(self.error),
        )

    def settle(self) -> None:
        """Set the error of the policy if memories stay that are not held."""
        failures = [one for one in self.failures if one[1].code != HELD]
        if not failures or self.error is not None:
            return
        key, failure = failures[0]
        first = f"{key}: {failure.message}"
        hint = DOCTOR if failure.code == "damaged" else "see the report for each"
        self.error = Partial(f"{count(len(failures), 'memory')} failed; the first: {first}", hint)
        self.state = FAILED if self.state == NOTHING else self.state


@dataclass
class Retention:
    """A run of policies, one after the other; a failed policy does not stop the others.

    ::

        retention = Retention(tasks, locate)
        await retention.plan()  # to ask the user, or for a dry run
        await retention.execute()
        if error := retention.error():
            raise error
    """

    tasks: Sequence[PolicyTask]
    locate: Callable[[Policy, str], Location]
    """Returns the location of an archive of a policy."""

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self._now = datetime.now()

    def _locate(self, policy: Policy, name: str) -> Location:
        """Return the location of an archive, where no link is followed."""
        return replace(self.locate(policy, name), follows=False)

    def check(self) -> None:
        """Check, before anything runs, that each policy has an action, and keys for its archive.

        Raises:
            UsageError: memctl has no such action, or an encrypted archive has no recipient.
            Unavailable: there is no identity to read an encrypted archive back.
        """
        for task in self.tasks:
            task.action()
            if not task.policy.archive:
                continue
            name = task.policy.archive_name(self._now)
            archive = self._locate(task.policy, _absolute(name))
            if is_encrypted(name.partition("?")[0] if "://" in name else name):
                read_recipients(archive.encryption, archive.label)
                read_identities(archive.encryption, archive.label)

    async def plan(self) -> None:
        """Find what each policy selects; write nothing, not even an archive."""
        for task in self.tasks:
            pending = self.ledger.pending(task.policy.name)
            task.resumed = [self._locate(task.policy, one.archive).label for one in pending]
            try:
                if task.policy.archive:
                    task.archive = (await self._new_archive(task.policy))[1].label
                task.found = await task.action().plan()
                task.state = PLANNED
            except Interrupted:
                raise
            except MemctlError as error:
                task.error, task.state = error, FAILED
            task.settle()

    async def execute(self) -> None:
        """Carry out all policies, under the lock of the ledger.

        Raises:
            Busy: another run of retention goes on.
            Interrupted: a stop was asked for; no memory is half changed.
        """
        self.ledger.prepare()
        with FileLock(self.ledger.path, "memctl retain").held(lock_owner()) as warnings:
            for task in self.tasks:
                for text in warnings:
                    task.around.options.observer.warn(text)
                warnings = []
                task.around.stop.end_if_asked()
                self._warn_of_damage(task)
                task.found, task.acted, task.error = Found(), Acted(), None
                task.resumed, task.archive, task.state = [], None, STOPPED
                try:
                    await self._carry_out(task)
                except Interrupted:
                    raise
                except MemctlError as error:
                    task.error, task.state = error, FAILED
                task.settle()

    def _warn_of_damage(self, task: PolicyTask) -> None:
        """Warn, once in a run, of damaged lines of the ledger."""
        damaged = self.ledger.read()[1] if task is self.tasks[0] else []
        if damaged:
            lines = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
            task.around.options.observer.warn(
                f"{self.ledger.path} is damaged in {count(len(damaged), 'line')} ({lines}): an "
                "archive that such a line names may not be acted on; its messages stay"
            )

    async def _carry_out(self, task: PolicyTask) -> None:
        action, policy = task.action(), task.policy
        if isinstance(action, InPlaceAction):
            task.found = await action.act(task.acted)
            task.state = DONE if task.found.messages else NOTHING
            task.around.stop.end_if_asked()
            return
        assert isinstance(action, ArchivingAction)
        pending = self.ledger.pending(policy.name)
        left = [entry for entry in pending if not await self._resume(task, action, entry)]
        await self._begin(task, action)
        for entry in left:
            self.ledger.add(LEFT, policy.name, entry.archive, entry.store)

    async def _begin(self, task: PolicyTask, action: ArchivingAction) -> None:
        """Export to a new archive, and act on what the archive holds."""
        policy = task.policy
        name, archive = await self._new_archive(policy)
        self.ledger.add(BEGUN, policy.name, name, task.location.label)
        try:
            task.found = await action.export(archive)
        except MemctlError:
            with suppress(MemctlError):  # the first error matters more; the next run looks again
                if not await _exists(archive):
                    self.ledger.add(ABSENT, policy.name, name, task.location.label)
            raise
        if not task.found.messages and not task.found.memories:
            self.ledger.add(ABSENT, policy.name, name, task.location.label)
            task.state = DONE if task.resumed else NOTHING
            return
        task.archive = archive.label
        await action.carry_out(archive, task.acted)
        task.around.stop.end_if_asked()
        self.ledger.add(ACTED, policy.name, name, task.location.label, task.found.messages)
        task.state = DONE

    async def _resume(self, task: PolicyTask, action: ArchivingAction, entry: LedgerEntry) -> bool:
        """Act on the archive of a killed run, if the archive is complete.

        Return False for an archive that is damaged or cannot be reached.
        """
        archive, policy = self._locate(task.policy, entry.archive), task.policy.name
        rest = "left as it is; its messages that are in the store go to a new archive"
        try:
            exists = await _exists(archive)
        except MemctlError as error:
            task.around.options.observer.warn(
                f"{error.message}: {archive.label} is the archive of a killed run, {rest}"
            )
            return False
        if not exists:
            self.ledger.add(ABSENT, policy, entry.archive, entry.store)
            return True
        try:
            await action.carry_out(archive, task.acted)
            task.around.stop.end_if_asked()
        except BadData as error:
            task.around.options.observer.warn(f"{error.message}: {rest}")
            return False
        task.acted.left = 0  # the new archive takes what this archive lacks
        task.resumed.append(archive.label)
        self.ledger.add(ACTED, policy, entry.archive, entry.store)
        return True

    async def _new_archive(self, policy: Policy) -> tuple[str, Location]:
        number = 1
        while True:
            name = _absolute(policy.archive_name(self._now, number))
            location = self._locate(policy, name)
            if not await _exists(location):
                if location.path.name and location.path.parent.is_dir():
                    refuse_shared(location.path.parent)
                return name, location
            number += 1

    def report(self, *, dry_run: bool) -> RetainReport:
        """Return the report of all policies as it is now."""
        failures = [
            RetainFailure(
                policy=task.policy.name,
                **named(key),
                code=failure.code,
                message=failure.message,
            )
            for task in self.tasks
            for key, failure in task.failures
        ]
        rows = [task.row(dry_run=dry_run) for task in self.tasks]
        return RetainReport(dry_run, rows, failures, sum(row.held for row in rows))

    def error(self) -> MemctlError | None:
        """Return the error with which the run ends; None if no policy failed or left something."""
        failed = [task for task in self.tasks if task.error is not None]
        if not failed:
            return None
        first = failed[0].error
        assert first is not None
        codes = {task.error.code for task in failed if task.error is not None}
        others = any(task.error is None and task.state == DONE for task in self.tasks)
        if len(codes) == 1 and not others:
            if len(failed) == 1:
                return first
            text = f"{len(failed)} policies; {failed[0].policy.name}: {first.message}"
            return type(first)(text, first.hint)
        return Partial(
            f"{len(failed)} of {len(self.tasks)} policies failed or left something; "
            f"{failed[0].policy.name}: {first.message}",
            first.hint,
        )


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(sep=" ", timespec="seconds")


def _absolute(name: str) -> str:
    """Return the name of an archive, valid in any working directory."""
    return name if "://" in name else os.path.abspath(os.path.expanduser(name))


async def _exists(archive: Location) -> bool:
    """Return whether there is an archive at a location.

    Raises:
        Unavailable: the place of the archive cannot be reached, or refuses the access.
    """
    return await in_thread(file_of(archive).exists)
