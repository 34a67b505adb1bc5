"""Changing what is in a store."""

from __future__ import annotations

from memctl.errors import UsageError
from memctl.library.keeping import kept, run_id
from memctl.library.places import lock
from memctl.library.results import Changed
from memctl.ops import delete as deleting
from memctl.ops import marks as marking
from memctl.ops.apply import ChangeReport, Planner, apply_plan, plan, preview
from memctl.ops.delete import ToolPairPolicy
from memctl.ops.report import SilentProgress
from memctl.ops.select import whole_memories
from memctl.selection import Selection
from memctl.store import Store


async def delete(
    store: Store,
    where: Selection,
    *,
    pairs: ToolPairPolicy = ToolPairPolicy.SPLIT,
    backup: bool = True,
    dry_run: bool = False,
) -> Changed:
    """Deletes the selected messages; of each memory all of them or none.

    The store is opened with ``change``.  With ``dry_run`` nothing is, and the result says what
    would be.

    Raises:
        Busy: another run writes to the store.
        MemctlError: as ``Store.read`` and ``Store.edit``; or there is no room for the backup.
    """
    return await _change(
        *("delete", store, where, lambda one, some: deleting.plan_deletions(one, some, pairs)),
        backup=backup,
        dry_run=dry_run,
    )


async def mark(
    store: Store,
    where: Selection,
    *,
    add: str | None = None,
    remove: str | None = None,
    backup: bool = True,
    dry_run: bool = False,
) -> Changed:
    """Adds a mark to the selected messages, removes one, or puts one in the place of another.

    Raises:
        UsageError: neither is named.
        MemctlError: as ``delete``.
    """
    if add is None and remove is None:
        raise UsageError("no mark is named", "name one to add, to remove, or both")
    remark = marking.MarkChange(add, remove)
    return await _change(
        *("mark", store, where, lambda one, some: marking.plan_marks(one, some, remark)),
        backup=backup,
        dry_run=dry_run,
    )


async def _change(
    command: str,
    store: Store,
    where: Selection,
    planner: Planner,
    *,
    backup: bool,
    dry_run: bool,
) -> Changed:
    """Plans, writes down and carries out."""
    report = ChangeReport()
    await store.check_integrity(whole_memories(where))
    if dry_run:
        await preview(planner(store, where), report, SilentProgress())
        return Changed(report.planned.memories, report.planned.messages)
    await lock(store)
    with kept(command, store, report, backup=backup) as journal:
        if await plan(planner(store, where), journal, report, SilentProgress()):
            await apply_plan(store, where, planner, journal, report)
        done = report.done
        journal.run.counts = {
            "deleted": done.deleted,
            "marked": done.marked,
            "restored": done.restored,
        }
    run = run_id(journal, backup=backup)
    return Changed(report.done.memories, report.done.messages, report.failures, run)
