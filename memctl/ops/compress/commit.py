"""Committing summaries: written to the journal, then to the store, those together that are ready.

The journal knows of a memory before the store does, so that a run can be taken back as far as it
came, also one that was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from memctl.journal.changes import ChangesWriter
from memctl.model import Edit, MemoryKey, WriteResult
from memctl.ops.change import Changes
from memctl.ops.compress.edits import Done, edits
from memctl.ops.compress.report import CompressReport
from memctl.ops.compress.spool import Spool
from memctl.ops.report import Watching
from memctl.store import Store
from memctl.summarizer import Summarizer

GROUP_MEMORIES = 256
GROUP_MESSAGES = 50_000
GROUP_SECONDS = 0.25
"""No more are committed together: what waits is lost when the machine fails.

Each commit waits for the disk, twice, and takes as long for one memory as for some.
"""


class Commits:
    """Takes what the jobs have done into the store."""

    def __init__(
        self,
        store: Store,
        spool: Spool,
        summarizer: Summarizer,
        writer: ChangesWriter,
        report: CompressReport,
        watching: Watching,
    ) -> None:
        self._store = store
        self._spool = spool
        self._summarizer = summarizer
        self._writer = writer
        self._report = report
        self._watching = watching
        self.begun = False
        """Whether anything is written down, and so may be in the store."""

    async def run(self, ready: asyncio.Queue[Done | None]) -> None:
        """Commits what comes out of the queue, until None does.

        Raises:
            MemctlError: as ``Store.edit``; or the journal has no room, and nothing more was done.
        """
        going_on = True
        while going_on:
            group, going_on = await self._gather(ready)
            if group:
                await self._commit(group)

    async def _gather(self, ready: asyncio.Queue[Done | None]) -> tuple[list[Done], bool]:
        """What is to be committed together, and whether more may come."""
        group: list[Done] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while (done := await ready.get()) is not None:
                    group.append(done)
                    if self._store.features.commits_at_end:
                        continue
                    if _is_enough(group):
                        return group, True
                    if len(group) == 1:
                        limit.reschedule(asyncio.get_running_loop().time() + GROUP_SECONDS)
                return group, False
        return group, True

    async def _commit(self, group: list[Done]) -> None:
        await asyncio.to_thread(self._write_down, group)
        self.begun = True
        waiting = {done.case.memory.key: done for done in group}
        changes = {key: Changes() for key in waiting}
        async with aclosing(self._store.edit(self._edits(group, changes))) as tallies:
            async for tally in tallies:
                self._settle(waiting[tally.key], changes[tally.key], tally)

    def _write_down(self, group: list[Done]) -> None:
        for done in group:
            for edit in edits(done, self._spool.lines(done.case)):
                self._writer.add(edit)
        self._writer.sync()

    async def _edits(
        self, group: list[Done], changes: dict[MemoryKey, Changes]
    ) -> AsyncGenerator[Edit]:
        for done in group:
            for edit in edits(done, self._spool.lines(done.case)):
                changes[edit.memory.key].add(edit)
                yield edit

    def _settle(self, done: Done, changes: Changes, tally: WriteResult) -> None:
        case, report = done.case, self._report
        report.changes.left -= 1
        if tally.failure is not None:
            report.changes.failures.append((tally.key, tally.failure))
            return
        report.changes.done.merge(changes)
        earlier = self._summarizer.count(case.earlier) if case.earlier else 0
        after = case.before - case.tokens - earlier + self._summarizer.count(done.text)
        report.settle(case, after)
        self._watching.advance(memories=1, tokens=case.tokens, cost=report.cost)


def _is_enough(group: list[Done]) -> bool:
    messages = sum([done.case.messages for done in group])
    return len(group) >= GROUP_MEMORIES or messages >= GROUP_MESSAGES
