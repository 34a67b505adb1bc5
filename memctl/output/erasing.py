"""The screens of an erase: the removed data, and the data out of reach."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from memctl.location import visible
from memctl.model import MemoryKey
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.ops.data_subject import ALWAYS
from memctl.ops.erase import EraseReport
from memctl.output.tables import Column, Grid, key_columns
from memctl.text.numbers import count
from memctl.text.words import natural


class Line(NamedTuple):
    """The erase of one store, to be drawn.

    ``not_reached`` are places with data that memctl cannot erase.  ``why`` is the reason of a
    failure; empty without a failure.
    """

    label: str
    report: EraseReport
    not_reached: list[str]
    why: str


def plan(lines: list[Line]) -> RenderableType:
    """Draw the plan of an erase: each store with the memories to erase, and the data that stay."""
    parts: list[RenderableType] = []
    for line in lines:
        report = line.report
        parts += [_head(line, "would erase", report.found), Text()]
        if report.found:
            parts += [_memories(report.found, report.noun), Text()]
    return Stack(*parts, _limits(lines))


def outcome(lines: list[Line], receipt: str | None, blobs: int) -> RenderableType:
    """Draw the result of an erase for each store, and the path of the receipt.

    ``blobs`` is the number of removed files with offloaded contents.  Data that memctl cannot erase
    are named, too.
    """
    parts: list[RenderableType] = [_head(line, "erased", line.report.erased) for line in lines]
    if blobs:
        parts.append(Text(f"{count(blobs, 'file')} with offloaded contents removed"))
    if receipt is not None:
        parts.append(Text(f"receipt: {visible(receipt)}"))
    return Stack(*parts, Text(), _limits(lines))


def _head(line: Line, verb: str, found: dict[MemoryKey, int]) -> Text:
    report = line.report
    runs = len(report.runs.removed) + len(report.runs.rewritten)
    text = Text(f"{visible(line.label)}: ", "bold")
    parts = []
    if found:
        messages = count(sum(found.values()), report.noun)
        parts.append(f"{count(len(found), 'memory')} ({messages})")
    if runs:
        parts.append(count(runs, "undo run"))
    said = f"{verb} {' and '.join(parts)}" if parts else "nothing found"
    text.append(said if parts or not line.why else "nothing erased", "not bold")
    if line.why:
        text.append(f"\n  not erased: {visible(line.why)}", "not bold red")
    return text


def _memories(found: dict[MemoryKey, int], noun: str) -> RenderableType:
    keys = sorted(found, key=natural)[:SHOWN_MEMORIES]
    grid = Grid(
        [
            *key_columns(keys),
            Column(f"{noun}s", [Text(f"{found[key]:,}") for key in keys], right=True),
        ]
    )
    hidden = len(found) - len(keys)
    more = Text(f"and {count(hidden, 'memory')} more: --json lists all", "dim")
    return Stack(grid, more) if hidden else grid


def _limits(lines: list[Line]) -> Text:
    """Draw the places with data that an erase cannot reach."""
    text = Text("not reached:")
    own = (one for line in lines for one in line.not_reached)
    for one in dict.fromkeys((*ALWAYS, *own)):
        text.append(f"\n  {one}", "dim")
    return text
