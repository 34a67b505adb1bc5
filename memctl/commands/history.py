"""``memctl history``: lists the runs that can be undone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from memctl.commands._context import Run as ThisRun
from memctl.commands._options import takes_options
from memctl.commands._parameters import argument, option
from memctl.commands._reports import run_row
from memctl.journal.runs import Run
from memctl.ops.history import RunList, list_runs
from memctl.output.history import run_table
from memctl.output.printout import Printout
from memctl.reports.history import HistoryReport
from memctl.text.values import moment


@takes_options
def history(
    run: ThisRun,
    store: Annotated[str | None, argument("STORE", "Only runs that changed this store.")] = None,
    command: Annotated[
        list[str] | None, option("--command NAME", "Only runs of this command.")
    ] = None,
    since: Annotated[
        str | None,
        option("--since TIME", "Only runs since TIME, such as 2026-01-31, or an age such as 30d."),
    ] = None,
    limit: Annotated[int, option("--limit N", "Show the newest N runs, 0 for all.", min=0)] = 20,
) -> None:
    """List the runs that can be undone.

    The newest run comes first. [undo] in the configuration sets how long runs are kept.

    Examples:
      memctl history
      memctl history agents.db --command delete --since 7d
    """
    location = None if store is None else run.address(store)
    begin = moment("--since", since, datetime.now())

    def wanted(one: Run) -> bool:
        is_named = not command or one.command in command
        return is_named and (begin is None or _started(one) >= begin)

    found = list_runs(location, limit or None, run.address, wanted)
    for name in found.damaged:
        run.output.warn(f"the record of the run {name} is damaged; it is not listed")
    run.output.printout = _printout(found)
    run.output.emit()


def _started(run: Run) -> datetime:
    """Return the start of a run as local time without a zone; 1970 if it is not a valid time."""
    try:
        started = datetime.fromisoformat(run.started)
    except ValueError:
        started = datetime.fromtimestamp(0, UTC)
    return started.astimezone().replace(tzinfo=None)


def _printout(found: RunList) -> Printout:
    return Printout(
        lambda: HistoryReport([run_row(one, found.sizes[one.id]) for one in found.runs]),
        lambda: run_table(found.runs, found.sizes, found.names, found.hidden),
    )
