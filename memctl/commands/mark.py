"""``memctl mark``: adds, removes, renames and lists marks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from memctl import api
from memctl.commands._change import change, refuse_unclear
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    PathOption,
    StoreArgument,
    divisible_change,
    group,
    opens_stores,
    selecting,
)
from memctl.commands._parameters import argument
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable, readable, wait_for
from memctl.errors import UsageError
from memctl.location import Location
from memctl.ops import inspect as operation
from memctl.ops.inspect import GroupBy
from memctl.ops.names import refuse_absent_in
from memctl.ops.observer import opened
from memctl.output import tables
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.registry import make_store
from memctl.reports.change import MarkRow, MarksReport
from memctl.reports.inspect import GroupRow
from memctl.selection import Selection
from memctl.store import refuse_facts

app = group()

MarkArgument = Annotated[str, argument("MARK", "The name of the mark.")]


@app.callback()
def _marks() -> None:
    """Add, remove, rename or list marks.

    Does what AgentScope's update_messages_mark does.

    Examples:
      memctl mark list agents.db
      memctl mark add agents.db reviewed --user ada
    """


@app.command("add")
@divisible_change
def add(
    run: Run,
    store: StoreArgument,
    mark_name: MarkArgument,
    where: Selection,
    all_: Annotated[bool, selecting("--all", "Select every message of the store.")] = False,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Add a mark to the selected messages.

    Messages that already have the mark stay unchanged.

    Examples:
      memctl mark add agents.db reviewed --user ada --dry-run
      memctl mark add agents.db archived --older-than 90d
    """
    marking = partial(api.mark, add=_named(mark_name))
    refuse_unclear(where, all_=all_, chosen=False)
    _change(run, store, where, marking, backup, path, dry_run)


@app.command("remove")
@divisible_change
def remove(
    run: Run,
    store: StoreArgument,
    mark_name: MarkArgument,
    where: Selection,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove a mark from the selected messages.

    Examples:
      memctl mark remove agents.db hint --older-than 7d
      memctl mark remove agents.db reviewed --user ada --session kyoto
    """
    marking = partial(api.mark, remove=_named(mark_name))
    _change(run, store, where, marking, backup, path, dry_run)


@app.command("rename")
@divisible_change
def rename(
    run: Run,
    store: StoreArgument,
    old: Annotated[str, argument("OLD", "The mark to replace.")],
    new: Annotated[str, argument("NEW", "The new mark.")],
    where: Selection,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Replace a mark of the selected messages by another.

    Examples:
      memctl mark rename agents.db hint note
      memctl mark rename agents.db todo done --user ada --dry-run
    """
    if old == new:
        raise UsageError("both marks are the same", "name the old one, then the new one")
    marking = partial(api.mark, add=_named(new), remove=_named(old))
    _change(run, store, where, marking, backup, path, dry_run)


@app.command("list")
@opens_stores
def list_(
    run: Run,
    store: StoreArgument,
    where: Selection,
    path: PathOption = None,
) -> None:
    """List the marks, and how many messages and memories have each.

    Examples:
      memctl mark list agents.db
      memctl mark list agents.db --user ada
    """
    with readable(run.locate(store), where, path) as location:
        wait_for(_list(run.output, location, where))
    run.output.finish()


async def _list(output: Output, location: Location, where: Selection) -> None:
    async with opened(make_store(location), output) as store:
        refuse_facts(store, "marks")
        groups = await operation.group(store, where, GroupBy.MARK)
        if not groups and where.sessions:  # without memories there are no marks
            totals = await operation.inspect(store, where, operation.Sort.MESSAGES)
            await refuse_absent_in(where, len(totals.memories), store)
        output.printout = _listed(groups)


def _listed(groups: list[GroupRow]) -> Printout:
    return Printout(
        lambda: MarksReport(
            marks=[MarkRow(one.value, one.memories, one.messages) for one in groups]
        ),
        lambda: tables.groups(GroupBy.MARK, groups),
    )


def _named(mark: str) -> str:
    if not mark:
        raise UsageError("the name of the mark is empty", "check for an unset variable")
    if any("\ud800" <= char <= "\udfff" for char in mark):  # the argument was not UTF-8
        raise UsageError(f"the mark {mark!r} is not valid text", "write it in UTF-8")
    return mark


def _change(
    run: Run,
    store: str,
    where: Selection,
    marking: Callable[..., Coroutine[Any, Any, object]],
    backup: bool,
    path: str | None,
    dry_run: bool,
) -> None:
    location = changeable(run, store, where, path)
    options = run_options(run, store, backup=backup, dry_run=dry_run)
    change(run.output, ChangeOutcome[Any](location), partial(marking, location, where), options)
