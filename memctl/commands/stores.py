"""``memctl stores``: the kinds of store, and what each can hold."""

from __future__ import annotations

from typing import Any

from memctl.commands._context import Run
from memctl.commands._options import takes_options
from memctl.errors import UsageError
from memctl.output import tables
from memctl.output.report import Report
from memctl.output.terminal import Output
from memctl.registry import kinds, spec_of, store_class


@takes_options
def stores(run: Run) -> None:
    """List the kinds of store and what each can hold.

    memctl help stores explains how to write each.

    Examples:
      memctl stores
      memctl stores --json
    """
    output = run.output
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
        features = store_class(kind).features
        marks = None if features.marks is None else sorted(features.marks)
        return row | {"capabilities": features.capabilities(), "marks": marks}
    except UsageError as error:
        return row | {"capabilities": [], "missing": error.hint}


def _able(row: dict[str, Any]) -> str:
    able = [*row["capabilities"]]
    if (marks := row.get("marks")) is not None:
        able.append(f"only the mark {marks[0]}" if marks else "no marks")
    return ", ".join(able) or row.get("missing") or ""
