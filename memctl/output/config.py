"""The configuration and its check, for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.output.grid import Column, Grid


def settings(file: dict[str, Any], found: list[dict[str, Any]]) -> RenderableType:
    """Where the file is, then a row a setting."""
    head = Text(visible(file["path"]), "bold")
    if not file["exists"]:
        head.append("\nnot there: 'memctl config init' writes it", "not bold dim")
    places = [row["where"] if row["source"] == "environment" else row["source"] for row in found]
    columns = [
        Column("setting", [Text(visible(row["key"])) for row in found], shrinks=True),
        Column("value", [_value(row["value"]) for row in found], shrinks=True),
        Column("from", [Text(visible(place), "dim") for place in places]),
    ]
    return Stack(head, Text(), Grid(columns))


def _value(value: Any) -> Text:
    if value is None:
        return Text("none", "dim")
    return Text(visible(value if isinstance(value, str) else json.dumps(value)))


def checks(found: list[dict[str, Any]]) -> RenderableType:
    """A line a store and a summarizer; what is wrong, and what to do, beneath."""
    if not found:
        return Text("no store and no summarizer is configured", "dim")
    widths = [max(len(visible(row[key] or "")) for row in found) for key in ("what", "name")]
    return Stack(*_lines(found, widths))


def _lines(found: list[dict[str, Any]], widths: list[int]) -> Iterable[Text]:
    for row in found:
        line = Text.assemble(
            ("ok      ", "green") if row["ok"] else ("failed  ", "bold red"),
            (row["what"].ljust(widths[0]) + "  ", "dim"),
            (visible(row["name"]).ljust(widths[1]) + "  ", "bold"),
            visible(row["kind"] or ""),
        )
        if row["capabilities"]:
            line.append(f"  {', '.join(row['capabilities'])}", "dim")
        yield line
        error = row["error"]
        said = [("", error["message"]), ("hint: ", error["hint"])] if error else []
        for label, text in [*said, ("", row["note"])]:
            if text:
                yield Text(f"        {label}{visible(text)}", "red" if error else "dim")
