"""``memctl history``: the runs that can be undone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memctl.commands._context import Run as ThisRun
from memctl.commands._options import takes_options
from memctl.journal.runs import Run, Runs
from memctl.output import tables
from memctl.output.report import Report


@takes_options
def history(
    run: ThisRun,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The newest N; 0 for all.")
    ] = 20,
) -> None:
    """List the runs that can be undone.

    The newest comes first; memctl undo undoes it. How long they are kept is set by [undo]
    in the configuration: days and bytes.
    """
    kept = Runs()
    every = kept.all()
    for name in kept.damaged():
        run.output.warn(f"what is kept of the run {name} is damaged; it is not listed")
    found = every[: limit or None]
    sizes = {one.id: kept.size(one) for one in found}
    for one in found:
        one.outcome = kept.outcome(one)
    run.output.report = _report(found, sizes, len(every) - len(found))
    run.output.emit()


def _report(found: list[Run], sizes: dict[str, int], hidden: int) -> Report:
    def rows() -> list[dict[str, Any]]:
        return [
            {
                "run": one.id,
                "command": one.command,
                "store": one.store,
                "started": one.started,
                "ended": one.ended or None,
                "outcome": one.outcome,
                "memories": one.memories,
                **{
                    name: one.counts.get(name, 0)
                    for name in ("deleted", "marked", "restored", "added", "replaced")
                },
                "bytes": sizes[one.id],
                "undoes": one.undoes or None,
                "undone_by": one.undone_by or None,
            }
            for one in found
        ]

    return Report(
        "history", lambda: {"runs": rows()}, rows, lambda: tables.history(found, sizes, hidden)
    )
