"""The action ``offload``: large contents of the selected messages become files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from memctl.dialects.view import Dialect, local_time
from memctl.errors import Loss
from memctl.holds import HELD
from memctl.model import Edit
from memctl.numbers import count
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.run import OffloadRun
from memctl.ops.offload.slim import Rule
from memctl.ops.retain.actions import Acted, Found, InPlaceAction
from memctl.ops.retain.messages import RunAction
from memctl.selection import Selection
from memctl.store import OpenMode, Store


class OffloadAction(RunAction, InPlaceAction):
    """The action of a policy that offloads, as ``memctl offload`` does.

    There is no archive: a content is in its file before it leaves its message.
    """

    async def plan(self) -> Found:
        run = self._run(dry_run=True)
        found = Found()
        planner = run.planner

        async def counted(store: Store, where: Selection) -> AsyncGenerator[Edit]:
            async with aclosing(planner(store, where)) as edits:
                async for edit in edits:
                    _count(found, store.dialect, edit)
                    yield edit

        run.planner = counted
        async with self.opened(OpenMode.READ) as store:
            await run.execute(store)
        failures = dict(run.report.failures)
        found.held = {key: one for key, one in failures.items() if one.code == HELD}
        found.damaged = {key: one for key, one in failures.items() if one.code != HELD}
        found.memories = run.report.planned.memories
        return found

    async def act(self, acted: Acted) -> None:
        await self.execute(self._run(dry_run=False), acted)

    def _run(self, *, dry_run: bool) -> OffloadRun:
        policy = self.policy
        rule = Rule(policy.larger, policy.keep, policy.url_prefix)
        run = OffloadRun(
            *(self.record(), policy.where, rule, Blobs(policy.blobs)),
            self.options(dry_run=dry_run),
            policy.limit,
        )

        def approve() -> bool:
            if run.report.planned.deleted > run.most:
                planned = count(run.report.planned.deleted, run.report.noun)
                raise Loss(
                    f"{planned} would change, more than max_delete {policy.limit_text} of "
                    f"{self.location.label}",
                    "nothing was changed; preview with --dry-run",
                )
            return True

        run.approve = approve
        return run


def _count(found: Found, dialect: Dialect, edit: Edit) -> None:
    for change in edit.changes:
        if change.new is None:
            time: str | None = None
            with suppress(ValueError):  # a message that is not JSON
                time = dialect.role_and_time(change.message)[1]
            found.add(len(change.message), local_time(time))
