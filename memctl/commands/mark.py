"""``memctl mark``: adds, removes, renames and lists marks."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from memctl.commands._change import change
from memctl.commands._context import choose_format, this_run
from memctl.commands._options import (
    STORE_HELP,
    BackupOption,
    DryRunOption,
    FormatOption,
    JsonOption,
    PathOption,
    selecting,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable, opened, readable, record, run_options, wait_for
from memctl.errors import UsageError
from memctl.location import Location
from memctl.ops import inspect as operation
from memctl.ops.inspect import Group, GroupBy
from memctl.ops.marks import MarkChange, plan_marks
from memctl.output import tables
from memctl.output.report import Report
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.runs.change import ChangeRun, refuse_absent
from memctl.selection import Selection

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)]
MarkArgument = Annotated[str, typer.Argument(metavar="MARK", help="A name, never a pattern.")]


@app.callback()
def _marks() -> None:
    """Add, remove, rename or list marks.

    It does to the selected messages what AgentScope's update_messages_mark does.
    """


@app.command("add")
@selecting
def add(
    context: typer.Context,
    store: StoreArgument,
    mark_name: MarkArgument,
    where: Selection,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Add a mark to the selected messages that lack it."""
    remark = MarkChange(new=_named(mark_name))
    _change(context, store, where, remark, backup, path, dry_run, format_, json)


@app.command("remove")
@selecting
def remove(
    context: typer.Context,
    store: StoreArgument,
    mark_name: MarkArgument,
    where: Selection,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Take a mark off the selected messages."""
    remark = MarkChange(old=_named(mark_name))
    _change(context, store, where, remark, backup, path, dry_run, format_, json)


@app.command("rename")
@selecting
def rename(
    context: typer.Context,
    store: StoreArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The mark that they have.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The mark that they get instead.")],
    where: Selection,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Give the selected messages another mark in the place of one that they have."""
    if old == new:
        raise UsageError("both marks are the same", "name the old one, then the new one")
    remark = MarkChange(_named(new), _named(old))
    _change(context, store, where, remark, backup, path, dry_run, format_, json)


@app.command("list")
@selecting
def list_(
    context: typer.Context,
    store: StoreArgument,
    where: Selection,
    path: PathOption = None,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """List the marks that there are, with how many messages and memories have them."""
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    with readable(run.locate(store), where, path) as location:
        wait_for(_list(run.output, location, where))
    run.output.finish()


async def _list(output: Output, location: Location, where: Selection) -> None:
    async with opened(make_store(location), output) as store:
        groups = await operation.group(store, where, GroupBy.MARK)
        if not groups and where.sessions:  # a user who has no memory has no marks
            totals = await operation.inspect(store, where, operation.Sort.MESSAGES)
            refuse_absent(where, len(totals.memories), store.label, location.options.get("path"))
        output.report = _listed(groups)


def _listed(groups: list[Group]) -> Report:
    def rows() -> list[dict[str, Any]]:
        return [
            {"mark": group.name, "memories": group.memories, "messages": group.messages}
            for group in groups
        ]

    return Report(
        "mark", lambda: {"marks": rows()}, rows, lambda: tables.groups(GroupBy.MARK, groups)
    )


def _named(mark: str) -> str:
    if not mark:
        raise UsageError("the name of the mark is empty", "is a variable unset?")
    if any("\ud800" <= char <= "\udfff" for char in mark):  # what was given is not UTF-8
        raise UsageError(f"the mark {mark!r} is not valid text", "write it in UTF-8")
    return mark


def _change(
    context: typer.Context,
    store: str,
    where: Selection,
    remark: MarkChange,
    backup: bool,
    path: str | None,
    dry_run: bool,
    format_: Format,
    json: bool,
) -> None:
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    location = changeable(run, store, where, path)
    marking = ChangeRun(
        record(run, "mark", store, location),
        where,
        lambda opened, some: plan_marks(opened, some, remark),
        run_options(run, backup=backup, dry_run=dry_run),
    )
    change(run.output, marking, location, ChangeOutcome(marking, location.label))


def command() -> TyperCommand:
    """The parser of this command."""
    built: Any = typer.main.get_command(app)
    assert isinstance(built, TyperGroup)
    return built  # type: ignore[return-value]
