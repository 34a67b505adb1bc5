"""``memctl migrate``: copies memories between any two stores."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._migration import Migration
from memctl.commands._options import (
    STORE_HELP,
    BackupOption,
    ConflictOption,
    DryRunOption,
    FormatOption,
    JobsOption,
    JsonOption,
    LossyOption,
    PathOption,
    build,
    selecting,
)
from memctl.commands._recording import recorded
from memctl.commands._reports import CopyOutcome
from memctl.commands._stores import narrowed, readable
from memctl.commands._transfer import (
    RETRIES,
    TIMEOUT,
    RateOption,
    RetriesOption,
    TimeoutOption,
    transfer,
)
from memctl.errors import UsageError
from memctl.model import OnConflict
from memctl.ops.copy import CopyOptions
from memctl.output.terminal import Format
from memctl.selection import Selection


@selecting
def migrate(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help=STORE_HELP)],
    target: Annotated[str, typer.Argument(metavar="DST", help=STORE_HELP)],
    where: Selection,
    on_conflict: ConflictOption = OnConflict.FAIL,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare both sides afterwards.")
    ] = True,
    checksum: Annotated[
        bool,
        typer.Option(
            "--checksum",
            help="Find what is new by content too, not by ids, order, marks and summary alone.",
        ),
    ] = False,
    lossy: LossyOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is new until stopped.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often --follow looks."),
    ] = 5.0,
    jobs: JobsOption = 1,
    retries: RetriesOption = RETRIES,
    timeout: TimeoutOption = TIMEOUT,
    rate_limit: RateOption = None,
    path: PathOption = None,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Copy memories from one store to another; again, only what is new.

    A memory passes whole or not at all. One that the target holds in part gets the rest; one that
    it holds otherwise is a conflict. The source is never changed. With --follow, the first Ctrl-C
    (or SIGTERM) has it copy once more what is new, and end; the second stops it at once.
    """
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    options = CopyOptions(on_conflict, lossy, jobs, checksum)
    patience = transfer(retries, timeout, rate_limit)
    with readable(run.locate(source), where, path) as origin:
        destination = narrowed(run.locate(target), where, path)
        if follow:
            _refuse_to_follow(where, dry_run=dry_run, stdio="-" in (source, target))
        outcome = CopyOutcome("migrate", origin.label, destination.label, dry_run=dry_run)
        recording = recorded(run, "migrate", target, destination) if backup else None
        migration = Migration(run, outcome, origin, where, options, patience, recording)
        migration.run(destination, verify=verify, interval=interval if follow else None)


def _refuse_to_follow(where: Selection, *, dry_run: bool, stdio: bool) -> None:
    """Objects to what has no end to wait for.

    Raises:
        UsageError: see there.
    """
    if dry_run:
        raise UsageError("--follow and --dry-run do not go together", "leave one of them out")
    if stdio:
        raise UsageError("--follow needs stores that stay, and - is none", "name a file or a URL")
    if not where.whole:
        raise UsageError(
            "--follow copies whole memories", "select by --user and --session, or not at all"
        )


def command() -> TyperCommand:
    """The parser of this command."""
    return build(migrate, "migrate")
