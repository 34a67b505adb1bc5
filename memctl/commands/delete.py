"""``memctl delete``: takes messages away, by mark or any other selection."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._changing import Changing, at_terminal, confirmed, refuse_unasked
from memctl.commands._context import choose_format, this_run
from memctl.commands._options import (
    STORE_HELP,
    BackupOption,
    DryRunOption,
    FormatOption,
    JsonOption,
    PathOption,
    YesOption,
    build,
    selecting,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import narrowed
from memctl.errors import Loss, UsageError
from memctl.location import redact, visible
from memctl.ops.delete import SplitToolCalls, ToolPairPolicy, count_split_tool_calls, plan_deletions
from memctl.ops.select import whole_memories
from memctl.output import tables
from memctl.output.numbers import count
from memctl.output.terminal import Format, Output
from memctl.selection import Selection
from memctl.store import Store

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)(%?)")


@selecting
def delete(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)],
    where: Selection,
    all_: Annotated[
        bool, typer.Option("--all", help="Every message of the store; goes with no selection.")
    ] = False,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", metavar="N", min=1, help="Leave each memory its newest N."),
    ] = None,
    keep_tool_pairs: Annotated[
        bool,
        typer.Option(
            "--keep-tool-pairs", help="Leave a tool call whose result would stay, and the reverse."
        ),
    ] = False,
    with_tool_pairs: Annotated[
        bool,
        typer.Option(
            "--with-tool-pairs", help="Take the result along with its tool call, and the reverse."
        ),
    ] = False,
    max_delete: Annotated[
        str | None,
        typer.Option(
            "--max-delete", metavar="N|N%", help="Delete nothing where it would be more than this."
        ),
    ] = None,
    yes: YesOption = False,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Delete messages by mark, age or any other selection.

    Exactly the selected ones go, of each memory all or none. What goes is written down first, so
    that memctl undo can put it back. On a terminal it asks; a script says --yes. Nothing
    matched is no error.
    """
    run = this_run(context)
    output = run.output
    choose_format(output, format_, json=json)
    _refuse_unclear(where, all_=all_, keep_last=keep_last)
    pairs = _pairs(keep=keep_tool_pairs, take=with_tool_pairs)
    limit = _limit(max_delete)
    if not dry_run:
        refuse_unasked(yes)
    location = narrowed(run.locate(store), where, path)
    if location.kind == "stdio":
        raise UsageError("- cannot be changed", "name a file or a URL")
    outcome = ChangeOutcome("delete", location.label, dry_run=dry_run)
    chosen = where if keep_last is None else replace(where, spare=keep_last)
    parted = SplitToolCalls()
    changing = Changing(run, outcome, store, location, chosen, backup=backup)

    async def check(opened: Store) -> None:
        if limit is not None:
            changing.most = await _allowed(opened, where, *limit)

    async def after_plan(opened: Store) -> None:
        if number := await count_split_tool_calls(opened, parted):
            outcome.more["parted_tool_calls"] = number
            output.warn(
                f"the selection parts {count(number, 'tool call')} from the result, or the "
                "reverse: --keep-tool-pairs leaves them, --with-tool-pairs takes both"
            )

    def approve(planned: ChangeOutcome) -> bool:
        number = planned.changes.planned.deleted
        if number > changing.most:
            raise Loss(
                f"{count(number, 'message')} would be deleted, more than --max-delete {max_delete}",
                "nothing was deleted; --dry-run shows what it would be",
            )
        if yes or planned.dry_run or not number:
            return True
        return _asked(output, planned, redact(store), whole=all_)

    changing.run(
        lambda opened, some: plan_deletions(opened, some, pairs, parted),
        approve,
        check,
        after_plan,
        asks=not yes and at_terminal(),
    )


def _refuse_unclear(where: Selection, *, all_: bool, keep_last: int | None) -> None:
    """Everything is only meant where it is said.

    Raises:
        UsageError: nothing is selected without ``--all``, or something with it.
    """
    nothing = where == Selection()
    if all_ and not nothing:
        raise UsageError("--all goes with no selection", "leave one of them out")
    if nothing and not all_ and keep_last is None:
        raise UsageError(
            "nothing is selected",
            "--mark, --user, --until 90d ... select; --all deletes everything",
        )


def _pairs(*, keep: bool, take: bool) -> ToolPairPolicy:
    if keep and take:
        raise UsageError(
            "--keep-tool-pairs and --with-tool-pairs do not go together", "leave one of them out"
        )
    return ToolPairPolicy.KEEP if keep else ToolPairPolicy.DELETE if take else ToolPairPolicy.SPLIT


def _limit(text: str | None) -> tuple[float, bool] | None:
    """A number, and whether it is a percentage."""
    if text is None:
        return None
    found = _LIMIT.fullmatch(text.strip())
    if not found or (not found[2] and "." in found[1]):
        raise UsageError(f"--max-delete {text!r} is no limit", "write 500, or 20%")
    return float(found[1]), bool(found[2])


async def _allowed(store: Store, where: Selection, number: float, share: bool) -> float:
    """How many messages may go: of the selected users and sessions, where it is a share."""
    if not share:
        return number
    total = 0
    async with aclosing(store.list_memories(whole_memories(where))) as infos:
        async for info in infos:
            total += info.messages
    return total * number / 100


def _asked(output: Output, planned: ChangeOutcome, store: str, *, whole: bool) -> bool:
    found = planned.changes
    output.show(tables.change_plan(found))
    hidden = found.planned.memories - len(found.planned_by_memory)
    more = f" (and {count(hidden, 'memory')} more)" if hidden else ""
    where = (
        f"{count(found.planned.deleted, 'message')} in {count(found.planned.memories, 'memory')}"
    )
    question = f"delete {where}{more} of {visible(planned.target)}?"
    return confirmed(output, question, expected=store if whole else None)


def command() -> TyperCommand:
    """The parser of this command."""
    return build(delete, "delete")
