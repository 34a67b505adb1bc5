"""Putting back memories that a run replaced whole, by a copy from the archive that it kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from memctl.commands._context import Run
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import opened, record, wait_for
from memctl.errors import Failure
from memctl.location import Location
from memctl.model import MemoryKey, OnConflict
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.report import CopyReport
from memctl.ops.undo import unchanged_since_run
from memctl.recording import Recording
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.locks import lock_owner


class PuttingBack:
    """One such copy, which can be undone in its turn."""

    def __init__(
        self, run: Run, outcome: ChangeOutcome, archive: Path, parts: Sequence[Path], undoes: str
    ) -> None:
        """``undoes`` is the run that replaced the memories; ``parts`` say by what."""
        self._run = run
        self._outcome = outcome
        self._parts = parts
        self._undoes = undoes
        self._archive = Location("archive", str(archive), path=archive)

    def run(self, location: Location, argument: str, where: Selection) -> frozenset[MemoryKey]:
        """Puts the selected memories back, as far as they are as the run left them; names them.

        Raises:
            MemctlError: see ``copy``.
        """
        recording = Recording(
            record(self._run, "undo", argument, location), self._run.configuration().undo
        )
        recording.run.undoes = self._undoes
        report = CopyReport()
        try:
            keys = wait_for(self._put_back(location, where, recording, report))
        finally:
            recording.end(report)
        if recording.run.id:
            self._outcome.run = recording.run.id
        return keys

    async def _put_back(
        self, location: Location, where: Selection, recording: Recording, report: CopyReport
    ) -> frozenset[MemoryKey]:
        dry_run = self._outcome.dry_run
        target = make_store(location, OpenMode.READ if dry_run else OpenMode.CHANGE)
        async with make_store(self._archive) as source, opened(target, self._run.output):
            if not dry_run:
                await target.lock(lock_owner())
            async with aclosing(source.headers(where)) as memories:
                keys = frozenset([memory.key async for memory in memories])
            good = await unchanged_since_run(target, self._parts, keys)
            changes = self._outcome.changes
            changes.failures += [
                (key, Failure("conflict", "it has changed since it was replaced"))
                for key in sorted(keys - good)
            ]
            if dry_run:
                await self._count(source, good)
            elif good:
                recording.begin()
                options = CopyOptions(OnConflict.REPLACE, checksum=True)
                chosen = Selection(keys=good)
                await copy(source, target, chosen, options, report, recorder=recording)
                for counted in (changes.planned, changes.done):
                    counted.memories += report.memories.written
                    counted.restored += report.messages.written
                    counted.deleted += report.messages.deleted
                changes.failures += report.failures
            return keys

    async def _count(self, source: Store, keys: frozenset[MemoryKey]) -> None:
        planned = self._outcome.changes.planned
        async with aclosing(source.list_memories(Selection(keys=keys))) as infos:
            async for info in infos:
                planned.memories += 1
                planned.restored += info.messages
