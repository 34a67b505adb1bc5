"""The action ``delete``: the selected messages are deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from memctl.errors import Failure
from memctl.location import Location
from memctl.model import Edit, MemoryKey, Page, StoredMessage, ToolPairPolicy
from memctl.ops.change.apply import tidy, without_held
from memctl.ops.change.delete import DeleteRun, plan_deletions
from memctl.ops.retain.actions import Acted, Found, MessageAction
from memctl.ops.retain.guard import Guard
from memctl.selection import Selection
from memctl.store import Store


class DeletionAction(MessageAction):
    """The action of a policy that deletes messages, as ``memctl delete`` does."""

    async def pages(self, store: Store, found: Found) -> AsyncGenerator[Page]:
        why = self.around.options.holds.read(store).failure
        planned = plan_deletions(store, self.policy.where, self.policy.pairs)
        edits = tidy(without_held(planned, why, found.held))
        async with aclosing(edits):
            async for edit in edits:
                yield _page(edit)
                del edit

    async def carry_out(self, archive: Location, acted: Acted) -> None:
        with Guard() as guard:
            await guard.read(archive, self.around.options.observer)
            run = DeleteRun(
                self.record(archive),
                self.policy.where,
                self.policy.pairs,
                options=self.options(),
                warn_parted=True,
            )
            left: Counter[MemoryKey] = Counter()
            held: dict[MemoryKey, Failure] = {}
            find = run.planner

            def plan(store: Store, where: Selection) -> AsyncGenerator[Edit]:
                why = self.around.options.holds.read(store).failure
                return without_held(find(store, where), why, held)

            async def guarded(store: Store, where: Selection) -> AsyncGenerator[Edit]:
                if self.policy.pairs is not ToolPairPolicy.SPLIT:
                    where = where.without(await _incomplete(guard, plan(store, where), left))
                async with aclosing(guard.narrow(plan(store, where), left)) as edits:
                    async for edit in edits:
                        yield edit

            run.planner = guarded
            await self.execute(run, acted, left)
            acted.failures += held.items()


async def _incomplete(
    guard: Guard, edits: AsyncGenerator[Edit], left: Counter[MemoryKey]
) -> frozenset[MemoryKey]:
    """Return the memories from which the edits delete a message that the archive lacks.

    Such a memory stays as it is: a part of the deletion could split a tool call from its result.
    """
    found: set[MemoryKey] = set()
    async with aclosing(edits):
        async for edit in edits:
            if not guard.is_whole(edit):
                found.add(edit.memory.key)
                left[edit.memory.key] += 1
    return frozenset(found)


def _page(edit: Edit) -> Page:
    messages = [
        StoredMessage(change.id, change.message, change.old or (), change.position)
        for change in edit.changes
    ]
    return Page(edit.memory, messages, edit.offset, edit.last)
