"""The action ``prune``: old checkpoints of LangGraph, or memory files of AgentScope Java, go.

The archive has their rows as they are in the database (see ``memctl.storekit.prunable``); ``memctl
import`` puts them back.
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
from memctl.registry import read_pruned, write_pruned
from memctl.store import Deletion, OpenMode, Store
from memctl.storekit.prunable import Prunable, PrunedRow, noun_of

if TYPE_CHECKING:
    from memctl.registry import PrunedWriter

_LINES = 1000


class PruneAction(ArchivingAction):
    """The action of a policy that prunes groups, such as the threads of LangGraph."""

    async def plan(self) -> Found:
        async with self.opened() as store:
            return await self._counted(store, None)

    async def export(self, archive: Location) -> Found:
        async with self.opened() as store:
            engine = store.prunable().engine
            await refuse_side_effects(store, self.policy.where, Deletion.MEMORIES)
            begin = partial(write_pruned, archive, store.label, engine)
            try:
                with await in_thread(begin) as writer:
                    found = await self._counted(store, writer)
                    if found.messages:
                        await in_thread(writer.commit)
            except NotFound as error:  # the folder or the bucket of the archive
                raise Unavailable(error.message, error.hint) from error
            return found

    async def _counted(self, store: Store, writer: PrunedWriter | None) -> Found:
        """Count the old items, and write their rows to the archive, if there is one."""
        await store.check_integrity(self.policy.where, complete=True)
        prunable, holds = store.prunable(), self.around.options.holds.read(store)
        found = Found(noun_of(prunable.engine))
        description = "planning" if writer is None else "archiving"
        with self.around.options.observer.progress(description) as progress:
            async with aclosing(prunable.old(self.policy.where)) as old:
                async for one in old:
                    key = prunable.key_of(one.group)
                    if (failure := holds.failure(key)) is not None:
                        found.held[key] = failure
                    elif one.failure is not None:
                        found.damaged[key] = one.failure
                    elif one.rows is not None:
                        if writer is not None:
                            writer.group(one.group)
                        await self._rows(key, one.rows, found, writer)
                        progress.advance(memories=1, messages=one.number)
        return found

    async def _rows(
        self,
        key: MemoryKey,
        rows: AsyncGenerator[PrunedRow],
        found: Found,
        writer: PrunedWriter | None,
    ) -> None:
        """Count the rows of a group, and write them to the archive, if there is one."""
        limit = self.policy.limit
        found.memories += 1
        async with aclosing(rows):
            async for row in rows:
                if row.is_item:
                    found.add(len(row.line), row.moment)
                else:
                    found.bytes += len(row.line)
                self.refuse_many(found, inf if limit is None else limit[0])
                if row.failure is not None:
                    found.damaged[key] = row.failure
                elif writer is not None and not await in_thread(partial(writer.row, row.line)):
                    text = f"a row is too large for an archive: its {found.noun} stays"
                    found.damaged[key] = Failure("too-large", text)

    async def carry_out(self, archive: Location, acted: Acted) -> None:
        with DigestSet() as rows:
            groups = await in_thread(partial(_read, archive, rows))
            async with self.opened(OpenMode.CHANGE) as store:
                await lock(store)
                await refuse_side_effects(store, self.policy.where, Deletion.MEMORIES)
                prunable = store.prunable()
                stop, observer = self.around.stop, self.around.options.observer
                with stop.cooperative_while(), observer.progress("pruning") as progress:
                    for group in groups:
                        stop.end_if_asked()
                        await self._prune(store, prunable, group, rows, acted)
                        progress.advance(memories=1)

    async def _prune(
        self,
        store: Store,
        prunable: Prunable,
        group: str,
        rows: DigestSet,
        acted: Acted,
    ) -> None:
        key, where = prunable.key_of(group), self.policy.where
        if not where.has_key(key):
            acted.left += 1
            return
        if (held := self.around.options.holds.read(store).failure(key)) is not None:
            acted.failures.append((key, held))
            return
        result = await prunable.prune(group, where.until, lambda line: rows.has(digest(line)))
        if result.failure is not None:
            acted.failures.append((key, result.failure))
        acted.memories += bool(result.items)
        acted.messages += result.items
        acted.left += bool(result.left)


def _read(archive: Location, rows: DigestSet) -> list[str]:
    """Check a whole archive, add the digests of its rows to ``rows``, and return its groups.

    Raises:
        NotFound: there is no such archive.
        BadData: the archive is damaged.
    """
    groups: dict[str, None] = {}
    with read_pruned(archive) as reader:
        found = reader.rows()
        while some := [*islice(found, _LINES)]:
            rows.add(digest(line) for _, line in some)
            groups |= dict.fromkeys(group for group, _ in some)
    return [*groups]
