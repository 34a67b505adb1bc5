"""The undo of a recorded run: finds the run and its store, and records the undo.

Memories that a copy replaced are restored from the archive of its run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from memctl.errors import Busy, Failure, NotFound, UsageError
from memctl.holds import Holds
from memctl.journal.changes import read_changes, repeats
from memctl.journal.runs import Job, Run, Runs
from memctl.location import Location, visible
from memctl.model import Edit, Memory, MemoryKey, OnConflict, StoredMessage
from memctl.ops.change.change import ChangeRun, RunOptions
from memctl.ops.copy.compare import Comparability, Hasher, Precision, fingerprints
from memctl.ops.copy.copy import CopyOptions, copy
from memctl.ops.recording import Recording
from memctl.ops.rename import RenameUndoRun
from memctl.ops.rename_project import ProjectUndoRun
from memctl.ops.report import CopyReport
from memctl.ops.same_store import Locate, is_on, recorded_location
from memctl.ops.undo.undo import UndoRun, shown_as_recorded
from memctl.registry import as_recorded, make_store
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.store import Store
from memctl.text.numbers import count


@dataclass(eq=False)
class CopyUndoRun(UndoRun):
    """A run that undoes a copy: it restores replaced memories, then removes added messages."""

    archives: list[Path]
    """They hold the memories that the copy replaced, as they were before; the first one counts."""
    restoring: Run
    """The record of their restoration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keys: dict[Path, frozenset[MemoryKey]] = {}
        """The memories to restore, by archive."""
        self._unrestored = 0
        """The number of memories to restore that an error or a stop left as they were."""
        self._reverses = False
        """True if there is something to undo in memories that the copy did not replace."""

    @property
    def id(self) -> str | None:
        return super().id or self.restoring.id or None

    async def plan(self, store: Store) -> bool:
        """Plan both the restoration and the removal; return False if there is nothing to change.

        A refusal of either comes before the first change.
        """
        self.where = self.where.without(await self._plan_restoration(store))
        self._reverses = await super().plan(store)
        if self.dry_run:
            await self._count(store)
        return self._reverses or any(self._keys.values())

    async def _plan_restoration(self, store: Store) -> frozenset[MemoryKey]:
        """Find the selected memories that are unchanged since the copy replaced them.

        Return all selected memories that the copy replaced, even those that cannot be restored.
        """
        found = frozenset[MemoryKey]()
        recorded = shown_as_recorded(store, self.restoring)
        self.restoring.dialect = ""  # the record is in the dialect of the store
        for path in self.archives:
            found |= await self._plan_archive(store, recorded, path, self.where.without(found))
        return found

    async def _plan_archive(
        self, store: Store, recorded: Store, path: Path, where: Selection
    ) -> frozenset[MemoryKey]:
        async with _archive(path) as source:
            async with aclosing(source.headers(where)) as memories:
                keys = frozenset([memory.key async for memory in memories])
            keys = frozenset(key for key in keys if not self.notes.of(key).unchanged)
            good = await unchanged_since_run(recorded, self._parts, keys)
            whole = Selection(keys=keys - good)
            as_before = await same_outlines(source, store, whole) if keys - good else frozenset()
            self.report.failures += [
                (key, Failure("conflict", "it has changed since it was replaced"))
                for key in sorted(keys - good - as_before)
            ]
            holds = self.options.holds.read(store) if good else Holds()
            held = {key: failure for key in sorted(good) if (failure := holds.failure(key))}
            self.report.failures += held.items()
            self._keys[path] = good - held.keys()
            return keys

    async def _count(self, store: Store) -> None:
        """Count the memories to restore, and the messages that they have now, for a dry run."""
        planned = self.report.planned
        for path, keys in self._keys.items():
            where = Selection(keys=keys)
            async with aclosing(store.list_memories(where)) as present:
                async for info in present:
                    planned.deleted += info.messages
            async with _archive(path) as source, aclosing(source.list_memories(where)) as infos:
                async for info in infos:
                    planned.memories += 1
                    planned.restored += info.messages

    def left(self) -> str:
        if self.begun:
            return super().left()
        waiting = self.report.planned.memories - self.report.done.memories
        return str(self._unrestored + waiting or "")

    async def carry_out(self, store: Store) -> None:
        if any(self._keys.values()):
            await self._restore(store)
        if self._reverses:
            await super().carry_out(store)

    async def _restore(self, store: Store) -> None:
        copied, holds = CopyReport(), self.options.holds
        every = frozenset[MemoryKey]().union(*self._keys.values())
        recording = Recording(self.restoring, self.options.keep)
        options = CopyOptions(OnConflict.REPLACE, checksum=True, exact=True, holds=holds)
        try:
            with recording.ended(copied):
                recording.begin(store, self._observer.warn)
                for path, keys in self._keys.items():
                    async with _archive(path) as source:
                        chosen = Selection(keys=keys)
                        await copy(source, store, chosen, options, copied, recorder=recording)
                await self._tidy(store, every - {key for key, _ in copied.failures})
        finally:
            self._unrestored = len(every - copied.settled.keys())
            for counted in (self.report.planned, self.report.done):
                counted.memories += copied.memories.written
                counted.restored += copied.messages.written
                counted.deleted += copied.messages.deleted
            self.report.failures += copied.failures

    async def _tidy(self, store: Store, keys: frozenset[MemoryKey]) -> None:
        """Give back to the store what it noted on the memories ``keys`` in the earlier run."""

        async def edits() -> AsyncGenerator[Edit]:
            for key in keys:
                if before := self.notes.of(key).before:
                    yield Edit(Memory(key), [], before=before)

        with store.foreseen(lambda _: None):  # an undo of this undo reverses the copy alone
            async with aclosing(store.edit(edits())) as results:
                async for result in results:
                    if result.failure is not None:
                        self.report.failures.append((result.key, result.failure))


def _archive(path: Path) -> Store:
    return make_store(Location("archive", str(path), path=path))


async def unchanged_since_run(
    store: Store, parts: Sequence[Path], keys: frozenset[MemoryKey]
) -> frozenset[MemoryKey]:
    """Return the memories in ``keys`` that are unchanged since a run wrote them whole.

    Message ids, order and marks are compared.  ``parts`` are the files of changes of the run, which
    lack the memories that a run did not reach.

    Raises:
        BadData: a file of changes is damaged.
        MemctlError: as ``Store.read``.
    """
    sides = Comparability(facts=store.dialect.facts)
    left: dict[MemoryKey, Hasher] = {}
    for path in parts:
        again = repeats(path)
        for edit in read_changes(path, messages=False):
            key = edit.memory.key
            if key in keys:
                if edit.offset == 0 and not (again and key in left):
                    left[key] = sides.hasher(Precision.OUTLINE)
                left[key].add(
                    [
                        StoredMessage(one.id, b"", one.new)
                        for one in edit.changes
                        if one.new is not None
                    ]
                )
    outlines = store.outline(Selection(keys=keys))
    found = await fingerprints(outlines, Precision.OUTLINE, sides)
    return frozenset(
        key for key, hasher in left.items() if key in found and found[key].digest == hasher.digest()
    )


async def same_outlines(one: Store, other: Store, where: Selection) -> frozenset[MemoryKey]:
    """Return the selected memories whose messages have equal ids, order and marks in both stores.

    Raises:
        MemctlError: as ``Store.read``.
    """
    sides = Comparability(facts=one.dialect.facts)
    here = await fingerprints(one.outline(where), Precision.OUTLINE, sides)
    there = await fingerprints(other.outline(where), Precision.OUTLINE, sides)
    return frozenset(
        key for key, found in here.items() if key in there and found.digest == there[key].digest
    )


def find_run(runs: Runs, name: str | None, at: Location | None, locate: Locate) -> Run | Job:
    """Return the run or the job to undo.

    ``name`` is its id, or the start or end of its id.  Without ``name``, the newest run that can be
    undone is returned, of the store ``at`` if that is given; of a part of a job, the whole job.

    Raises:
        NotFound: there is no such run.
        BadData: the record of the run is damaged.
    """
    if name is not None:
        return runs.find(name)
    run = runs.last(lambda one: at is None or is_on(one, at, locate))
    if run is not None:
        return runs.job(run.job) if run.job else run
    raise NotFound(
        f"no run{'' if at is None else f' on {at.label}'} can be undone",
        "list the runs with memctl history; if the store has moved, use undo RUN --store STORE",
    )


def runs_to_undo(runs: Runs, found: Run | Job, shard: Shard | None = None) -> list[Run]:
    """Return the runs to undo, newest first: of a job, those that are not undone yet.

    ``shard`` chooses the runs of one part of a job.

    Raises:
        UsageError: the run or the job has no such part.
        Busy: a run is still going on.
    """
    if isinstance(found, Run):
        if shard is not None:
            raise UsageError(
                f"the run {found.id} is not a job, which has parts", "leave --shard out"
            )
        undone = [found]
    else:
        if shard is not None and shard.of != found.of:
            raise UsageError(
                f"the job {found.name} has {count(found.of, 'part')}, not {shard.of:,}",
                f"write --shard K/{found.of}",
            )
        chosen = [run for run in found.runs if shard is None or run.shard == str(shard)]
        undone = [run for run in chosen if not run.over]
    for run in undone:
        if runs.goes_on(run):
            part = f"part {run.shard} of the job {run.job}, " if isinstance(found, Job) else ""
            raise Busy(
                f"{part}the run {run.id} is still running",
                "wait for it to end, or stop it",
            )
    if isinstance(found, Run):
        return undone
    # A part that was killed early has changed nothing.
    return [run for run in undone if run.ended or (not run.planned and runs.has_changes(run))]


def refuse_older(runs: Runs, undone: Run, at: Location | None, locate: Locate) -> None:
    """Refuse to undo ``undone``, which the user did not name, if a newer run has no undo record.

    If the store ``at`` is given, only runs on it count.

    Raises:
        UsageError: there is such a newer run.
    """
    newer = runs.unrecorded(lambda one: at is None or is_on(one, at, locate))
    if newer is not None and newer.number > undone.number:
        raise UsageError(
            f"the last run, {newer.command} on {visible(newer.store)}, has no undo record",
            f"to undo the {undone.command} on {visible(undone.store)}, run: "
            f"memctl undo {undone.id}",
        )


def _with_record(undone: Run, location: Location, locate: Locate, *, elsewhere: bool) -> Location:
    """Return the location in which to undo a run, with what the run recorded of its store.

    The record has the layout, which cannot be detected if the run emptied the store, and options
    that the user may have left out, such as ``?state=``.
    """
    if elsewhere:
        options = {name: text for name, text in undone.options.items() if name != "layout"}
        return as_recorded(location, options)
    recorded = recorded_location(undone, locate)
    if location.path.name:
        return as_recorded(recorded, undone.options)
    left_out = recorded.options.keys() - location.options.keys()
    options = {name: recorded.options[name] for name in left_out}
    return as_recorded(location, options | undone.options)


@contextmanager
def reversing(
    runs: Runs,
    undone: Run,
    place: Location,
    new_record: Callable[[Location], Run],
    where: Selection,
    options: RunOptions,
    *,
    named: bool,
    elsewhere: bool,
    job: str = "",
) -> Iterator[tuple[ChangeRun, Location]]:
    """Return a context manager with the run that undoes ``undone``, and the place for it.

    ``place`` is the store as the user names it.  ``new_record`` returns a record for the undo.
    With ``named``, the user has named the store on purpose.  ``elsewhere`` is True if the run
    changed another store.  ``job`` is the name of the undo of a job, of which only the shard of
    ``undone`` is locked.

    If the block succeeds and nothing of the run is left, the run is recorded as undone.
    """

    location = _with_record(undone, place, options.locate, elsewhere=elsewhere)

    def record() -> Run:
        found = new_record(location)
        if not elsewhere:  # the record names options, such as ?state=, that the user left out
            found.argument, found.secret = undone.argument, found.secret or undone.secret
        found.undoes, found.dialect = undone.id, undone.dialect
        found.job = job
        found.shard, found.stores = (undone.shard, undone.stores) if job else ("", 1)
        return found

    archives, whole = runs.replaced(undone), replace(where, shard=undone.part) if job else where
    with closing(runs.before(undone)) as notes:
        about = record(), whole, runs, undone, notes
        undoing: ChangeRun
        if renamed := runs.renamed(undone):
            undoing = RenameUndoRun(record(), whole, undone, renamed, options=options)
        elif (moved := runs.moved_project(undone)) is not None:
            undoing = ProjectUndoRun(record(), whole, moved.back, undone, options=options)
        elif not archives:
            undoing = UndoRun(*about, options=options, named=named)
        else:
            copied = archives, record()
            undoing = CopyUndoRun(*about, *copied, options=options, named=named)
        yield undoing, location
    if where == Selection() and not (options.dry_run or undoing.report.failures):
        _note_undone(runs, undone, undoing.id)


def _note_undone(runs: Runs, undone: Run, by: str | None) -> None:
    """Record that the run ``by`` undid ``undone``, or that there was nothing to undo.

    ``by`` is the id of the undo; None if there was nothing to undo.  If ``undone`` is itself an
    undo, the run that it reversed can be undone again.
    """
    undone.undone_by = by or undone.undone_by
    undone.settled = by is None
    runs.update(undone)
    for run in runs.all() if by and undone.undoes else ():
        if run.id == undone.undoes and run.undone_by == undone.id:
            run.undone_by, run.settled = "", False
            runs.update(run)
