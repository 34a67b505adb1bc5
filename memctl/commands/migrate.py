"""``memctl migrate``: copies memories between any two stores."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._migration import run_copy
from memctl.commands._options import (
    STORE_HELP,
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
from memctl.commands._reports import CopyOutcome
from memctl.commands._stores import narrowed, readable
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
    lossy: LossyOption = False,
    jobs: JobsOption = 1,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Copy memories from one store to another; again, only what is new.

    A memory passes whole or not at all. One that the target holds in part gets the rest; one that
    it holds otherwise is a conflict. The source is never changed.
    """
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    options = CopyOptions(on_conflict, lossy, jobs)
    with readable(run.locate(source), where, path) as origin:
        destination = narrowed(run.locate(target), where, path)
        outcome = CopyOutcome("migrate", origin.label, destination.label, dry_run=dry_run)
        run_copy(run, outcome, origin, destination, where, options, verify=verify)


def command() -> TyperCommand:
    """The parser of this command."""
    return build(migrate, "migrate")
