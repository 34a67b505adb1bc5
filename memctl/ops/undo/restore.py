"""Undo a copy that replaced memories: restore them from the archive of its run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from memctl.errors import Failure
from memctl.holds import Holds
from memctl.journal import runs
from memctl.journal.changes import read_changes
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryKey, OnConflict, StoredMessage
from memctl.ops.change.apply import ChangeReport
from memctl.ops.change.change import RunOptions
from memctl.ops.copy.compare import Comparability, Hasher, Precision, fingerprints
from memctl.ops.copy.copy import CopyOptions, copy
from memctl.ops.recording import Recording
from memctl.ops.report import CopyReport
from memctl.ops.undo.undo import UndoRun, as_recorded
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Store


class RestoreRun:
    """A run that restores replaced memories from the archive of an earlier run."""

    def __init__(
        self,
        record: runs.Run,
        archive: Path,
        parts: Sequence[Path],
        notes: runs.Notes,
        options: RunOptions,
        report: ChangeReport | None = None,
    ) -> None:
        """``archive`` holds the memories that an earlier run replaced, as they were before.

        ``parts`` are the files of changes of the earlier run, ``notes`` the notes of the store on
        the replaced memories.  ``record`` is the record of this run.
        """
        self._notes = notes
        self.record = record
        self.report = report or ChangeReport()
        self._parts = parts
        self._archive = Location("archive", str(archive), path=archive)
        self._recording = Recording(record, options.keep)
        self._warn = options.observer.warn
        self._holds = options.holds
        self._keys = frozenset[MemoryKey]()
        """The memories to restore."""
        self.left = 0
        """The number of memories that an error or a stop left as they were."""

    @property
    def id(self) -> str | None:
        """The id of the run for ``memctl undo``; None if nothing can be undone."""
        return self.record.id or None

    @property
    def something(self) -> bool:
        """True if the plan restores at least one memory."""
        return bool(self._keys)

    async def plan(self, store: Store, where: Selection) -> frozenset[MemoryKey]:
        """Find the selected memories that are unchanged since the earlier run replaced them.

        Return all selected memories that the earlier run replaced, even those that cannot be
        restored.

        Raises:
            MemctlError: as ``Store.read``.
        """
        async with make_store(self._archive) as source:
            async with aclosing(source.headers(where)) as memories:
                keys = frozenset([memory.key async for memory in memories])
            keys = frozenset(key for key in keys if not self._notes.of(key).unchanged)
            recorded = as_recorded(store, self.record)
            self.record.dialect = ""  # the record is in the dialect of the store
            good = await unchanged_since_run(recorded, self._parts, keys)
            whole = Selection(keys=keys - good)
            as_before = await same_outlines(source, store, whole) if keys - good else frozenset()
            self.report.failures += [
                (key, Failure("conflict", "it has changed since it was replaced"))
                for key in sorted(keys - good - as_before)
            ]
            holds = self._holds.read(store) if good else Holds()
            held = {key: failure for key in sorted(good) if (failure := holds.failure(key))}
            self.report.failures += held.items()
            self._keys = good - held.keys()
            return keys

    async def carry_out(self, store: Store) -> None:
        """Restore the memories of the plan in a locked store.

        Raises:
            MemctlError: as ``copy``.
        """
        if not self._keys:
            return
        copied = CopyReport()
        try:
            with self._recording.ended(copied):
                async with make_store(self._archive) as source:
                    self._recording.begin(store, self._warn)
                    options = CopyOptions(
                        OnConflict.REPLACE, checksum=True, exact=True, holds=self._holds
                    )
                    chosen = Selection(keys=self._keys)
                    await copy(source, store, chosen, options, copied, recorder=self._recording)
                await self._tidy(store, self._keys - {key for key, _ in copied.failures})
        finally:
            self.left = len(self._keys - copied.settled.keys())
            for counted in (self.report.planned, self.report.done):
                counted.memories += copied.memories.written
                counted.restored += copied.messages.written
                counted.deleted += copied.messages.deleted
            self.report.failures += copied.failures

    async def _tidy(self, store: Store, keys: frozenset[MemoryKey]) -> None:
        """Give back to the store what it noted on the memories ``keys`` in the earlier run."""

        async def edits() -> AsyncGenerator[Edit]:
            for key in keys:
                if before := self._notes.of(key).before:
                    yield Edit(Memory(key), [], before=before)

        with store.foreseen(lambda _: None):  # an undo of this undo reverses the copy alone
            async with aclosing(store.edit(edits())) as results:
                async for result in results:
                    if result.failure is not None:
                        self.report.failures.append((result.key, result.failure))

    async def count(self) -> None:
        """Count the memories to restore, for a dry run."""
        planned, where = self.report.planned, Selection(keys=self._keys)
        async with (
            make_store(self._archive) as source,
            aclosing(source.list_memories(where)) as infos,
        ):
            async for info in infos:
                planned.memories += 1
                planned.restored += info.messages


class CopyUndoRun(UndoRun):
    """A run that undoes a copy: it restores replaced memories, then removes added messages."""

    def __init__(self, restoring: RestoreRun, *args: Any, **more: Any) -> None:
        """``args`` and ``more`` are the arguments of ``UndoRun``."""
        super().__init__(*args, **more)
        self._restoring = restoring
        self._reverses = False
        """True if there is something to undo in memories that the copy did not replace."""

    @property
    def id(self) -> str | None:
        return super().id or self._restoring.id

    async def plan(self, store: Store) -> bool:
        """Plan both the restoration and the removal; return False if there is nothing to change.

        A refusal of either comes before the first change.
        """
        self.where = self.where.without(await self._restoring.plan(store, self.where))
        self._reverses = await super().plan(store)
        if self.dry_run:
            await self._restoring.count()
        return self._reverses or self._restoring.something

    def left(self) -> str:
        if self.begun:
            return super().left()
        waiting = self.report.planned.memories - self.report.done.memories
        return str(self._restoring.left + waiting or "")

    async def carry_out(self, store: Store) -> None:
        await self._restoring.carry_out(store)
        if self._reverses:
            await super().carry_out(store)


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
        for edit in read_changes(path, messages=False):
            key = edit.memory.key
            if key in keys:
                if edit.offset == 0:
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
