"""Tables that fit the terminal, and are never cut in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memctl.location import visible
from memctl.output.terminal import WIDE

GAP = 2
"""Blank columns between two cells."""

ENOUGH = 36
"""Columns of an id (a UUID) that go before anything that may be left out."""

LEAST = 3
"""Columns that are left of an id on the narrowest terminal."""


@dataclass(slots=True)
class Column:
    """Cells under a name.

    The column with the smallest ``leaves`` is the first to go where a terminal is narrow; one
    without stays.  ``shrinks`` has its cells cut, with an ellipsis, when nothing can go any more.
    """

    name: str
    cells: Sequence[Text]
    right: bool = False
    leaves: int | None = None
    shrinks: bool = False

    def width(self) -> int:
        return max(cell_len(self.name), max((cell.cell_len for cell in self.cells), default=0))


class Grid:
    """Columns side by side, one line a row; in a pipe nothing is left out or cut."""

    def __init__(self, columns: list[Column]) -> None:
        self._columns = [(column, column.width()) for column in columns]

    def width(self) -> int:
        """Columns of the terminal that all of it takes."""
        return _taken(width for _, width in self._columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitted = self._columns
        if options.max_width < WIDE:
            fitted = _fit(fitted, options.max_width)
        yield _line([Text(column.name, "dim") for column, _ in fitted], fitted)
        for row in zip(*(column.cells for column, _ in fitted), strict=True):
            yield _line(row, fitted)


def _taken(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def _fit(columns: list[tuple[Column, int]], room: int) -> list[tuple[Column, int]]:
    """The columns for which there is room, and their widths."""
    for leaving in sorted({column.leaves for column, _ in columns if column.leaves is not None}):
        needed = (min(width, ENOUGH) if column.shrinks else width for column, width in columns)
        if _taken(needed) <= room:
            break
        columns = [item for item in columns if item[0].leaves != leaving]
    room -= _taken(0 if column.shrinks else width for column, width in columns)
    fitted = dict.fromkeys(range(len(columns)), 0)
    shrinking = sorted(
        (width, place) for place, (column, width) in enumerate(columns) if column.shrinks
    )
    for before, (width, place) in enumerate(shrinking):
        # What a short id does not need goes to the longer ones.
        fitted[place] = min(width, max(LEAST, room // (len(shrinking) - before)))
        room -= fitted[place]
    return [
        (column, fitted[place] if column.shrinks else width)
        for place, (column, width) in enumerate(columns)
    ]


def _line(row: Sequence[Text], columns: list[tuple[Column, int]]) -> Text:
    line = Text(overflow="fold")
    for place, (cell, (column, width)) in enumerate(zip(row, columns, strict=True)):
        fitted = cell.copy()
        fitted.truncate(width, overflow="ellipsis")
        fitted.align("right" if column.right else "left", width)
        line.append(" " * GAP if place else "")
        line.append_text(fitted)
    line.rstrip()
    return line


def cell(text: str) -> Text:
    """A name as a cell."""
    return Text(visible(text)) if text else Text("(empty)", "dim")
