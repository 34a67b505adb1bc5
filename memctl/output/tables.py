"""Reports for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.location import visible
from memctl.model import MemoryInfo
from memctl.ops.compare import CompareReport
from memctl.ops.inspect import Catalogue, Group, Totals
from memctl.ops.report import CopyReport
from memctl.output.numbers import bar, count, duration, size
from memctl.output.terminal import WIDE

SHOWN_DIFFERENCES = 50

GAP = 2
"""Blank columns between two cells."""

ENOUGH = 36
"""Columns of an id (a UUID) that go before anything that may be left out."""

LEAST = 3
"""Columns that are left of an id on the narrowest terminal."""


@dataclass(slots=True)
class _Column:
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


class _Grid:
    """Columns side by side, one line a row; in a pipe nothing is left out or cut."""

    def __init__(self, columns: list[_Column]) -> None:
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


def _fit(columns: list[tuple[_Column, int]], room: int) -> list[tuple[_Column, int]]:
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


def _line(row: Sequence[Text], columns: list[tuple[_Column, int]]) -> Text:
    line = Text(overflow="fold")
    for place, (cell, (column, width)) in enumerate(zip(row, columns, strict=True)):
        fitted = cell.copy()
        fitted.truncate(width, overflow="ellipsis")
        fitted.align("right" if column.right else "left", width)
        line.append(" " * GAP if place else "")
        line.append_text(fitted)
    line.rstrip()
    return line


def catalogue(label: str, found: Catalogue, limit: int | None) -> RenderableType:
    """Totals, then a row a memory."""
    rows = found.memories[:limit] if limit else found.memories
    parts: list[RenderableType] = [_totals(label, found.totals)]
    if rows:
        parts += [Text(), _memories(rows, found)]
    hidden = len(found.memories) - len(rows)
    if hidden:
        parts.append(Text(f"and {count(hidden, 'memory')} more: --limit 0 shows all", "dim"))
    return Stack(*parts)


def _totals(label: str, totals: Totals) -> Text:
    facts = [
        count(totals.users, "user"),
        count(totals.memories, "memory"),
        count(totals.messages, "message"),
        size(totals.bytes),
    ]
    if totals.summaries is not None:
        facts.append(count(totals.summaries, "summary"))
    text = Text(visible(label), "bold")
    text.append("\n" + " · ".join(facts), "not bold")
    if totals.first:
        text.append(f"\n{visible(totals.first)} … {visible(totals.last or '')}", "not bold dim")
    for name, counts in (("roles", totals.roles), ("marks", totals.marks)):
        if counts:
            text.append(f"\n{name}  {_counts(counts)}", "not bold dim")
    return text


def _counts(counts: dict[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    return "  ".join(f"{visible(name)} {number:,}" for name, number in largest)


def _memories(rows: list[MemoryInfo], found: Catalogue) -> _Grid:
    largest = max(info.bytes for info in found.memories) or 1
    columns = [
        _Column("user", [_cell(info.key.user) for info in rows], shrinks=True),
        _Column("session", [_cell(info.key.session) for info in rows], shrinks=True),
    ]
    if any(info.key.part for info in rows):
        columns.append(_Column("path", [_cell(info.key.part) for info in rows], shrinks=True))
    columns += [
        _Column("messages", [Text(f"{info.messages:,}") for info in rows], right=True),
        _Column("size", [Text(size(info.bytes)) for info in rows], right=True),
        _Column("", [Text(bar(info.bytes / largest), "cyan") for info in rows], leaves=1),
        _Column("roles", [Text(_counts(info.roles), "dim") for info in rows], leaves=2),
        _Column("marks", [Text(_counts(info.marks), "yellow") for info in rows], leaves=3),
        _Column("last", [Text(visible((info.last or "")[:19])) for info in rows], leaves=4),
    ]
    if any(info.ttl is not None for info in rows):
        lives = [Text("" if info.ttl is None else duration(info.ttl)) for info in rows]
        columns.append(_Column("expires in", lives, leaves=6))
    if found.totals.summaries is not None:
        summaries = [Text("yes" if info.summary else "") for info in rows]
        columns.append(_Column("summary", summaries, leaves=5))
    return _Grid(columns)


def _cell(text: str) -> Text:
    return Text(visible(text)) if text else Text("(empty)", "dim")


def groups(by: str, found: list[Group]) -> RenderableType:
    """A row a group."""
    largest = max((group.messages for group in found), default=1) or 1
    return _Grid(
        [
            _Column(by, [_cell(group.name) for group in found], shrinks=True),
            _Column("memories", [Text(f"{group.memories:,}") for group in found], right=True),
            _Column("messages", [Text(f"{group.messages:,}") for group in found], right=True),
            _Column("size", [Text(size(group.bytes)) for group in found], right=True),
            _Column("", [Text(bar(group.messages / largest), "cyan") for group in found], leaves=1),
        ]
    )


def copy(
    report: CopyReport, source: str, target: str, *, dry_run: bool, ended: bool = True
) -> RenderableType | None:
    """What a copy did, then every memory that failed.

    A copy that did not reach its end (``ended`` is false) has nothing to tell when it had selected
    nothing yet: None.
    """
    memories, messages = report.memories, report.messages
    if not ended and not memories.selected and not report.failures:
        return None
    done = "would be " if dry_run else ""
    text = Text(f"{visible(source)} → {visible(target)}", "bold")
    facts = [
        f"{count(memories.selected, 'memory')} selected",
        f"{memories.written:,} {done}written",
        f"{memories.unchanged:,} unchanged",
    ]
    if memories.skipped:
        facts.append(f"{memories.skipped:,} {done}skipped")
    if memories.failed:
        left = "would be left as they are" if dry_run else "left as they were"
        facts.append(f"{memories.failed:,} {left}")
    text.append("\n" + ", ".join(facts), "not bold")
    more = [
        f"{count(messages.selected, 'message')} selected",
        f"{messages.written:,} {done}written",
    ]
    if messages.skipped:
        more.append(f"{messages.skipped:,} already there or {done}skipped")
    if messages.deleted:
        more.append(f"{messages.deleted:,} {done}replaced")
    text.append("\n" + ", ".join(more), "not bold")
    for key, failure in report.failures:
        text.append(
            f"\n{visible(str(key))}  {failure.code}: {visible(failure.message)}", "not bold red"
        )
    return text


def comparison(report: CompareReport, left: str, right: str) -> RenderableType:
    """How two stores compare, then the differences."""
    text = Text(f"{visible(left)} ↔ {visible(right)}", "bold")
    facts = [f"{count(report.same, 'memory')} the same"]
    for number, word in (
        (report.different, "different"),
        (report.missing, "missing"),
        (report.extra, "extra"),
    ):
        if number:
            facts.append(f"{number:,} {word}")
    text.append("\n" + ", ".join(facts), "not bold")
    text.append(
        f"\n{count(report.left_messages, 'message')} and {report.right_messages:,}", "not bold dim"
    )
    for difference in report.differences[:SHOWN_DIFFERENCES]:
        where = f" {visible(repr(difference.id))}" if difference.id else ""
        text.append(
            f"\n{visible(str(difference.key))}{where}  {difference.code}: "
            f"{visible(difference.message)}",
            "not bold red",
        )
    hidden = len(report.differences) - SHOWN_DIFFERENCES
    if hidden > 0:
        text.append(
            f"\nand {count(hidden, 'difference')} more: --format ndjson names all", "not bold dim"
        )
    return text


def kinds(rows: Iterable[tuple[str, str, str, str]]) -> RenderableType:
    """The kinds of store: name, how it is written, what it is, what it can."""
    names = ("kind", "written as", "what it is", "capabilities")
    return _Kinds(
        [
            _Column(name, [Text(visible(cell)) for cell in cells])
            for name, cells in zip(names, zip(*rows, strict=True), strict=True)
        ]
    )


class _Kinds:
    """A table where it has room, else a paragraph a kind."""

    def __init__(self, columns: list[_Column]) -> None:
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = _Grid(self._columns)
        if grid.width() <= options.max_width:
            yield grid
            return
        margin = self._columns[0].width() + GAP
        for kind, written, what, able in zip(*(item.cells for item in self._columns), strict=True):
            label = kind.plain
            for part, style in ((what, ""), (written, "cyan"), (able, "dim")):
                part.style = style
                for line in part.wrap(console, max(options.max_width - margin, 1)):
                    yield Text.assemble((label.ljust(margin), "bold"), line)
                    label = ""
