"""``memctl doctor``: what is broken or risky in a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._options import STORE_HELP, FormatOption, JsonOption, PathOption, build
from memctl.commands._run import opened, refuse_absent, wait_for
from memctl.commands._stores import readable
from memctl.errors import Unhealthy, UsageError
from memctl.location import Location, visible
from memctl.ops.doctor.check import Diagnosis, check
from memctl.ops.doctor.content import MAX_RESULT, Limits
from memctl.ops.doctor.findings import KINDS, Severity
from memctl.output.numbers import count
from memctl.output.report import Report
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.selection import Selection


def doctor(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)],
    codes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE", help="Only these findings; all of them if none."),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user", metavar="U", help="Of this user.")
    ] = None,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="S", help="Of this session.")
    ] = None,
    max_result: Annotated[
        int,
        typer.Option(
            "--max-result", metavar="BYTES", min=1, help="A tool result beyond this is oversized."
        ),
    ] = MAX_RESULT,
    path: PathOption = None,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Find what is broken or risky in a store, before its agents do.

    Each finding has a code, says what it means for the agent and how it is mended. Exit code 6
    means that there are errors or warnings; a store with notices alone is healthy.
    """
    run = this_run(context)
    output = run.output
    choose_format(output, format_, json=json)
    wanted = _known(codes or [])
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    limits = Limits(max_result)
    with readable(run.locate(store), where, path) as location:
        found = wait_for(_examine(output, location, where, limits))
    found.faults = [fault for fault in found.faults if fault.code in wanted]
    output.report = _report(location, found)
    if not found.healthy:
        raise _unhealthy(location.label, found)
    output.emit()


def _known(codes: list[str]) -> frozenset[str]:
    """The codes to look for.

    Raises:
        UsageError: there is no such code.
    """
    for code in codes:
        if code not in KINDS:
            raise UsageError(f"there is no finding {visible(code)!r}", f"known: {', '.join(KINDS)}")
    return frozenset(codes or KINDS)


async def _examine(
    output: Output, location: Location, where: Selection, limits: Limits
) -> Diagnosis:
    async with opened(make_store(location), output) as store:
        with output.progress("examining") as progress:
            found = await check(store, where, limits, progress)
        seen = found.memories or sum(fault.key is not None for fault in found.faults)
        refuse_absent(where, seen, location.label, location.options.get("path"))
        return found


def _report(location: Location, found: Diagnosis) -> Report:
    from memctl.output import doctor as drawn  # needs Rich, which helping does not

    def rows() -> list[dict[str, Any]]:
        return [drawn.row(fault) for fault in found.faults]

    def data() -> dict[str, Any]:
        return {
            "store": {"url": location.label, "kind": location.kind},
            "healthy": found.healthy,
            "memories": found.memories,
            "messages": found.messages,
            "findings": rows(),
        }

    return Report("doctor", data, rows, lambda: drawn.table(location.label, found))


def _unhealthy(label: str, found: Diagnosis) -> Unhealthy:
    facts = [
        count(number, severity.value)
        for severity in (Severity.ERROR, Severity.WARNING)
        if (number := found.count(severity))
    ]
    return Unhealthy(
        f"{label} has {' and '.join(facts)}",
        "the report says what each means and how it is mended",
    )


def command() -> TyperCommand:
    """The parser of this command."""
    return build(doctor, "doctor")
