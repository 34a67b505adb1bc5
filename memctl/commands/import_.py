"""``memctl import``: a state_dict, session states or an archive into a store."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._options import (
    RETRIES,
    STORE_HELP,
    TIMEOUT,
    BackupOption,
    ConflictOption,
    DryRunOption,
    FormatOption,
    JsonOption,
    LossyOption,
    PathOption,
    RateOption,
    RetriesOption,
    TimeoutOption,
    build,
    selecting,
    transfer,
)
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import narrowed, readable, recorded
from memctl.commands.migrate import FILES, Migration
from memctl.errors import UsageError
from memctl.model import OnConflict
from memctl.ops.copy import CopyOptions
from memctl.output.terminal import Format
from memctl.selection import Selection


@selecting
def import_(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A .json state, a folder of them, an archive, or -."),
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)],
    where: Selection,
    on_conflict: ConflictOption = OnConflict.FAIL,
    lossy: LossyOption = False,
    retries: RetriesOption = RETRIES,
    timeout: TimeoutOption = TIMEOUT,
    rate_limit: RateOption = None,
    path: PathOption = None,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Bring a state_dict, session states or an archive into a store.

    A state_dict does not say whose memory it is: --user and --session do. For an archive or a
    folder they select. What is damaged is refused before anything is written.
    """
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    with readable(run.locate(file), where, path) as origin:
        if origin.kind not in FILES:
            raise UsageError(
                f"{origin.label} is not a file to import", "memctl migrate copies stores"
            )
        destination = narrowed(run.locate(store), where, path)
        outcome = CopyOutcome("import", origin.label, destination.label, dry_run=dry_run)
        # A file may be meant to repair what the store holds: that is a matter of content.
        options = CopyOptions(on_conflict, lossy, checksum=True)
        patience = transfer(retries, timeout, rate_limit)
        recording = recorded(run, "import", store, destination) if backup else None
        Migration(run, outcome, origin, where, options, patience, recording).run(destination)


def command() -> TyperCommand:
    """The parser of this command."""
    return build(import_, "import")
