"""Erase a user, or one session, from stores and from the undo runs on them.

An erase writes no journal: erased data cannot be restored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from msgspec import UNSET, Struct, field

from memctl.errors import Failure, Interrupted, Lost, MemctlError, Partial
from memctl.holds import HELD, LIST, Holds
from memctl.index.folder import remove_of
from memctl.journal.erase import ErasedRuns, RunEraser
from memctl.journal.runs import Run, Runs
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.ops.change.change import RunOptions
from memctl.ops.data_subject import ALWAYS, Subject, not_reached
from memctl.ops.holds import all_held, nothing_but_held
from memctl.ops.lock import lock
from memctl.ops.lost_answer import ask_again
from memctl.ops.names import list_names, refuse_absent
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.prune import Referrers, referred
from memctl.ops.receipt import Digests, ErasedStore, Receipt, State
from memctl.ops.recording import note_unrecorded
from memctl.ops.report import DOCTOR
from memctl.ops.retry import leaving_damaged
from memctl.ops.same_store import runs_at
from memctl.ops.side_effects import refuse_side_effects
from memctl.ops.store_task import StoreTask
from memctl.reports import erase as reports
from memctl.selection import Selection
from memctl.store import Deletion, OpenMode, Store
from memctl.text.numbers import count

_ATTEMPTS = 2
"""The largest number of attempts to erase data that other programs add again."""


class EraseReport(Struct):
    """The plan and the result of an erase in a store and in the undo runs on the store."""

    found: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of messages that the plan found in each memory."""
    erased: dict[MemoryKey, int] = field(default_factory=dict)
    """The number of erased messages of each memory."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    """The memories that could not be erased, with the reasons; held memories, too."""
    runs: ErasedRuns = field(default_factory=ErasedRuns)
    """The undo runs that contain data of the user."""
    noun: str = "message"
    """The noun for a message of the store: "message" or "fact"."""

    @property
    def nothing(self) -> bool:
        """True if neither the store nor an undo run has data of the user or session."""
        return not (self.found or self.failures or self.runs.found)

    @property
    def all_held(self) -> bool:
        """True if there are data of the user or session, and all of them are held."""
        held = all(failure.code == HELD for _, failure in self.failures)
        return held and not (self.nothing or self.found or self.runs.found)


@dataclass(eq=False)
class EraseRun(StoreTask):
    """The erase of a user or session from one store, and from the undo runs on the store.

    ``begun`` is False again if the store refused it all.
    """

    subject: Subject
    _: KW_ONLY
    notes_blobs: bool
    """True if ``blobs`` is wanted."""

    def __post_init__(self) -> None:
        self.entry = ErasedStore(self.location.label, self.record.argument, self.place.kind)
        """The part of the receipt for the store."""
        self.report = EraseReport()
        self.blobs: set[str] = set()
        """The names of the offloaded contents to which the erased messages may refer."""
        self._in_force = Holds()
        """The holds on the store, as read last."""
        self._held: dict[MemoryKey, Failure] = {}
        """The memories of the subject that are held, with the reasons."""
        self._where = self.subject.where
        """The selection of the memories that are not held."""

    def fail(self, error: MemctlError) -> None:
        """Note the error in the receipt, too."""
        super().fail(error)
        self.entry.failures.append(error.code)
        if not self.begun:
            self.entry.state = State.FAILED

    @property
    def only_held(self) -> bool:
        """True if the erase left held memories, and nothing else."""
        report = self.report
        return self.error is None and not report.runs.failures and all_held(report.failures)

    @property
    def why(self) -> str:
        """The first reason why the erase of this store is incomplete; empty if it is complete."""
        report = self.report
        if self.error is not None:
            return self.error.message
        if report.failures:
            key, failure = report.failures[0]
            return f"{key}: {failure.message}"
        return next(iter(report.runs.failures.values()), "")

    async def plan(self, store: Store, digests: Digests | None = None) -> None:
        """Find the data of the subject in the store and in its undo runs, and fill in ``report``.

        Held memories become failures of ``report``.  Digests of the ids of the messages to erase
        are added to ``digests``, if given.

        Raises:
            BadData: the record of holds is damaged.
            MemctlError: as ``Store.read``.
        """
        store.refuse_erase()
        self.entry.kind = store.kind
        self.entry.not_reached = not_reached(store.location)
        await store.check_integrity(self.subject.where, complete=True)
        with self.options.observer.progress("looking"):
            names = await list_names(store, self.subject.where)
            found = dict.fromkeys([key._replace(part="") for key in names], 0)
            self._held = {}
            found = self._leave_held(store, found)
            if found:
                found |= await leaving_damaged(partial(self._counts, store, digests))
            if found and self.notes_blobs:
                self.blobs |= await referred(store, self._where)
        if found:
            await refuse_side_effects(store, self._where, Deletion.MEMORIES)
        runs = await self._erase_runs(store, dry_run=True)
        self.report = EraseReport(
            {key: found[key] for key in sorted(found)},
            failures=[*self._held.items()],
            runs=runs,
            noun=store.dialect.noun,
        )

    def _leave_held(self, store: Store, found: dict[MemoryKey, int]) -> dict[MemoryKey, int]:
        """Read the holds anew, and add the held memories of ``found`` to ``_held``.

        Return the others.  ``_where`` then selects the sessions of these alone, so that the store
        keeps the name of the user and what else a held session needs.
        """
        self._in_force = holds = self.options.holds.read(store)
        self._held |= {key: held for key in sorted(found) if (held := holds.failure(key))}
        self._where = self.subject.where
        rest = {key: number for key, number in found.items() if key not in self._held}
        if self._held:
            self._where = replace(self._where, sessions=frozenset(key.session for key in rest))
        return rest

    async def _counts(self, store: Store, digests: Digests | None) -> dict[MemoryKey, int]:
        found: Counter[MemoryKey] = Counter()
        async with aclosing(store.outline(self._where)) as pages:
            async for page in pages:
                found[page.memory.key._replace(part="")] += len(page.messages)
                if digests is not None:
                    digests.add(message.id for message in page.messages)
        return found

    async def execute(self, store: Store, digests: Digests, save: Callable[[], None]) -> None:
        """Lock the store, plan again, and erase: first from the store, then from the undo runs.

        Held memories stay in both.  If other data of the subject stay in the store, the undo runs
        stay as they are.  ``save`` writes the receipt to the disk.  It is called before the first
        data are erased, so that the receipt has the digests of all message ids.

        Raises:
            Busy: another run writes to the store.
            MemctlError: as ``Store.erase``; ``entry`` counts the erased data.
        """
        await lock(store)
        await self._remove_indexes(store)
        await self.plan(store, digests)
        if self.report.nothing:
            await self._erase_runs(store)  # an erase that was killed may have left witnesses
            self.entry.state = State.NOTHING
            return
        report = self.report
        report.found = self._leave_held(store, report.found)  # a hold may be new since the plan
        report.failures = [*self._held.items()]
        self.entry.held = [digests.of(*key[:2]) for key in self._held]
        if report.all_held:
            self.entry.state = State.FAILED
            self.entry.failures = [failure.code for _, failure in report.failures]
            return
        self.entry.state = State.BEGUN
        save()
        self.begun = True
        report.runs = ErasedRuns()
        try:
            with self.options.observer.progress("erasing"):
                left = await self._erase(store)
                failed = {key for key, _ in report.failures}
                came = Failure("changed", "it exists again: another program writes to it")
                left = [key._replace(part="") for key in left]
                report.failures += [(key, came) for key in left if key not in failed]
                if not report.failures:
                    report.runs = await self._erase_runs(store)
                report.failures += self._held.items()
                await self._remove_indexes(store)  # a search may have made new ones
        except MemctlError as error:
            unknown = isinstance(error, Lost | Interrupted)
            self.begun = unknown or bool(report.erased or report.runs.found)
            raise
        finally:
            self._settle()
        if not self.entry.failures:
            self.entry.state = State.ERASED

    async def _remove_indexes(self, store: Store) -> None:
        await in_thread(partial(remove_of, await store.identity()))

    async def _erase(self, store: Store) -> list[MemoryKey]:
        """Erase the subject from the store; return the names of its data that still exist."""
        report = self.report
        report.failures.clear()
        if self._held and not report.found:
            return []
        for _ in range(_ATTEMPTS):
            report.failures.clear()
            try:
                async with aclosing(store.erase(self._where)) as results:
                    async for result in results:
                        key = result.key._replace(part="")
                        if result.failure is not None:
                            report.failures.append((key, result.failure))
                        else:
                            report.erased[key] = report.erased.get(key, 0) + result.deleted
            except Lost as error:
                await self._settle_lost(store, error)
            left = await list_names(store, self._where)
            if not left or report.failures:
                break
        return left

    async def _settle_lost(self, store: Store, error: Lost) -> None:
        """Count the memories that are gone, although the answer of the store was lost.

        Raises:
            Lost: some of the memories still exist, or that is not known.
        """
        try:
            names = await ask_again(partial(list_names, store, self._where))
        except MemctlError:
            raise error from None
        left = {key._replace(part="") for key in names}
        for key in self.report.found.keys() - left - self.report.erased.keys():
            self.report.erased[key] = self.report.found[key]
        if left:
            raise error
        self.options.observer.warn(f"{error.message}; the change is stored")

    def _settle(self) -> None:
        """Put the results so far into ``entry``."""
        report, entry = self.report, self.entry
        entry.memories, entry.messages = len(report.erased), sum(report.erased.values())
        removed, rewritten = len(report.runs.removed), len(report.runs.rewritten)
        entry.runs = {"removed": removed, "rewritten": rewritten}
        entry.failures = [failure.code for _, failure in report.failures]
        entry.failures += ["run"] * len(report.runs.failures)
        if entry.state == State.BEGUN:
            entry.state = State.PARTIAL

    async def _erase_runs(self, store: Store, *, dry_run: bool = False) -> ErasedRuns:
        eraser = RunEraser(Runs(), partial(self._concerns, store.kind))
        runs = runs_at(store.location, self.options.locate)
        return await eraser.erase(runs, dry_run=dry_run)

    def _concerns(self, kind: str, key: MemoryKey) -> bool:
        """Return whether to erase the memory ``key`` from the undo runs.

        The data of a user outside sessions stay with a held session of the user.
        """
        if self._in_force.on(key) is not None or (self._held and not key.session):
            return False
        return self.subject.concerns(kind, key)


class Erasure:
    """The erase of a user or session from several stores, with one receipt.

    ::

        erasure = Erasure(subject, [(location, record)], options, Receipt.begin(None, subject))
        await erasure.plan()  # to ask the user, or for a dry run
        await erasure.execute()
        if error := erasure.error():
            raise error
    """

    def __init__(
        self,
        subject: Subject,
        stores: Iterable[tuple[Location | Store, Run]],
        options: RunOptions,
        receipt: Receipt | None,
        blobs: Blobs | None = None,
        referrers: Referrers | None = None,
    ) -> None:
        """``stores`` are the locations or the open stores, each with a record that names it.

        ``receipt`` is new, or that of an earlier run that goes on; None for a dry run.  Contents in
        ``blobs`` to which only erased messages refer are removed: neither the stores of this erase,
        nor ``referrers``, nor undo runs on them need these contents.
        """
        self.subject = subject
        self.targets = [
            EraseRun(*store, options, subject, notes_blobs=blobs is not None) for store in stores
        ]
        self.dry_run = options.dry_run
        self.nobody = False
        """True if an error said that no store has data of the user or session."""
        self.receipt: Receipt | None = None
        """The receipt; None if nothing was erased."""
        self.blobs: list[str] | None = None
        """The names of the removed blobs; None if no place of blobs is known."""
        self._options = options
        self._receipt = receipt
        self._place = blobs
        self._referrers = referrers or Referrers(options)
        self._blobs_error: MemctlError | None = None

    @property
    def begun(self) -> bool:
        """True if data were erased from any store."""
        return any(target.begun for target in self.targets)

    async def plan(self) -> None:
        """Find the data of the subject in each store; with ``must_exist``, refuse to find none.

        Raises:
            NotFound: all stores were searched in vain; the hint suggests similar names.
            Loss: there are data of the user or session, and all of them are held.
            MemctlError: nothing was found, and a store could not be searched.
        """
        for target in self.targets:
            await target.attempt(OpenMode.READ if self.dry_run else OpenMode.CHANGE, target.plan)
        await self._refuse_nothing()

    async def _refuse_nothing(self) -> None:
        if not self._options.must_exist:
            return
        goes_on = self._receipt is not None and self._receipt.earlier
        found = [one.report for one in self.targets if not one.report.nothing]
        if not (found or goes_on):
            await self._refuse_nobody()
        if found and self._first_error() is None and all(report.all_held for report in found):
            raise nothing_but_held([one for report in found for one in report.failures])

    async def _refuse_nobody(self) -> None:
        self.nobody = True
        if (failed := self._first_error()) is not None:
            raise failed
        names: list[MemoryKey] = []
        for target in self.targets:
            with suppress(MemctlError):  # then without its names
                async with target.opened(OpenMode.READ) as store:
                    names += await list_names(store, Selection())
        places = [target.location for target in self.targets]
        refuse_absent(self.subject.where, 0, *places, names=names)

    def _first_error(self) -> MemctlError | None:
        return next((one.error for one in self.targets if one.error is not None), None)

    async def execute(self) -> None:
        """Erase from all stores, then remove blobs, and complete the receipt.

        The receipt is discarded if nothing was erased from any store.  An error of one store, or of
        the blobs, is kept for ``error``.

        Raises:
            Unavailable: the receipt cannot be written.
            Interrupted: a signal came.
            MemctlError: nothing was erased, as ``plan``.
        """
        self.receipt = receipt = self._receipt
        assert receipt is not None
        receipt.stores = [target.entry for target in self.targets]
        for target in self.targets:
            work = partial(target.execute, digests=receipt.digests, save=receipt.save)
            try:
                await target.attempt(OpenMode.CHANGE, work)
            finally:
                if target.begun:
                    note_unrecorded(target.record, self._options.observer.warn)
                if self.begun or receipt.earlier:
                    receipt.save()
        if not (self.begun or receipt.earlier):
            receipt.discard()
            self.receipt = None
            await self._refuse_nothing()
            return
        if self._place is not None:
            await self._remove_blobs(self._place, receipt)
        receipt.end()
        receipt.save()

    async def _remove_blobs(self, blobs: Blobs, receipt: Receipt) -> None:
        found = dict.fromkeys((name for one in self.targets for name in one.blobs), 0)
        removed: dict[str, int] = {}
        try:
            if found and self._first_error() is None:
                places = [target.location for target in self.targets]
                await self._referrers.remove_unreferred(places, blobs, found, removed)
        except MemctlError as error:
            self._blobs_error = error
        self.blobs = sorted(removed)
        receipt.blobs += [receipt.digests.of(name) for name in self.blobs]
        kept_for = dict.fromkeys((*receipt.blobs_kept_for, *self._referrers.failed))
        receipt.blobs_kept_for = list(kept_for)

    def error(self) -> MemctlError | None:
        """Return the error if the erase of a store is incomplete; else None."""
        failed = [target for target in self.targets if target.why]
        if failed and not self.begun and not self.dry_run and failed[0].error is not None:
            return failed[0].error
        left = [one for target in failed for one in target.report.failures]
        if failed and all(target.only_held for target in failed):
            key, failure = left[0]
            stay = "would stay" if self.dry_run else "stay" if len(left) > 1 else "stays"
            return Partial(
                f"{count(len(left), 'memory')} {stay}; the first: {key}: {failure.message}",
                self._hint(failed[0]),
            )
        if failed:
            first = failed[0]
            label = visible(first.location.label)
            return Partial(
                f"{count(len(failed), 'store')} of {len(self.targets)} could not be "
                f"{'searched' if self.dry_run else 'erased completely'}; "
                f"{label}: {first.why.removeprefix(f'{label}: ')}",
                self._hint(first),
            )
        if self._blobs_error is not None:
            return Partial(
                f"offloaded contents were not removed: {self._blobs_error.message}",
                "the messages are erased; memctl offload --prune removes the contents",
            )
        return None

    def _hint(self, failed: EraseRun) -> str:
        if any(one.code == "damaged" for _, one in failed.report.failures):
            return f"{DOCTOR}, then run the same command again"
        if self.dry_run:
            return "nothing was erased: this was a dry run"
        if all_held(failed.report.failures):
            return f"the rest was done; {LIST}"
        if not any(one.report.erased or one.report.runs.found for one in self.targets):
            return "nothing was erased; run the same command again"
        return "the rest was done; run the same command again"

    def report(self) -> reports.EraseReport:
        """Return the report as it is now."""
        return reports.EraseReport(
            dry_run=self.dry_run,
            stores=[self._store(target) for target in self.targets],
            failures=[row for target in self.targets for row in _failures(target)],
            not_reached=list(ALWAYS),
            receipt=UNSET if self.receipt is None else self.receipt.file.text,
            blobs=UNSET if self.blobs is None else self.blobs,
        )

    def _store(self, target: EraseRun) -> reports.StoreOutcome:
        report, entry = target.report, target.entry
        found = report.found if self.dry_run else report.erased
        return reports.StoreOutcome(
            store=target.location.label,
            kind=entry.kind,
            state="planned" if self.dry_run and target.error is None else entry.state,
            messages=sum(found.values()),
            memories=[reports.ErasedMemory(*key[:2], number) for key, number in found.items()],
            runs=reports.ErasedRuns(report.runs.removed, report.runs.rewritten),
            not_reached=entry.not_reached,
        )


def _failures(target: EraseRun) -> list[reports.NotErased]:
    """Return what could not be erased from a store, a row each with the reason."""
    label, report = target.location.label, target.report
    rows = [
        reports.NotErased(
            store=label, user=key.user, session=key.session, code=one.code, message=one.message
        )
        for key, one in report.failures
    ]
    rows += [
        reports.NotErased(store=label, run=run, code="run", message=message)
        for run, message in report.runs.failures.items()
    ]
    if (error := target.error) is not None:
        rows.append(reports.NotErased(store=label, code=error.code, message=error.message))
    return rows
