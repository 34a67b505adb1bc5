"""Reports for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from memctl.location import visible
from memctl.model import MemoryInfo
from memctl.ops.compare import CompareReport
from memctl.ops.inspect import Catalogue, Group, Totals
from memctl.ops.report import CopyReport
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


def _memories(rows: list[MemoryInfo], found: Catalogue) -> Table:
    largest = max(info.bytes for info in found.memories) or 1
    with_path = any(info.key.part for info in rows)
    with_ttl = any(info.ttl is not None for info in rows)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("user", "session", *(["path"] if with_path else [])):
        table.add_column(name, overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=8)
    table.add_column("roles", overflow="fold")
    table.add_column("marks", overflow="fold")
    table.add_column("last", no_wrap=True)
    if with_ttl:
        table.add_column("expires in", no_wrap=True)
    if found.totals.summaries is not None:
        table.add_column("summary")
    for info in rows:
        cells = [_cell(info.key.user), _cell(info.key.session)]
        cells += [_cell(info.key.part)] if with_path else []
        cells += [
            Text(f"{info.messages:,}"),
            Text(size(info.bytes)),
            Text(bar(info.bytes / largest), "cyan"),
            Text(_counts(info.roles), "dim"),
            Text(_counts(info.marks), "yellow"),
            _cell((info.last or "")[:19]),
        ]
        if with_ttl:
            cells.append(Text("" if info.ttl is None else duration(info.ttl)))
        if found.totals.summaries is not None:
            cells.append(Text("yes" if info.summary else ""))
        table.add_row(*cells)
    return table


def _cell(text: str) -> Text:
    return Text(visible(text)) if text else Text("(empty)", "dim")


def groups(by: str, found: list[Group]) -> RenderableType:
    """A row a group."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(by, overflow="fold")
    for name in ("memories", "messages", "size"):
        table.add_column(name, justify="right")
    table.add_column("", no_wrap=True)
    largest = max((group.messages for group in found), default=1) or 1
    for group in found:
        table.add_row(
            _cell(group.name),
            f"{group.memories:,}",
            f"{group.messages:,}",
            size(group.bytes),
            Text(bar(group.messages / largest), "cyan"),
        )
    return table


def copy(report: CopyReport, source: str, target: str, *, dry_run: bool) -> RenderableType:
    """What a copy did, then every memory that failed."""
    memories, messages = report.memories, report.messages
    verb = "would be written" if dry_run else "written"
    text = Text(f"{visible(source)} → {visible(target)}", "bold")
    facts = [
        f"{count(memories.selected, 'memory')} selected",
        f"{memories.written:,} {verb}",
        f"{memories.unchanged:,} unchanged",
    ]
    if memories.skipped:
        facts.append(f"{memories.skipped:,} skipped")
    if memories.failed:
        facts.append(f"{memories.failed:,} left as they were")
    text.append("\n" + ", ".join(facts), "not bold")
    more = [f"{count(messages.selected, 'message')} selected", f"{messages.written:,} {verb}"]
    if messages.skipped:
        more.append(f"{messages.skipped:,} already there or skipped")
    if messages.deleted:
        more.append(f"{messages.deleted:,} replaced")
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
        text.append(f"\nand {count(hidden, 'difference')} more: --format ndjson names all", "dim")
    return text


def kinds(rows: Iterable[dict[str, str]]) -> RenderableType:
    """The kinds of store."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("kind", "written as", "what it is", "holds beside messages and marks"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row.values()))
    return table
