"""Reports for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.location import visible
from memctl.model import MemoryInfo
from memctl.ops.compare import CompareReport
from memctl.ops.inspect import Catalogue, Group, Totals
from memctl.ops.report import CopyReport
from memctl.output.grid import GAP, Column, Grid, cell
from memctl.output.numbers import bar, count, duration, size

SHOWN_DIFFERENCES = 50


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


def _memories(rows: list[MemoryInfo], found: Catalogue) -> Grid:
    largest = max(info.bytes for info in found.memories) or 1
    columns = [
        Column("user", [cell(info.key.user) for info in rows], shrinks=True),
        Column("session", [cell(info.key.session) for info in rows], shrinks=True),
    ]
    if any(info.key.part for info in rows):
        columns.append(Column("path", [cell(info.key.part) for info in rows], shrinks=True))
    columns += [
        Column("messages", [Text(f"{info.messages:,}") for info in rows], right=True),
        Column("size", [Text(size(info.bytes)) for info in rows], right=True),
        Column("", [Text(bar(info.bytes / largest), "cyan") for info in rows], leaves=1),
        Column("roles", [Text(_counts(info.roles), "dim") for info in rows], leaves=2),
        Column("marks", [Text(_counts(info.marks), "yellow") for info in rows], leaves=3),
        Column("last", [Text(visible((info.last or "")[:19])) for info in rows], leaves=4),
    ]
    if any(info.ttl is not None for info in rows):
        lives = [Text("" if info.ttl is None else duration(info.ttl)) for info in rows]
        columns.append(Column("expires in", lives, leaves=6))
    if found.totals.summaries is not None:
        summaries = [Text("yes" if info.summary else "") for info in rows]
        columns.append(Column("summary", summaries, leaves=5))
    return Grid(columns)


def groups(by: str, found: list[Group]) -> RenderableType:
    """A row a group."""
    largest = max((group.messages for group in found), default=1) or 1
    return Grid(
        [
            Column(by, [cell(group.name) for group in found], shrinks=True),
            Column("memories", [Text(f"{group.memories:,}") for group in found], right=True),
            Column("messages", [Text(f"{group.messages:,}") for group in found], right=True),
            Column("size", [Text(size(group.bytes)) for group in found], right=True),
            Column("", [Text(bar(group.messages / largest), "cyan") for group in found], leaves=1),
        ]
    )


def copy(
    report: CopyReport, source: str, target: str, *, dry_run: bool, ended: bool = True
) -> Text | None:
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


def comparison(
    report: CompareReport, left: str, right: str, *, brief: bool = False
) -> RenderableType:
    """How two stores compare, then the differences; ``brief`` leaves these out."""
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
    if brief:
        return text
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
            Column(name, [Text(visible(cell)) for cell in cells])
            for name, cells in zip(names, zip(*rows, strict=True), strict=True)
        ]
    )


class _Kinds:
    """A table where it has room, else a paragraph a kind."""

    def __init__(self, columns: list[Column]) -> None:
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = Grid(self._columns)
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
