"""The action ``prune``: old checkpoints of LangGraph are deleted.

The archive has the rows of the checkpoints as they are in the database (see
``memctl.storekit.checkpoints``); ``memctl import`` puts them back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from memctl.errors import Failure, NotFound, Unavailable
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.ops.lock import lock
from memctl.ops.retain.actions import Acted, ArchivingAction, Found
from memctl.ops.retain.guard import DigestSet, digest
from memctl.ops.side_effects import refuse_side_effects
from memctl.registry import read_checkpoints, write_checkpoints
from memctl.store import Deletion, OpenMode, Store
from memctl.storekit.checkpoints import CheckpointRow, Checkpoints, OldCheckpoints

if TYPE_CHECKING:
    from memctl.registry import CheckpointWriter

NOUN = "checkpoint"
_LINES = 1000


class PruneAction(ArchivingAction):
    """The action of a policy that prunes the threads of a LangGraph store."""

    async def plan(self) -> Found:
        async with self.opened() as store:
            return await self._counted(store, None)

    async def export(self, archive: Location) -> Found:
        async with self.opened() as store:
            engine = store.checkpoints().engine
            await refuse_side_effects(store, self.policy.where, Deletion.MEMORIES)
            begin = partial(write_checkpoints, archive, store.label, engine)
            try:
                with await in_thread(begin) as writer:
                    found = await self._counted(store, writer)
                    if found.messages:
                        await in_thread(writer.commit)
            except NotFound as error:  # the folder or the bucket of the archive
                raise Unavailable(error.message, error.hint) from error
            return found

    async def _counted(self, store: Store, writer: CheckpointWriter | None) -> Found:
        """Count the old checkpoints, and write their rows to the archive, if there is one."""
        await store.check_integrity(self.policy.where, complete=True)
        found, holds = Found(NOUN), self.around.options.holds.read(store)
        old = self._old(store.checkpoints())
        description = "planning" if writer is None else "archiving"
        with self.around.options.observer.progress(description) as progress:
            async with aclosing(old):
                async for thread in old:
                    key = MemoryKey("", thread.thread)
                    if (failure := holds.failure(key)) is not None:
                        found.held[key] = failure
                    elif thread.failure is not None:
                        found.damaged[key] = thread.failure
                    elif thread.rows is not None:
                        await self._thread(key, thread.rows, found, writer)
                        progress.advance(memories=1, messages=thread.number)
        return found

    def _old(self, checkpoints: Checkpoints) -> AsyncGenerator[OldCheckpoints]:
        where = self.policy.where
        return checkpoints.old(where.sessions, where.until)

    async def _thread(
        self,
        key: MemoryKey,
        rows: AsyncGenerator[CheckpointRow],
        found: Found,
        writer: CheckpointWriter | None,
    ) -> None:
        """Count the rows of a thread, and write them to the archive, if there is one."""
        limit = self.policy.limit
        if writer is not None:
            writer.thread(key.session)
        found.memories += 1
        async with aclosing(rows):
            async for row in rows:
                if row.is_checkpoint:
                    found.add(len(row.line), row.moment)
                else:
                    found.bytes += len(row.line)
                self.refuse_many(found, inf if limit is None else limit[0])
                if row.failure is not None:
                    found.damaged[key] = row.failure
                elif writer is not None and not await in_thread(partial(writer.row, row.line)):
                    text = "a row is too large for an archive: its checkpoint stays"
                    found.damaged[key] = Failure("too-large", text)

    async def carry_out(self, archive: Location, acted: Acted) -> None:
        with DigestSet() as rows:
            threads = await in_thread(partial(_read, archive, rows))
            async with self.opened(OpenMode.CHANGE) as store:
                await lock(store)
                await refuse_side_effects(store, self.policy.where, Deletion.MEMORIES)
                checkpoints = store.checkpoints()
                stop, observer = self.around.stop, self.around.options.observer
                with stop.cooperative_while(), observer.progress("pruning") as progress:
                    for thread in threads:
                        stop.end_if_asked()
                        await self._prune(store, checkpoints, thread, rows, acted)
                        progress.advance(memories=1)

    async def _prune(
        self,
        store: Store,
        checkpoints: Checkpoints,
        thread: str,
        rows: DigestSet,
        acted: Acted,
    ) -> None:
        key, where = MemoryKey("", thread), self.policy.where
        if where.sessions and thread not in where.sessions:
            acted.left += 1
            return
        if (held := self.around.options.holds.read(store).failure(key)) is not None:
            acted.failures.append((key, held))
            return
        result = await checkpoints.prune(thread, where.until, lambda line: rows.has(digest(line)))
        if result.failure is not None:
            acted.failures.append((key, result.failure))
        acted.memories += bool(result.checkpoints)
        acted.messages += result.checkpoints
        acted.left += bool(result.left)


def _read(archive: Location, rows: DigestSet) -> list[str]:
    """Check a whole archive, add the digests of its rows to ``rows``, and return its threads.

    Raises:
        NotFound: there is no such archive.
        BadData: the archive is damaged.
    """
    threads: dict[str, None] = {}
    with read_checkpoints(archive) as reader:
        found = reader.rows()
        while some := [*islice(found, _LINES)]:
            rows.add(digest(line) for _, line in some)
            threads |= dict.fromkeys(thread for thread, _ in some)
    return [*threads]
