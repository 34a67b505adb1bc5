"""``memctl restore``: puts back what an archive has, and a store lost or changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from memctl import api
from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._copy import carry_out
from memctl.commands._journal import record, run_options
from memctl.commands._options import (
    TRANSFER,
    DryRunOption,
    LossyOption,
    PathOption,
    SessionOption,
    StoreArgument,
    UserOption,
    YesOption,
    takes_options,
)
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import narrowed, readable, wait_for
from memctl.errors import UsageError
from memctl.location import Location, visible
from memctl.model import MemoryKey, OnConflict
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.ops.copy.compare import Difference
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.retry import Transfer
from memctl.output.tables import Column, Grid, cell
from memctl.reports.copy import RestoredMemory, RestoreReport
from memctl.selection import Selection
from memctl.storekit.checkpoints import CheckpointArchive
from memctl.text.numbers import count
from memctl.text.words import natural

_STAY = frozenset({"message-extra", "memory-extra", "settings", "path", "expiry"})
"""The differences that a restore leaves: what the archive lacks, and what agents set anew."""


@partial(takes_options, changes=True)
def restore(
    run: Run,
    archive: Annotated[
        str,
        typer.Argument(metavar="ARCHIVE", help="An archive, such as nightly@2026-11-25."),
    ],
    store: StoreArgument,
    user: UserOption = None,
    session: SessionOption = None,
    yes: YesOption = False,
    lossy: LossyOption = False,
    transfer: Transfer = TRANSFER,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Put back what an archive has, and a store lost or changed.

    Shows first what would change: messages that come back, messages that differ and get the
    content of the archive, and messages that only the store has, which stay. Asks; scripts use
    --yes. memctl undo reverts a restore.

    Examples:
      memctl restore nightly@2026-11-25 prod --user ada --session kyoto
      memctl restore backup.ndjson.zst agents.db --dry-run
    """
    if not dry_run:
        refuse_unasked(yes)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    with readable(run.locate(archive), where, path) as origin:
        if origin.kind != "archive":
            raise UsageError(
                f"{origin.label} is not an archive",
                "load a state with memctl import; copy a store with memctl migrate",
            )
        destination = narrowed(run.locate(store), where, path)
        try:
            plan = wait_for(_plan(run, origin, destination, where))
        except CheckpointArchive:
            raise UsageError(
                f"{origin.label} is an archive of checkpoints",
                f"put whole threads back with: memctl import {visible(archive)} {visible(store)}",
            ) from None
        outcome = RestoreOutcome(
            "restore", origin.label, destination.label, dry_run=dry_run, plan=plan
        )
        if dry_run or not plan:
            outcome.ended = True
            run.output.printout = outcome.printout()
            run.output.finish()
            return
        if not yes:
            run.output.show(_drawn(plan))
            confirm(f"restore {count(len(plan), 'memory')} of {visible(destination.label)}?")
        work = partial(
            api.copy,
            origin,
            where=replace(where, keys=frozenset(row.key for row in plan)),
            options=CopyOptions(OnConflict.MERGE, lossy, checksum=True),
            verify=False,
            record=record(run, "restore", store, destination),
        )
        options = run_options(run, dry_run=False)
        carry_out(run, outcome, destination, transfer, work, options, asks=False)


async def _plan(
    run: Run, archive: Location, store: Location, where: Selection
) -> list[RestoredMemory]:
    """Return what a restore changes in each memory; memories that stay as they are are left out."""
    found = await api.compare(archive, store, where, must_exist=True, observer=run.output)
    by_key: dict[MemoryKey, list[Difference]] = {}
    for difference in found.differences:
        by_key.setdefault(difference.key, []).append(difference)
    return [
        _restored(key, some)
        for key, some in sorted(by_key.items(), key=lambda item: natural(item[0]))
        if any(one.code not in _STAY for one in some)
    ]


def _restored(key: MemoryKey, differences: list[Difference]) -> RestoredMemory:
    codes = Counter(one.code for one in differences)
    changed = {one.id for one in differences if one.code in ("content", "marks", "order")}
    return RestoredMemory(
        user=key.user,
        session=key.session,
        path=key.part or msgspec.UNSET,
        whole=bool(codes["memory-missing"]),
        back=codes["message-missing"],
        changed=len(changed),
        stay=codes["message-extra"],
        summary=bool(codes["summary"]),
    )


@dataclass
class RestoreOutcome(CopyOutcome):
    """The report of ``restore``: what each memory gets back, then the copy."""

    plan: list[RestoredMemory] = field(default_factory=list)

    def report(self) -> RestoreReport:
        """Return the report as it is now."""
        fields = msgspec.structs.asdict(super().report())
        return RestoreReport(**fields, plan=self.plan)

    def _table(self) -> RenderableType | None:
        if not self.plan:
            return Text("nothing to restore: the store has all that the archive has")
        if self.dry_run:
            return _drawn(self.plan)
        return super()._table()


def _drawn(plan: list[RestoredMemory]) -> RenderableType:
    """Draw the first memories of a plan: messages to put back, to change and to keep."""
    rows = plan[:SHOWN_MEMORIES]
    columns = [
        Column("user", [cell(row.user) for row in rows], shrinks=True),
        Column("session", [cell(row.session) for row in rows], shrinks=True),
    ]
    if any(row.key.part for row in rows):
        columns.append(Column("path", [cell(row.key.part) for row in rows], shrinks=True))
    columns += [
        Column(
            "comes back",
            [Text("all" if row.whole else f"{row.back:,}") for row in rows],
            right=True,
        ),
        Column("differs", [Text(f"{row.changed:,}") for row in rows], right=True),
        Column("only here, stays", [Text(f"{row.stay:,}") for row in rows], right=True),
    ]
    if any(row.summary for row in rows):
        columns.append(Column("summary", [Text("replaced" * row.summary) for row in rows]))
    if (hidden := len(plan) - len(rows)) > 0:
        return Group(
            Grid(columns), Text(f"and {count(hidden, 'memory')} more: --json lists all", "dim")
        )
    return Grid(columns)
