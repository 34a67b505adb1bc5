"""``memctl stores``: the kinds of store, and what each can hold."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from memctl.commands._context import choose_format, this_run
from memctl.commands._options import FormatOption, JsonOption, build
from memctl.errors import UsageError
from memctl.output import tables
from memctl.output.report import Report
from memctl.output.terminal import Format, Output
from memctl.registry import kinds, spec_of, store_class


def stores(
    context: typer.Context,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """List the kinds of store and what each can hold."""
    output = this_run(context).output
    choose_format(output, format_, json=json)
    found = [_row(kind, output) for kind in kinds()]
    output.report = Report(
        "stores",
        lambda: {"stores": found},
        lambda: found,
        lambda: tables.kinds(
            (row["kind"], row["written_as"], row["what"], _able(row)) for row in found
        ),
    )
    output.emit()


def _row(kind: str, output: Output) -> dict[str, Any]:
    try:
        spec = spec_of(kind)
    except UsageError as error:  # a plugin that cannot be loaded
        output.warn(error.message)
        row = {"kind": kind, "written_as": f"{kind}://..., PATH.{kind}", "what": "a plugin"}
        return row | {"capabilities": [], "missing": error.hint}
    row = {"kind": kind, "written_as": spec.syntax, "what": spec.summary}
    try:
        return row | {"capabilities": store_class(kind).features.capabilities()}
    except UsageError as error:
        return row | {"capabilities": [], "missing": error.hint}


def _able(row: dict[str, Any]) -> str:
    return ", ".join(row["capabilities"]) or row.get("missing") or ""


def command() -> TyperCommand:
    """The parser of this command."""
    return build(stores, "stores")
