"""The action ``offload``: large contents of the selected messages become files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from memctl.holds import HELD
from memctl.model import Edit
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.run import OffloadRun
from memctl.ops.offload.slim import Rule
from memctl.ops.retain.actions import Acted, Found, InPlaceAction, add_message
from memctl.selection import Selection
from memctl.store import Store


class OffloadAction(InPlaceAction):
    """The action of a policy that offloads, as ``memctl offload`` does.

    Each content is in its file before a message loses the content, so there is no archive.
    """

    async def plan(self) -> Found:
        run, found = self._run(dry_run=True)
        async with self.opened() as store:
            await run.execute(store)
        failures = dict(run.report.failures)
        found.memories = run.report.planned.memories
        found.held = {key: one for key, one in failures.items() if one.code == HELD}
        found.damaged = {key: one for key, one in failures.items() if one.code != HELD}
        return found

    async def act(self, acted: Acted) -> Found:
        run, found = self._run(dry_run=False)
        await self.execute(run, acted)
        found.memories = run.report.planned.memories
        return found

    def _run(self, *, dry_run: bool) -> tuple[OffloadRun, Found]:
        """Return a run of the policy, and what it finds, which is counted while the run plans."""
        policy, found = self.policy, Found()
        limit, limit_name = policy.limit, f"max_delete {policy.limit_text}"
        run = OffloadRun(
            self.record(),
            policy.where,
            Rule(policy.larger, policy.keep, policy.url_prefix),
            Blobs(policy.blobs),
            options=replace(self.options(dry_run=dry_run), limit=limit, limit_name=limit_name),
        )
        planner = run.planner

        async def counted(store: Store, where: Selection) -> AsyncGenerator[Edit]:
            async with aclosing(planner(store, where)) as edits:
                async for edit in edits:
                    if not run.begun:  # a memory that changed meanwhile is planned again
                        for change in edit.changes:
                            if change.new is None:
                                add_message(found, store.dialect, change.message)
                    yield edit

        run.planner = counted
        return run, found
