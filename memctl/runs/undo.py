"""Runs that undo another: its edits reversed, and the memories that it replaced restored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from memctl.dialects.registry import DIALECTS
from memctl.errors import BadData, Failure
from memctl.journal import runs
from memctl.journal.repairs import FILE_NAME
from memctl.location import Location
from memctl.model import Edit, Memory, MemoryKey, OnConflict
from memctl.ops.apply import ChangeCounts, ChangeReport
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.doctor.repair import revert_repairs
from memctl.ops.report import CopyReport
from memctl.ops.undo import plan_undo, same_outlines, unchanged_since_run
from memctl.registry import make_store
from memctl.runs.change import ChangeRun, RunOptions, lock
from memctl.runs.copy import Recording
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.wrappers.converted import shown_as


class UndoRun(ChangeRun):
    """A run that reverses the edits of another, and what the store itself repaired in it."""

    mode = OpenMode.RESTORE

    def __init__(
        self,
        record: runs.Run,
        where: Selection,
        parts: Sequence[Path],
        folder: Path,
        options: RunOptions,
        report: ChangeReport | None = None,
        notes: runs.Notes | None = None,
        *,
        edits_first: bool = False,
        skips_damage: bool = False,
    ) -> None:
        """``parts`` are the files of changes of the run to be undone, ``folder`` is its folder.

        ``notes`` are what its store said of memories.  With ``edits_first`` they are undone before
        the repairs of the store: of a run that is an undo itself, and changed the messages last.
        ``skips_damage`` where the run was a repair, which changed memories beside their damage.
        """
        record.repairs_first = not edits_first
        of = notes.of if notes is not None else lambda _: runs.Note()
        report = report or ChangeReport()
        super().__init__(
            record,
            where,
            lambda store, some: plan_undo(store, parts, some, report.failures, of),
            options,
            report,
        )
        self._folder = folder
        self._repaired = (folder / FILE_NAME).exists()
        self._skips_damage = skips_damage
        self._reverted: int | None = None
        self._before = ChangeCounts(), list(self.report.failures)
        """The counts and the failures of the report before anything was planned."""

    @property
    def nothing(self) -> str:
        if self._repaired and self._reverted is None:
            return "only repairs of the store itself to undo"
        return "no other change to undo" if self._reverted else "nothing to undo"

    def details(self) -> dict[str, Any]:
        """Return how many keys, rows or ids the undo of repairs restored, if there were repairs."""
        return {} if self._reverted is None else {"unmended": self._reverted}

    async def plan(self, store: Store) -> bool:
        """Plan the reverse of the edits."""
        if self._repaired and self.where.named:
            self._observer.warn(
                "repairs of the store itself belong to no single user: they are kept"
            )
            self._repaired = False
        self._before = replace(self.report.planned), list(self.report.failures)
        if self._skips_damage or (self._repaired and store.features.single_session):
            store.skip_damage()  # which the run passed over, or may have put back
        something = await super().plan(_as_recorded(store, self.record))
        return something or self._repaired

    async def carry_out(self, store: Store) -> None:
        """Undo what was done last first: the repairs of the store itself, or the edits."""
        recorded = _as_recorded(store, self.record)
        if self._repaired and self.record.repairs_first:
            await self._revert(store)
            if len(self.report.failures) > len(self._before[1]):
                # What they lack may be back by now, such as a row that others stood behind.
                self.report.planned, self.report.failures[:] = self._before
                await super().plan(recorded)
        if self.report.planned.memories:
            await super().carry_out(recorded)
        if self._repaired and not self.record.repairs_first:
            await self._revert(store)

    async def _revert(self, store: Store) -> None:
        self.begin()
        self._reverted = await revert_repairs(store, self._folder, self.journal.folder)
        if self._reverted:
            self._observer.note(
                f"repairs of the store itself undone: {self._reverted:,} keys, rows or ids restored"
            )


def _as_recorded(store: Store, record: runs.Run) -> Store:
    """Return the store in the dialect in which changes were recorded.

    Raises:
        BadData: this memctl does not know it.
    """
    if not record.dialect:
        return store
    if record.dialect not in DIALECTS:
        raise BadData(
            f"the run was recorded in another dialect, {record.dialect!r}",
            f"upgrade memctl: this version reads {', '.join(DIALECTS)}",
        )
    return shown_as(store, DIALECTS[record.dialect])


class RestoreRun:
    """A run that restores memories which another replaced, from the archive that it kept."""

    def __init__(
        self,
        record: runs.Run,
        archive: Path,
        parts: Sequence[Path],
        notes: runs.Notes,
        options: RunOptions,
        report: ChangeReport | None = None,
    ) -> None:
        """``parts`` are the files of changes of the run that replaced the memories.

        ``notes`` are what its store said of them.
        """
        self._notes = notes
        self.record = record
        self.dry_run = options.dry_run
        self.report = report or ChangeReport()
        self._parts = parts
        self._archive = Location("archive", str(archive), path=archive)
        self._recording = Recording(record, options.keep)

    @property
    def id(self) -> str | None:
        """The id of the run for ``memctl undo``; None where there is nothing to undo."""
        return self.record.id or None

    async def execute(self, store: Store, where: Selection) -> frozenset[MemoryKey]:
        """Restore the selected memories that are as the run left them; return all it replaced.

        Raises:
            MemctlError: as ``copy``.
        """
        copied = CopyReport()
        with self._recording.ended(copied):
            return await self._restore(store, where, copied)

    async def _restore(
        self, store: Store, where: Selection, copied: CopyReport
    ) -> frozenset[MemoryKey]:
        async with make_store(self._archive) as source:
            if not self.dry_run:
                await lock(store)
            async with aclosing(source.headers(where)) as memories:
                keys = frozenset([memory.key async for memory in memories])
            keys = frozenset(key for key in keys if not self._notes.of(key).unchanged)
            recorded = _as_recorded(store, self.record)
            self.record.dialect = ""  # what replaced them is recorded in the dialect of the store
            good = await unchanged_since_run(recorded, self._parts, keys)
            whole = Selection(keys=keys - good)
            as_before = await same_outlines(source, store, whole) if keys - good else frozenset()
            self.report.failures += [
                (key, Failure("conflict", "it has changed since it was replaced"))
                for key in sorted(keys - good - as_before)
            ]
            if self.dry_run:
                await self._count(source, good)
            elif good:
                self._recording.begin(store)
                options = CopyOptions(OnConflict.REPLACE, checksum=True, exact=True)
                chosen = Selection(keys=good)
                await copy(source, store, chosen, options, copied, recorder=self._recording)
                await self._tidy(store, good)
                for counted in (self.report.planned, self.report.done):
                    counted.memories += copied.memories.written
                    counted.restored += copied.messages.written
                    counted.deleted += copied.messages.deleted
                self.report.failures += copied.failures
            return keys

    async def _tidy(self, store: Store, keys: frozenset[MemoryKey]) -> None:
        """Give back to the store what it said of the memories when they were replaced."""

        async def edits() -> AsyncGenerator[Edit]:
            for key in keys:
                if before := self._notes.of(key).before:
                    yield Edit(Memory(key), [], before=before)

        async with aclosing(store.edit(edits())) as results:
            async for result in results:
                if result.failure is not None:
                    self.report.failures.append((result.key, result.failure))

    async def _count(self, source: Store, keys: frozenset[MemoryKey]) -> None:
        planned = self.report.planned
        async with aclosing(source.list_memories(Selection(keys=keys))) as infos:
            async for info in infos:
                planned.memories += 1
                planned.restored += info.messages
