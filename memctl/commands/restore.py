"""``memctl restore``: puts back what an archive has, and a store lost or changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

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
from memctl.commands._parameters import argument
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import narrowed, readable, wait_for
from memctl.errors import UsageError
from memctl.location import visible
from memctl.model import OnConflict
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.copy.restored import restored
from memctl.ops.retry import Transfer
from memctl.output import restoring
from memctl.selection import Selection
from memctl.storekit.prunable import PrunedArchive
from memctl.text.numbers import count


@partial(takes_options, changes=True)
def restore(
    run: Run,
    archive: Annotated[str, argument("ARCHIVE", "An archive, such as nightly@2026-11-25.")],
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
            found = wait_for(
                api.compare(origin, destination, where, must_exist=True, observer=run.output)
            )
        except PrunedArchive:
            raise UsageError(
                f"{origin.label} is an archive of pruned rows",
                f"put them back with: memctl import {visible(archive)} {visible(store)}",
            ) from None
        plan = restored(found.differences)
        outcome = CopyOutcome(
            "restore", origin.label, destination.label, dry_run=dry_run, plan=plan
        )
        if dry_run or not plan:
            outcome.ended = True
            run.output.printout = outcome.printout()
            run.output.finish()
            return
        if not yes:
            run.output.show(restoring.plan(plan))
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
