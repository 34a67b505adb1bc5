"""``memctl verify``: are the selected memories of two stores the same?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._options import (
    STORE_HELP,
    FormatOption,
    JsonOption,
    PathOption,
    build,
    selecting,
)
from memctl.commands._run import opened, refuse_absent, wait_for
from memctl.commands._show import difference_row, show_differences
from memctl.commands._stores import readable
from memctl.errors import Different, UsageError
from memctl.location import Location
from memctl.ops.compare import CompareReport, compare
from memctl.output import tables
from memctl.output.numbers import count
from memctl.output.report import Report
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.selection import Selection


@selecting
def verify(
    context: typer.Context,
    left: Annotated[str, typer.Argument(metavar="A", help=STORE_HELP)],
    right: Annotated[str, typer.Argument(metavar="B", help=STORE_HELP)],
    where: Selection,
    show: Annotated[
        bool, typer.Option("--show", help="With the lines that differ, as git prints them.")
    ] = False,
    path: PathOption = None,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Compare two stores, message by message.

    Ids, order, marks, content by value, summaries and when a memory expires. Exit code 6 means
    that they differ.
    """
    run = this_run(context)
    output = run.output
    choose_format(output, format_, json=json)
    if left == right == "-":
        raise UsageError("stdin can be read once", "write one side to a file")
    with (
        readable(run.locate(left), where, path) as first,
        readable(run.locate(right), where, path) as second,
    ):
        found = wait_for(_compare(output, first, second, where, show=show))
    if not found.equal:
        raise Different(f"{count(len(found.differences), 'difference')} between the two stores")
    output.emit()


async def _compare(
    output: Output, first: Location, second: Location, where: Selection, *, show: bool
) -> CompareReport:
    async with (
        opened(make_store(first), output) as left,
        opened(make_store(second), output) as right,
    ):
        with output.progress("comparing") as progress:
            found = await compare(left, right, where, progress=progress)
        for warning in found.warnings:
            output.warn(warning)
        refuse_absent(
            where, found.same + len(found.differences), f"{first.label} or {second.label}"
        )
        output.report = Report(
            "verify",
            lambda: {**_data(found, first.label, second.label), "differences": _rows(found)},
            lambda: _rows(found),
            lambda: tables.comparison(found, first.label, second.label, brief=show),
        )
        if show:
            data = _data(found, first.label, second.label)
            await show_differences(output, left, right, found.differences, data)
    return found


def _rows(found: CompareReport) -> list[dict[str, Any]]:
    return [difference_row(difference) for difference in found.differences]


def _data(found: CompareReport, left: str, right: str) -> dict[str, Any]:
    return {
        "source": left,
        "target": right,
        "memories": {
            "same": found.same,
            "different": found.different,
            "missing": found.missing,
            "extra": found.extra,
        },
        "messages": {"source": found.left_messages, "target": found.right_messages},
    }


def command() -> TyperCommand:
    """The parser of this command."""
    return build(verify, "verify")
