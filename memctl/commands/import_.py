"""``memctl import``: loads a state_dict, session states or an archive into a store."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from memctl import api
from memctl.commands._context import Run
from memctl.commands._copy import carry_out
from memctl.commands._journal import record, run_options
from memctl.commands._options import (
    TRANSFER,
    AllMessagesOption,
    BackupOption,
    ConflictOption,
    DryRunOption,
    EmbedderOption,
    LossyOption,
    MaxDeleteOption,
    PathOption,
    StoreArgument,
    YesOption,
    takes_options,
)
from memctl.commands._parameters import argument
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import (
    named_embedder,
    narrowed,
    readable,
    wait_for,
)
from memctl.errors import NotFound, UsageError
from memctl.location import Location, visible
from memctl.model import OnConflict
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.copy.migration import FILES
from memctl.ops.copy.restored import restored
from memctl.ops.export.destination import PLACE
from memctl.ops.retry import Transfer
from memctl.ops.stop import Stop
from memctl.reports.copy import RestoredMemory
from memctl.selection import Selection
from memctl.storekit.prunable import PrunedArchive
from memctl.text.values import deletion_limit


@partial(takes_options, divisible=True, changes=True)
def import_(
    run: Run,
    file: Annotated[
        str, argument("FILE", "A .json state, a folder of them, an archive, or - for stdin.")
    ],
    store: StoreArgument,
    where: Selection,
    on_conflict: ConflictOption = OnConflict.FAIL,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    lossy: LossyOption = False,
    all_messages: AllMessagesOption = False,
    embedder: EmbedderOption = None,
    transfer: Transfer = TRANSFER,
    path: PathOption = None,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
) -> None:
    """Load an archive, a state_dict or session states into a store.

    A state_dict does not name its memory: set --user and --session. For an archive or a folder,
    these options select memories. A damaged file is refused before anything is written.
    --on-conflict replace asks before it removes messages; scripts use --yes.

    Examples:
      memctl import backup.ndjson.zst restored.db
      memctl import kyoto.json agents.db --user ada --session kyoto
      memctl import sessions/ agents.db --dry-run
    """
    if run.shard is not None:
        file = file.replace(PLACE, run.shard.file_name)
        if run.shard.file_name in file:
            # The file is the part, whatever it has: a fleet is divided otherwise than one store.
            run.shard = run.shard._replace(stores=run.shard.of)
            where = replace(where, shard=run.shard)
    with readable(_located(run, file), where, path) as origin:
        if origin.kind not in FILES:
            hint = "copy a store with: memctl migrate"
            if run.locate(store).kind in FILES:
                exchanged = f"memctl import {shlex.quote(store)} {shlex.quote(file)}"
                hint = f"the file comes first: {exchanged}; {hint}"
            raise UsageError(f"{origin.label} is not a file to import", hint)
        destination = narrowed(run.locate(store), where, path)
        outcome = CopyOutcome("import", origin.label, destination.label, dry_run=dry_run)
        work = partial(
            api.copy,
            origin,
            where=where,
            options=CopyOptions(
                on_conflict,
                lossy,
                checksum=True,  # the file may repair messages of the store
                limit=deletion_limit(max_delete),
                all_messages=all_messages,
            ),
            embedder=named_embedder(run, embedder),
            verify=False,
            record=record(run, "import", store, destination),
        )
        options = run_options(run, backup=backup and destination.kind != "stdio", dry_run=dry_run)
        asks = on_conflict is OnConflict.REPLACE and not yes
        if dry_run and origin.kind == "archive" and where.shard is None:
            outcome.plan = _plan(run, origin, destination, where)
        try:
            carry_out(run, outcome, destination, transfer, work, options, asks=asks)
        except PrunedArchive:
            _put_back(run, origin, store, where, on_conflict, dry_run=dry_run)


def _plan(
    run: Run, archive: Location, store: Location, where: Selection
) -> list[RestoredMemory] | None:
    """Return what the memories of a store would get; None for a new store, and of pruned rows."""
    try:
        found = wait_for(api.compare(archive, store, where, observer=run.output))
    except (NotFound, PrunedArchive):
        return None
    return restored(found.differences)


def _put_back(
    run: Run,
    archive: Location,
    store: str,
    where: Selection,
    on_conflict: OnConflict,
    *,
    dry_run: bool,
) -> None:
    """Put the rows of an archive of a prune back, and write the report of the import."""
    if where != where.around or on_conflict is not OnConflict.FAIL:
        raise UsageError(
            f"{archive.label} is an archive of pruned rows: they are put back, and no row is "
            "replaced",
            "select by --session, without --on-conflict",
        )
    destination, options = run.locate(store), run_options(run, store, dry_run=dry_run)
    outcome = CopyOutcome("import", archive.label, destination.label, dry_run=dry_run)
    outcome.copied.noun = "checkpoint"
    run.output.printout = outcome.printout()
    work, stop = partial(api.restore_checkpoints, archive, destination, where, run=options), Stop()
    wait_for(work(stop=stop, report=outcome.copied), stop)
    outcome.ended = True
    if error := outcome.error():
        raise error
    run.output.emit()


def _located(run: Run, file: str) -> Location:
    """Return the location of the file to import.

    Raises:
        NotFound: the file does not exist; its extension may be unknown.
        UsageError: as ``Run.locate``.
    """
    try:
        return run.locate(file)
    except UsageError:
        path = Path(file)
        if path.suffix and not {":", "@"} & {*file} and not path.exists():
            hint = f"check the path: {path.absolute()}"
            raise NotFound(f"{visible(file)} does not exist", hint) from None
        raise
