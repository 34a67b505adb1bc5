"""A run that changes a store: planned into the journal, approved, carried out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from math import inf
from typing import Any, ClassVar

from msgspec import Struct, field

from memctl.errors import BadData, Failure, Loss, Lost, MemctlError, NotFound, Unavailable
from memctl.journal import runs
from memctl.journal.files import refusals
from memctl.journal.retention import Retention
from memctl.journal.runs import Journal, Runs
from memctl.location import Location
from memctl.machine.concurrency import run_both
from memctl.machine.temporary import scratch
from memctl.model import Edit, MemoryKey
from memctl.ops.change.apply import (
    MOST_IDS,
    ChangeCounts,
    ChangeReport,
    Held,
    Planner,
    Preparation,
    apply_plan,
    plan,
    preview,
    settle_pending,
    without_held,
)
from memctl.ops.change.marks import MarkChange, plan_marks
from memctl.ops.holds import HoldSource
from memctl.ops.lock import lock
from memctl.ops.lost_answer import unclear
from memctl.ops.names import note_absent_values, refuse_absent_in
from memctl.ops.observer import Observer, Unobserved, opened
from memctl.ops.recording import note_unrecorded
from memctl.ops.recreated import record_evidence
from memctl.ops.report import Total
from memctl.ops.retry import leaving_damaged
from memctl.ops.same_store import Locate
from memctl.ops.select import most_deletions, whole_memories
from memctl.ops.side_effects import refuse_side_effects
from memctl.ops.stop import Stop
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import Deletion, OpenMode, Store
from memctl.storekit.files import temporary_folder
from memctl.text.numbers import count


class RunOptions(Struct, frozen=True):
    """The options of every run that changes a store.

    Without ``backup``, the run cannot be undone.  ``dry_run`` plans and counts without a change.
    ``keep`` says which records of older runs to keep; None keeps all.  With ``must_exist``, a named
    session that does not exist is an error.  ``observer`` gets progress, notes and warnings.
    ``holds`` says which memories to leave alone.  ``locate`` returns the location of a store from
    its name in the record of a run.

    The rest is for operations that plan a change of messages first, such as ``delete`` and
    ``undo``.  ``record`` returns the record of a new run of a command on a store, for ``memctl
    history``.  ``limit`` is the largest number of messages to delete, or to offload; if its second
    element is True, the first is a percentage of all messages in the selected memories.
    ``limit_name`` is the limit as the user wrote it, such as ``--max-delete 20%``, for the refusal.

    ``watch`` is called with the run before the run begins: ``report`` and ``id`` of the run say
    what was done so far, even if an error or a cancellation ends it.  ``approve`` is awaited with
    the run as soon as its plan is in ``report``, unless there is nothing to do; what it raises ends
    the run before a change.  Meanwhile the store is closed, if it was named.  A dry run is not
    approved.  ``stop`` asks a run to end when no memory is half changed.
    """

    backup: bool = True
    dry_run: bool = False
    keep: Retention | None = None
    must_exist: bool = False
    observer: Observer = field(default_factory=Unobserved)
    holds: HoldSource = field(default_factory=HoldSource)
    locate: Locate = parse
    record: Callable[[str, Location], runs.Run] | None = None
    limit: tuple[float, bool] | None = None
    limit_name: str = ""
    watch: Callable[[Any], object] = lambda _: None
    approve: Callable[[Any], Awaitable[object]] | None = None
    stop: Stop | None = None


def refuse_many(deleted: int, noun: str, most: float, limit: str) -> None:
    """Refuse a plan that deletes ``deleted`` of what ``noun`` names, if that is more than ``most``.

    ``limit`` names the limit, such as ``--max-delete 20%``; it may be empty.

    Raises:
        Loss: the plan deletes more.
    """
    if deleted > most:
        raise Loss(
            f"{count(deleted, noun)} would be deleted" + (f", more than {limit}" if limit else ""),
            "nothing was deleted" + ("; preview with --dry-run" if limit else ""),
        )


@dataclass(eq=False)
class ChangeRun:
    """A run that changes a store, each memory completely or not at all.

    ::

        run = MarkRun(record, where, change, options=options)
        await run.perform(store)
    """

    mode: ClassVar[OpenMode] = OpenMode.CHANGE
    """The mode in which the store must be open."""

    record: runs.Run
    """The new journal entry of the run, with the store that undo will open."""
    where: Selection
    _: KW_ONLY
    options: RunOptions

    def __post_init__(self) -> None:
        self.dry_run = self.options.dry_run
        self.planner: Planner = self.edits
        """Plans the changes of the memories that ``where`` selects."""
        self.report = ChangeReport()
        self.stop = self.options.stop or Stop()
        self.begun = False
        """True as soon as the store may have been changed."""
        self.most = inf
        """The largest number of messages to delete, including those that agents add meanwhile."""
        self.allowed = inf
        """The largest number of messages that the plan may delete, by the limit."""
        self.prepare: Preparation | None = None
        """Called before the store gets edits, with these edits."""
        self.named_marks: frozenset[str] = frozenset()
        """Further marks that the user named, besides those of ``where``; for hints."""
        self._refused = False
        """True if the store is known to have refused every planned change of messages."""
        self._observer = self.options.observer
        self._journal: Journal | None = None

    async def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:  # noqa: ARG002
        """Yield the changes of the selected memories; none unless overridden."""
        return
        yield

    @property
    def id(self) -> str | None:
        """The id of the run for ``memctl undo``; None if nothing can be undone."""
        return self.record.id if self.changed and self.options.backup else None

    @property
    def nothing(self) -> str:
        """The text to print if no memory was changed."""
        return "nothing matched"

    @property
    def changed(self) -> bool:
        """Return whether the run may have changed the store, so that the journal must be kept."""
        return self.begun and not (self._refused and not self.done())

    def removes(self, key: MemoryKey) -> bool:  # noqa: ARG002 - every memory, unless overridden
        """Return whether the plan removes or replaces anything in a memory."""
        return True

    def held(self, store: Store) -> Held:
        """Return a function that says why a memory must stay: a hold, as it is in force now.

        The holds are read when the function is first asked about a memory that loses anything.
        """
        holds = cache(partial(self.options.holds.read, store))

        def held(key: MemoryKey | None) -> Failure | None:
            return holds().failure(key) if key is None or self.removes(key) else None

        return held

    @property
    def concerned(self) -> Selection:
        """The selection of all messages of the memories from which the plan may delete."""
        return whole_memories(self.where)

    @property
    def journal(self) -> Journal:
        """The journal of the run, which is open within ``recorded``."""
        assert self._journal is not None
        return self._journal

    async def perform(self, place: Store | Location) -> None:
        """Open the store at a location, or take an open one, and change it, recorded.

        If the plan must be approved, a named store is closed meanwhile, and opened again.

        Raises:
            MemctlError: as ``recorded`` and ``execute``, and what ``approve`` raises.
        """
        self.options.watch(self)
        with self.recorded():
            if self.dry_run or self.options.approve is None:
                async with self._opened(place) as store:
                    await self.execute(store)
            elif await self._plan_first(place):
                await self.options.approve(self)
                await self._carry_out_plan(place)

    async def _plan_first(self, place: Store | Location) -> bool:
        """Open the store to plan; return False if there is nothing to change.

        Raises:
            MemctlError: as ``plan`` and ``refuse_many``.
        """
        async with self._opened(place) as store:
            self.report.noun = store.dialect.noun
            something = await self.plan(store)
            await self.after_plan(store)
            self.refuse_many()
            return something

    async def _carry_out_plan(self, place: Store | Location) -> None:
        """Open the store again after ``_plan_first``, lock it, and carry out the plan.

        Raises:
            Busy: another run writes to the store.
            MemctlError: as ``carry_out``.
        """
        async with self._opened(place) as store:
            await lock(store)
            await self.carry_out(store)

    def _opened(self, place: Store | Location) -> AbstractAsyncContextManager[Store]:
        if isinstance(place, Store):
            return nullcontext(place)
        reads = self.dry_run and self.mode is OpenMode.CHANGE
        store = make_store(place, OpenMode.READ if reads else self.mode)
        store.shard = self.where.shard
        return opened(store, self._observer)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the journal of the run open within the block; a dry run has no journal.

        At the end, the journal is completed, or discarded if the store is unchanged.

        Raises:
            Unavailable: the journal cannot be written.
        """
        if self.dry_run:
            yield
            return
        with ExitStack() as stack:
            self._journal = self._begin(stack)
            try:
                yield
            finally:
                self._end(self._journal)

    def _begin(self, stack: ExitStack) -> Journal:
        folder = None
        if not self.options.backup:
            temporary = scratch()
            with refusals(temporary):
                folder = stack.enter_context(temporary_folder(temporary))
        kept = Runs(folder)
        if self.options.keep is not None:
            removed = kept.prune(self.options.keep, self.record, self._observer.warn)
            if removed:
                self._observer.detail(f"runs no longer kept for undo: {', '.join(removed)}")
        self.record.planned = True
        return kept.begin(self.record)

    def _end(self, journal: Journal) -> None:
        if not self.changed:
            journal.discard()
            return
        self.record.memories = self.report.done.memories
        self.record.counts = self.counts()
        try:
            journal.end("partial" if self.report.failures or self.left() else "done")
        except Unavailable as error:
            self._observer.warn(f"cannot record the end of the run: {error.message}")
        if not self.options.backup:
            note_unrecorded(self.record, self._observer.warn)

    def done(self) -> str:
        """Return the number of changed memories as a text, such as "2 memories"; empty if zero."""
        done = self.report.done.memories
        return count(done, "memory") if done else ""

    def left(self) -> str:
        """Return how much of the plan an error or a stop left undone as a text; empty if nothing.

        The text is a number of memories, unless overridden.
        """
        return str(self.report.left or "")

    def counts(self) -> dict[str, int]:
        """Return the numbers of deleted, marked and restored messages, for the journal."""
        done = self.report.done
        return {"deleted": done.deleted, "marked": done.marked, "restored": done.restored}

    def seen(self) -> ChangeCounts:
        """Return the counts of the changes that were made; of a dry run, of those planned."""
        return self.report.planned if self.dry_run else self.report.done

    def messages(self) -> int:
        """Return the number of changed messages; of a dry run, of those that would change."""
        return self.seen().messages

    def details(self) -> dict[str, Any]:
        """Return fields of the JSON report in addition to the counts; empty unless overridden."""
        return {}

    async def check(self, store: Store) -> None:
        """Raise an error right after planning to refuse the plan; do nothing unless overridden."""

    async def most_allowed(self, store: Store) -> float:
        """Set ``allowed`` by the limit of the options, and return it.

        Raises:
            MemctlError: as ``Store.read``.
        """
        if self.options.limit is not None:
            self.allowed = await most_deletions(store, self.where, self.options.limit)
        return self.allowed

    @property
    def deleted(self) -> int:
        """The number of messages that the plan deletes."""
        return self.report.planned.deleted

    @property
    def noun(self) -> str:
        """The noun for what ``deleted`` counts."""
        return self.report.noun

    def refuse_many(self) -> None:
        """Refuse a plan that deletes more than the limit allows.

        Raises:
            Loss: the plan deletes more.
        """
        refuse_many(self.deleted, self.noun, self.allowed, self.options.limit_name)

    async def after_plan(self, store: Store) -> None:
        """Read data that only the report needs, perhaps while ``carry_out`` runs.

        Do nothing unless overridden.
        """

    async def plan(self, store: Store) -> bool:
        """Plan the changes of the run; return False if there is nothing to change.

        The plan is counted in ``report``, and written to the journal unless the run is a dry run.
        Held memories are left out of the plan, and become failures of ``report``.

        Raises:
            NotFound: with ``must_exist``, a named session does not exist.
            BadData: the plan deletes messages that undo could not restore; or the record of holds
                is damaged.
            MemctlError: as ``Store.read``; or the disk has no room for the journal.
        """
        runs.record_found(self.record, store.location)
        held: dict[MemoryKey, Failure] = {}
        await store.check_integrity(whole_memories(self.where))
        with self._observer.progress("planning") as progress:

            async def attempt() -> bool:
                self.report.planned, self.report.planned_by_memory = ChangeCounts(), {}
                held.clear()
                edits = without_held(self.planner(store, self.where), self.held(store), held)
                if self._journal is None:
                    return await preview(edits, self.report, progress)
                return await plan(edits, self._journal, self.report, progress)

            something = await leaving_damaged(attempt)
        self.note_damage(store)
        if held:
            self.report.failures += held.items()
            self.where = self.where.without(frozenset(held))
        if self.report.planned.deleted:
            await self.refuse_deletion(store)
        elif self.report.planned.unmarked:
            ids = frozenset(self.report.unmarked)
            where = replace(self.concerned, ids=ids if len(ids) <= MOST_IDS else frozenset())
            await refuse_side_effects(store, where, Deletion.MARKS)
        if held:
            await self.check(store)
            return something
        if not something and self.where.sessions:
            await self._refuse_absent(store)
        elif not something and self.where.users:  # a user without memories is not an error
            await self._note_absent(store)
        await note_absent_values(self.where, something, store, self._observer, self.named_marks)
        await self.check(store)
        return something

    async def refuse_deletion(self, store: Store) -> None:
        """Refuse a deletion that undo could not restore, or that would change other data.

        Raises:
            BadData: undo could not restore the selected memories.
            Unavailable: the login may delete messages, but not restore them.
            Loss: the deletion would change other data.
            MemctlError: as ``Store.read``.
        """
        where = self.concerned
        await self.refuse_missing_right(store, next(iter(self.report.planned_by_memory), None))
        recorded = self.options.backup and not self.record.undoes
        if recorded and (found := await store.unrestorable(where)):
            raise BadData(
                f"{store.label} has values in {found}, which undo could not restore",
                "use --no-backup, or move them to a table of their own",
            )
        # The undo of an import removes the rows of sessions; the import changed no other message.
        planned = self.report.planned
        whole = self.record.undoes and not (planned.restored or planned.marked)
        deletion = Deletion.MEMORIES if whole else Deletion.MESSAGES
        await refuse_side_effects(store, where, deletion)

    async def refuse_missing_right(self, store: Store, key: MemoryKey | None) -> None:
        """Refuse a deletion of messages that the login could not restore.

        ``key`` is as in ``Store.missing_right``.

        Raises:
            Unavailable: the login may delete messages, but not restore them.
        """
        recorded = self.options.backup and not self.record.undoes
        if recorded and (right := await store.missing_right(key)):
            raise Unavailable(
                f"{store.label} does not permit what undo needs to restore messages: {right}",
                f"permit {right} to the login; --no-backup does without what only undo needs",
            )

    def note_damage(self, store: Store) -> None:
        """Add the memories that the store left out as damaged to the failures of ``report``.

        Do nothing for a run that skips damage, such as a repair.
        """
        if not store.skips_damage:
            damaged = store.left_out.failures
            others = [item for item in self.report.failures if item[0] not in damaged]
            self.report.failures[:] = [*others, *damaged.items()]

    async def _refuse_absent(self, store: Store) -> None:
        if store.left_out.failures:
            return
        if not (self.options.must_exist and self.where.named):
            return
        async with aclosing(store.headers(whole_memories(self.where))) as memories:
            found = await anext(memories, None)
        await refuse_absent_in(self.where, int(found is not None), store)

    async def _note_absent(self, store: Store) -> None:
        """Note that a selected user has no data in the store, and suggest similar names."""
        try:
            await self._refuse_absent(store)
        except NotFound as error:
            self._observer.note(f"{error.message}: {error.hint}")

    def begin(self) -> None:
        """Record in the journal that the run changes the store from now on.

        The caller has locked the store.  A second call does nothing.

        Raises:
            Unavailable: the journal cannot be written.
        """
        if not self.begun:
            self.journal.carry_out()
            self.begun = True

    async def carry_out(self, store: Store) -> None:
        """Carry out the plan of the journal on a locked store.

        Memories that are held since the plan are left alone, and become failures of ``report``.

        Raises:
            BadData: the record of holds is damaged; nothing was changed.
            Unavailable: the store cannot be reached any more; ``report`` counts the made changes.
            Interrupted: a stop was asked for; no memory is half changed.
        """
        self.begin()
        total = Total(self.report.planned.memories, self.report.planned.messages)
        with self._observer.progress("changing", lambda: total) as progress:
            try:
                await apply_plan(
                    *(store, self.where, self.planner, self.journal, self.report),
                    *(progress, self.stop, self.most, self.held(store), self.prepare),
                )
            except Lost as error:
                await self._settle_lost(store, error)
            except (MemctlError, asyncio.CancelledError) as error:
                if self.report.pending and not self.report.done.memories:
                    with suppress(MemctlError):
                        await settle_pending(store, self.journal, self.report)
                self._refused = isinstance(error, MemctlError) and self._is_unchanged()
                raise
        self._refused = self._is_unchanged()
        if self.report.done.deleted and self.options.backup:
            await record_evidence(store, self.record, self.report.planned_by_memory)

    def _is_unchanged(self) -> bool:
        """Return whether it is known that no planned change was made.

        A summary may be kept in another place than the messages, so nothing is known of it.
        """
        report = self.report
        return not (report.done.memories or report.pending or report.planned.summaries)

    async def _settle_lost(self, store: Store, error: Lost) -> None:
        """Check that the store has the whole change, although its last answer was lost.

        Raises:
            Lost: the store lacks a part of the change, or that is not known.
        """
        if not self.report.pending:
            raise error
        try:
            left = await settle_pending(store, self.journal, self.report)
        except MemctlError:
            left = len(self.report.pending)
        if left:
            raise unclear(error, left) from error
        if self.report.left:
            raise error
        self._observer.warn(f"{error.message}; the change is stored")

    def refuse(self, store: Store) -> None:
        """Refuse a store that cannot be changed so.

        Raises:
            UsageError: memctl does not change the store in this way.
        """
        store.refuse_changes()

    async def execute(self, store: Store) -> None:
        """Lock the store, plan, and carry out the plan.

        A dry run only plans, without a lock.

        Raises:
            Busy: another run writes to the store.
            MemctlError: as ``plan``, ``refuse_many`` and ``carry_out``.
        """
        self.report.noun = store.dialect.noun
        self.refuse(store)
        if self.dry_run:
            await self.plan(store)
            await self.after_plan(store)
            self.refuse_many()
            return
        await lock(store)
        something = await self.plan(store)
        parallel = store.features.parallel
        if not parallel:
            await self.after_plan(store)
        if something:
            self.refuse_many()
            work = self.carry_out(store)
            await (run_both(work, self.after_plan(store)) if parallel else work)


@dataclass(eq=False)
class MarkRun(ChangeRun):
    """A run that changes the marks of the selected messages."""

    remark: MarkChange

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.remark.old is not None:
            self.named_marks = frozenset({self.remark.old})

    def edits(self, store: Store, where: Selection) -> AsyncGenerator[Edit]:
        store.refuse_edits()
        return plan_marks(store, where, self.remark)

    def removes(self, key: MemoryKey) -> bool:  # noqa: ARG002 - a mark is no part of a message
        return False
