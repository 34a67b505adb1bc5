"""``memctl delete``: deletes selected messages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from memctl import api
from memctl.commands._change import (
    change,
    confirm_deletion,
    refuse_unasked,
    refuse_unclear,
)
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    MaxDeleteOption,
    PathOption,
    StoreArgument,
    YesOption,
    divisible_change,
    selecting,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable
from memctl.errors import UsageError
from memctl.location import redact, visible
from memctl.model import ToolPairPolicy
from memctl.selection import Selection
from memctl.text.values import data_size


@divisible_change
def delete(
    run: Run,
    store: StoreArgument,
    where: Selection,
    all_: Annotated[bool, selecting("--all", "Select every message of the store.")] = False,
    keep_last: Annotated[
        int | None, selecting("--keep-last N", "Keep the newest N messages of each memory.", min=1)
    ] = None,
    keep_tool_pairs: Annotated[
        bool,
        selecting("--keep-tool-pairs", "Keep a tool call if its result stays, and the reverse."),
    ] = False,
    with_tool_pairs: Annotated[
        bool,
        selecting(
            "--with-tool-pairs", "Also delete the other half of each tool call, and its reasoning."
        ),
    ] = False,
    larger_than: Annotated[
        str | None,
        selecting(
            "--larger-than SIZE", "Only sessions of coding agents larger than SIZE, such as 50MB."
        ),
    ] = None,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Delete the selected messages.

    Shows what would be deleted, then asks; scripts use --yes. memctl undo restores the messages.
    If nothing matches, that is not an error.

    Examples:
      memctl delete agents.db --mark hint --older-than 7d --dry-run
      memctl delete prod --user ada --keep-last 100
      memctl delete prod --older-than 90d --max-delete 10% --yes
    """
    if larger_than is not None:
        where = replace(where, larger=data_size("--larger-than", larger_than))
    refuse_unclear(where, all_=all_, chosen=keep_last is not None or bool(run.project))
    pairs = _pairs(keep=keep_tool_pairs, take=with_tool_pairs)
    options = run_options(run, store, backup=backup, dry_run=dry_run, max_delete=max_delete)
    if not dry_run:
        refuse_unasked(yes)
    location = changeable(run, store, where, path)
    if keep_last is not None:
        where = replace(where, spare=keep_last)
    work = partial(api.delete, location, where, pairs=pairs, warn_parted=True)
    outcome = ChangeOutcome[Any](location)

    def ask() -> None:
        expected = redact(store) if all_ else None
        about = outcome.changes, "delete", visible(location.label)
        confirm_deletion(run.output, *about, expected=expected)

    change(run.output, outcome, work, options, None if yes else ask)


def _pairs(*, keep: bool, take: bool) -> ToolPairPolicy:
    if keep and take:
        raise UsageError(
            "--keep-tool-pairs and --with-tool-pairs cannot be combined", "leave one of them out"
        )
    return ToolPairPolicy.KEEP if keep else ToolPairPolicy.DELETE if take else ToolPairPolicy.SPLIT
