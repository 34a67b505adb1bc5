"""The tables of reports: fitted to a terminal, complete in a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.errors import Failure
from memctl.location import visible
from memctl.model import Embedding, MemoryInfo, MemoryKey
from memctl.ops.report import CopyReport
from memctl.output.terminal import WIDE
from memctl.storekit.prunable import JAVA, noun_of
from memctl.text.numbers import bar, count, duration, minute, size

if TYPE_CHECKING:  # a command imports the operations that it runs
    from memctl.ops.inspect import Catalogue
    from memctl.reports.config import CheckRow, ConfigFile, SettingRow
    from memctl.reports.inspect import GroupRow, Totals
    from memctl.reports.report import Maybe, PartRow
    from memctl.reports.verify import VerifyReport
    from memctl.stores.archive.rotation import RotatedFile

GAP = 2
"""The blank columns between two cells."""

ENOUGH = 36
"""The width of an id (a UUID); optional columns are left out to make room for it."""

LEAST = 3
"""The minimum number of columns of an id on a narrow terminal."""


class Column(Struct):
    """A column of a table: a name and the cells below.

    On a narrow terminal, columns with a number in ``leaves`` are left out, the lowest number first.
    Then the cells of columns with ``shrinks`` are cut, with an ellipsis.  No column is left out to
    make such a cell wider than ``enough``.  With ``keeps_end``, the beginning of a cell is cut
    instead of its end, as for paths.  ``right`` aligns cells to the right.
    """

    name: str
    cells: Sequence[Text]
    right: bool = False
    leaves: int | None = None
    shrinks: bool = False
    enough: int = ENOUGH
    keeps_end: bool = False

    def width(self) -> int:
        return max(cell_len(self.name), max((cell.cell_len for cell in self.cells), default=0))

    def needed(self, width: int) -> int:
        """Return the smallest width of the column for which all other columns are kept.

        ``width`` is the full width of the column.
        """
        return min(width, self.enough) if self.shrinks else width


class Grid:
    """A table of columns, one line per row; fitted to a terminal, complete in a pipe."""

    def __init__(self, columns: list[Column]) -> None:
        self._columns = [(column, column.width()) for column in columns]

    def width(self) -> int:
        """Return the width of the complete table."""
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
    """Return the columns that fit into ``room``, each with its width.

    If not all fit, columns without any text are left out first, then columns with ``leaves``; then
    columns with ``shrinks`` become narrower.
    """
    if _taken(column.needed(width) for column, width in columns) > room:
        columns = [item for item in columns if any(map(len, item[0].cells))]
    for leaving in sorted({column.leaves for column, _ in columns if column.leaves is not None}):
        if _taken(column.needed(width) for column, width in columns) <= room:
            break
        columns = [item for item in columns if item[0].leaves != leaving]
    room -= _taken(0 if column.shrinks else width for column, width in columns)
    shrinking = [place for place, (column, _) in enumerate(columns) if column.shrinks]
    fitted = {place: column.needed(width) for place, (column, width) in enumerate(columns)}
    if sum(fitted[place] for place in shrinking) > room:
        fitted |= dict.fromkeys(shrinking, 0)
    room -= sum(fitted[place] for place in shrinking)
    missing = sorted((columns[place][1] - fitted[place], place) for place in shrinking)
    for before, (more, place) in enumerate(missing):
        # Longer ids get the space that shorter ids leave.
        taken = min(more, room // (len(missing) - before))
        fitted[place] += max(taken, min(more, LEAST - fitted[place]))
        room -= taken
    return [(column, fitted[place]) for place, (column, _) in enumerate(columns)]


def _line(row: Sequence[Text], columns: list[tuple[Column, int]]) -> Text:
    line = Text(overflow="fold")
    for place, (cell, (column, width)) in enumerate(zip(row, columns, strict=True)):
        fitted = cell.copy()
        if column.keeps_end and fitted.cell_len > width:
            fitted = Text("…", fitted.style) + fitted[_end(fitted.plain, width - 1) :]
        fitted.truncate(width, overflow="ellipsis")
        fitted.align("right" if column.right else "left", width)
        line.append(" " * GAP if place else "")
        line.append_text(fitted)
    line.rstrip()
    return line


def _end(text: str, room: int) -> int:
    """Return the first index whose remaining text fits into ``room`` columns."""
    place = len(text)
    while place and (room := room - cell_len(text[place - 1])) >= 0:
        place -= 1
    return place


def key_columns(keys: Sequence[MemoryKey]) -> list[Column]:
    """Return the columns that name memories: user, session and, if one has any, path."""
    names = ("user", "session", "path") if any(key.part for key in keys) else ("user", "session")
    return [
        Column(name, [cell(key[place]) for key in keys], shrinks=True)
        for place, name in enumerate(names)
    ]


def cell(text: str) -> Text:
    """Return a name as a cell of a table; an empty name shows as ``(empty)``."""
    return Text(visible(text)) if text else Text("(empty)", "dim")


LONG_LABEL = 30
"""The number of characters above which the name of a store is shown only once."""
SHOWN_DIFFERENCES = 50


def catalogue(
    label: str,
    title: str,
    found: Catalogue,
    limit: int | None,
    *,
    facts: bool = False,
    embedding: Embedding | None = None,
) -> RenderableType:
    """Draw the totals of a store, then a row per memory, at most ``limit`` rows.

    ``label`` is the name of the store, and ``title`` its kind.  ``facts`` is True for a store of
    facts; ``embedding`` then names the model of their vectors.
    """
    rows = found.memories[:limit] if limit else found.memories
    head = Text(visible(label), "bold")
    head.append(f": {visible(title)}", "not bold")
    totals = _fact_totals(head, found, embedding) if facts else _totals(head, found.totals)
    parts: list[RenderableType] = [totals]
    if rows:
        parts += [Text(), _scopes(rows, found) if facts else _memories(rows, found)]
    hidden = len(found.memories) - len(rows)
    if hidden:
        parts.append(Text(f"and {count(hidden, 'memory')} more: --limit 0 shows all", "dim"))
    if found.totals.messages is None:
        parts.append(Text("messages are not counted; count them with --sort messages", "dim"))
    return Stack(*parts)


def _totals(head: Text, totals: Totals) -> Text:
    facts = [
        *_users(totals),
        count(totals.memories, "memory") + _without_user(totals.users, totals.without_user),
        *([] if totals.messages is None else [count(totals.messages, "message")]),
        size(totals.bytes),
    ]
    if totals.summaries is not None:
        facts.append(count(totals.summaries, "summary"))
    head.append("\n" + " · ".join(facts), "not bold")
    if totals.first:
        head.append(f"\n{_period(totals)}", "not bold dim")
    for name, counts in (
        ("roles", totals.roles),
        ("marks", totals.marks),
        ("not read", totals.unread),
    ):
        if counts:
            head.append(f"\n{name}  {_counts(counts)}", "not bold dim")
    return head


def _period(totals: Totals) -> str:
    return visible(f"{minute(totals.first)} … {minute(totals.last)}")


def _users(totals: Totals) -> list[str]:
    """Return a list with the number of users as a text; empty if no memory belongs to a user."""
    return [] if totals.memories and not totals.users else [count(totals.users or 0, "user")]


def _without_user(users: Maybe[int], number: int) -> str:
    """Return a text that ``number`` of the counted items have no user; empty if all or none do."""
    return f" ({number:,} without a user)" if users and number else ""


def _fact_totals(head: Text, found: Catalogue, embedding: Embedding | None) -> Text:
    totals = found.totals
    agents = len({info.key.part for info in found.memories} - {""})
    alone = sum(info.messages for info in found.memories if not info.key.user)
    numbers = [
        *_users(totals),
        *([count(agents, "agent")] if agents else []),
        count(totals.messages or 0, "fact") + _without_user(totals.users, alone),
        size(totals.bytes),
    ]
    head.append("\n" + " · ".join(numbers), "not bold")
    if totals.first:
        head.append(f"\n{_period(totals)}", "not bold dim")
    if embedding is not None:
        head.append(f"\nvectors of {visible(str(embedding))}", "not bold dim")
    return head


def _scopes(rows: list[MemoryInfo], found: Catalogue) -> Grid:
    """Draw a row per memory of facts; the columns user, run and agent show only if in use."""
    largest = max(info.messages for info in found.memories) or 1
    names = {
        "user": [info.key.user for info in rows],
        "run": [info.key.session for info in rows],
        "agent": [info.key.part for info in rows],
    }
    shown = {name: column for name, column in names.items() if any(column)} or {"user": [""]}
    columns = [
        Column(name, list(map(cell, column)), shrinks=True) for name, column in shown.items()
    ]
    columns += [
        Column("facts", [Text(f"{info.messages:,}") for info in rows], right=True),
        Column("size", [Text(size(info.bytes)) for info in rows], right=True),
        Column("", [Text(bar(info.messages / largest), "cyan") for info in rows], leaves=1),
        Column("first", [Text(visible(minute(info.first))) for info in rows], leaves=2),
        Column("last", [Text(visible(minute(info.last))) for info in rows], leaves=3),
    ]
    return Grid(columns)


def _counts(counts: dict[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    return "  ".join(f"{visible(name)} {number:,}" for name, number in largest)


def _memories(rows: list[MemoryInfo], found: Catalogue) -> Grid:
    largest = max(info.bytes for info in found.memories) or 1
    columns = key_columns([info.key for info in rows])
    for name, told in (
        ("title", [info.title for info in rows]),
        ("project", [info.project for info in rows]),
    ):
        if any(told):
            columns.append(Column(name, [cell(one) for one in told], shrinks=True))
    if found.totals.messages is not None:
        messages = [Text(f"{info.messages:,}") for info in rows]
        columns.append(Column("messages", messages, right=True))
    columns += [
        Column("size", [Text(size(info.bytes)) for info in rows], right=True),
        Column("", [Text(bar(info.bytes / largest), "cyan") for info in rows], leaves=1),
        Column("roles", [Text(_counts(info.roles), "dim") for info in rows], leaves=2),
        Column("marks", [Text(_counts(info.marks), "yellow") for info in rows], leaves=3),
        Column("last", [Text(visible(minute(info.last))) for info in rows], leaves=4),
    ]
    if found.totals.unread and not found.totals.marks:  # marks say it, too
        unread = [Text(_counts(info.unread), "dim") for info in rows]
        columns.append(Column("not read", unread, leaves=4))
    if any(info.ttl is not None for info in rows):
        lives = [Text("" if info.ttl is None else duration(info.ttl)) for info in rows]
        columns.append(Column("expires in", lives, leaves=6))
    if found.totals.summaries is not None:
        summaries = [Text("yes" if info.summary else "") for info in rows]
        columns.append(Column("summary", summaries, leaves=5))
    return Grid(columns)


def rotation(name: str, files: list[RotatedFile], newest: str, limit: int | None) -> RenderableType:
    """Draw the files of nightly exports, a row each, at most ``limit``, and their total size.

    ``newest`` is the STORE that names the newest of them.
    """
    rows = files[:limit]
    grid = Grid(
        [
            Column("time", [Text(f"{one.time:%Y-%m-%d %H:%M}") for one in rows]),
            Column("size", [Text(size(one.bytes)) for one in rows], right=True),
            Column("file", [cell(one.file.name) for one in rows], shrinks=True),
        ]
    )
    whole = sum(one.bytes for one in files)
    head = Text(f"{visible(name)}", "bold")
    head.append(f"\nrotation · {count(len(files), 'file')} · {size(whole)}", "not bold")
    last = Text(style="dim")
    if hidden := len(files) - len(rows):
        last.append(f"and {count(hidden, 'file')} more: --limit 0 shows all")
    last.append(f"\nshow the newest with: memctl inspect {visible(quote(newest))}")
    return Stack(head, Text(), grid, last)


def pruned(
    name: str, source: str, engine: str, groups: Mapping[str, int], limit: int | None
) -> RenderableType:
    """Draw the groups of an archive of pruned rows with their numbers, at most ``limit``."""
    noun, rows = noun_of(engine), [*groups.items()][:limit]
    what, group, heading = (
        ("memory files of AgentScope Java", "folder", "folder")
        if engine == JAVA
        else ("LangGraph checkpoints", "thread", "session")
    )
    grid = Grid(
        [
            Column(heading, [cell(one) for one, _ in rows], shrinks=True),
            Column(f"{noun}s", [Text(f"{number:,}") for _, number in rows], right=True),
        ]
    )
    total = sum(groups.values())
    head = Text(f"{visible(name)}", "bold")
    about = f"{what} of {visible(source)}, archived by memctl retain"
    counts = f"{count(len(groups), group)} · {count(total, noun)}"
    head.append(f"\n{about}\n{counts}", "not bold")
    last = Text(style="dim")
    if hidden := len(groups) - len(rows):
        last.append(f"and {count(hidden, group)} more: --limit 0 shows all\n")
    last.append(f"put them back with: memctl import {visible(name)} STORE")
    return Stack(head, Text(), grid, last)


def groups(by: str, found: Sequence[GroupRow], *, facts: bool = False) -> RenderableType:
    """Draw a row per group of memories, with its counts; ``by`` is the heading of the names."""
    noun = "facts" if facts else "messages"
    largest = max((group.messages for group in found), default=1) or 1
    return Grid(
        [
            Column(by, [cell(group.value) for group in found], shrinks=True),
            Column("memories", [Text(f"{group.memories:,}") for group in found], right=True),
            Column(noun, [Text(f"{group.messages:,}") for group in found], right=True),
            Column("size", [Text(size(group.bytes)) for group in found], right=True),
            Column("", [Text(bar(group.messages / largest), "cyan") for group in found], leaves=1),
        ]
    )


def copy(
    report: CopyReport, source: str, target: str, *, dry_run: bool, ended: bool = True
) -> Text | None:
    """Draw the counts of a copy, then each memory that failed with the reason.

    None if the copy was cut short (``ended`` is False) before it selected a memory.
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
        left = "would be left unchanged" if dry_run else "left unchanged"
        facts.append(f"{memories.failed:,} {left}")
    text.append("\n" + ", ".join(facts), "not bold")
    more = [
        f"{count(messages.selected, report.noun)} selected",
        f"{messages.written:,} {done}written",
    ]
    if messages.skipped:
        how = f"already there or {done}skipped" if memories.skipped else "already there"
        more.append(f"{messages.skipped:,} {how}")
    if messages.deleted:
        more.append(f"{messages.deleted:,} of the target {done}removed")
    text.append("\n" + ", ".join(more), "not bold")
    made = report.embedding
    if made.embedder is not None and made.texts:
        spent = f"{count(made.usage.tokens_in, 'token')}" if made.usage.tokens_in else ""
        cost = "" if made.cost is None else f"cost {made.cost:.4g}"
        about = ", ".join(filter(None, [spent, cost]))
        text.append(
            f"\n{count(made.texts, 'text')} {done}embedded by {visible(made.embedder.name)}"
            + (f" ({about})" if about else ""),
            "not bold",
        )
    if report.verified is not None and ended:
        apart = report.uneven or report.failures
        what = "the other memories match" if apart else "source and target match"
        if report.uncompared:
            what += f", but for {' and '.join(report.uncompared)}"
        text.append(f"\nverified: {what}", "not bold")
    append_failures(text, report.failures)
    return text


SHOWN_REASONS = 20
"""The maximum number of reasons of failed parts to show."""


def divided(
    label: str, body: str, parts: Sequence[PartRow], of: int, engine: str, seconds: float
) -> Text:
    """Draw a run in parts: how many ran where, the slowest, and those that failed.

    ``label`` names the stores, and ``body`` tells what was done; both may be empty.  ``parts`` are
    the rows of the report, for those of the ``of`` parts that began; ``engine`` is what ran them,
    and ``seconds`` the wall time.
    """
    text = Text(f"{visible(label)}: " if label else "", "bold")
    begun = f"{len(parts):,} of " if len(parts) < of else ""
    facts = [f"{begun}{count(of, 'part')} on {engine}"]
    if repeated := sum(part.attempts > 1 for part in parts):
        facts.append(f"{repeated:,} of them repeated")
    text.append(", ".join([*facts, duration(seconds)]), "not bold")
    if body:
        text.append(f"\n{body}", "not bold")
    slowest = max(parts, key=lambda part: part.seconds, default=None)
    if slowest is not None and len(parts) > 1:
        text.append(
            f"\nslowest part {slowest.shard}: {duration(slowest.seconds)}, "
            f"{count(slowest.messages, 'message')}",
            "not bold dim",
        )
    _append_failed_parts(text, parts)
    return text


def _append_failed_parts(text: Text, parts: Sequence[PartRow]) -> None:
    """Draw each reason why parts failed once, with the number of parts and the first of them.

    The report itself has the memories in conflict, the differences and the findings.
    """
    by_reason: dict[str, list[str]] = {}
    for part in parts:
        error = part.error
        if error and error.code not in ("conflict", "different", "unhealthy"):
            said = f"exit code {part.exit}: {visible(error.message)}"
            by_reason.setdefault(said, []).append(part.shard)
    for said, shards in list(by_reason.items())[:SHOWN_REASONS]:
        more = f" and {count(len(shards) - 1, 'part')} more" if len(shards) > 1 else ""
        text.append(f"\npart {shards[0]}{more}  {said}", "not bold red")
    if (hidden := len(by_reason) - SHOWN_REASONS) > 0:
        text.append(f"\nand {count(hidden, 'part')} more: --json lists all", "not bold dim")


def with_failures(text: Text, failures: list[tuple[MemoryKey, Failure]]) -> Text:
    """Append the first memories that failed, each with the reason, to a text."""
    append_failures(text, failures[:SHOWN_DIFFERENCES])
    if (hidden := len(failures) - SHOWN_DIFFERENCES) > 0:
        text.append(f"\nand {count(hidden, 'memory')} more: --json lists them", "not bold dim")
    return text


def followed(report: CopyReport, source: str, target: str, rounds: int) -> Text:
    """Draw the counts of ``migrate --follow``, then each memory that failed with the reason.

    ``rounds`` is the number of copies made.
    """
    text = Text(f"{visible(source)} → {visible(target)}", "bold")
    failed = {key for key, _ in report.failures}
    settled = {key: number for key, number in report.settled.items() if key not in failed}
    held = f"{count(len(settled), 'memory')}, {count(sum(settled.values()), report.noun)}"
    text.append(f"\nin sync: {held}", "not bold")
    if report.verified is None:
        facts = f"; {count(len(failed), 'memory')} left unchanged" if failed else ""
    elif failed:
        facts = f"; source and target match, but for {count(len(failed), 'memory')}"
    else:
        match = "the other memories match" if report.uneven else "source and target match"
        facts = f"; {match}"
    text.append(facts, "not bold")
    copied = count(report.messages.written, report.noun)
    text.append(f"\ncopied during this run: {copied} in {count(rounds, 'round')}", "not bold dim")
    append_failures(text, report.failures)
    return text


def append_failures(text: Text, failures: list[tuple[MemoryKey, Failure]]) -> None:
    for key, failure in failures:
        text.append(f"\n{visible(str(key))}  {_reason(failure)}", "not bold red")


def _reason(failure: Failure) -> str:
    """Return the code and the text of a failure; the text may begin with the code."""
    text = visible(failure.message)
    return text if text.startswith(f"{failure.code}: ") else f"{failure.code}: {text}"


def append_failures_by_text(text: Text, failures: list[tuple[MemoryKey, Failure]]) -> None:
    """Draw each text of a failure once, with the number and names of its memories."""
    by_text: dict[str, list[str]] = {}
    for key, failure in failures:
        named = by_text.setdefault(_reason(failure), [])
        named.append(visible(str(key)))
    for said, names in by_text.items():
        number = "" if len(names) == 1 else f"{count(len(names), 'memory')}: "
        text.append(f"\n{number}{', '.join(sorted(names))}  {said}", "not bold red")


def comparison(
    report: VerifyReport, *, noun: str = "message", brief: bool = False
) -> RenderableType:
    """Draw a comparison of two stores: counts, then differences; ``brief`` draws only counts.

    ``noun`` is what the stores call a message.
    """
    memories = report.memories
    text = Text(f"{visible(report.source)} ↔ {visible(report.target)}", "bold")
    facts = [f"{count(memories.same, 'memory')} the same"]
    for number, word in (
        (memories.different, "different"),
        (memories.missing, "missing"),
        (memories.extra, "extra"),
    ):
        if number:
            facts.append(f"{number:,} {word}")
    text.append("\n" + ", ".join(facts), "not bold")
    messages = report.messages
    right = count(messages.target, noun)
    text.append(f"\n{messages.source:,} and {right}", "not bold dim")
    if brief:
        return text
    for difference in report.differences[:SHOWN_DIFFERENCES]:
        where = f" {visible(repr(difference.id))}" if difference.id else ""
        text.append(
            f"\n{visible(str(difference.key))}{where}  {difference.code}: "
            f"{visible(_without_label(difference.message, report))}",
            "not bold red",
        )
    hidden = len(report.differences) - SHOWN_DIFFERENCES
    if hidden > 0:
        text.append(
            f"\nand {count(hidden, 'difference')} more: --format ndjson lists all", "not bold dim"
        )
    return text


def _without_label(message: str, report: VerifyReport) -> str:
    """Return what is said of a difference, with the side in place of the long name of a store."""
    for label, side in ((report.source, "source"), (report.target, "target")):
        if len(label) > LONG_LABEL and message.endswith(f" only in {label}"):
            return f"{message.removesuffix(label)}the {side}"
    return message


def kinds(rows: Iterable[tuple[str, str, str, str]]) -> RenderableType:
    """Draw the kinds of store; a row has name, syntax of the URL or path, meaning, capabilities."""
    names = ("kind", "written as", "what it is", "capabilities")
    return _Kinds(
        [
            Column(name, [Text(visible(cell)) for cell in cells])
            for name, cells in zip(names, zip(*rows, strict=True), strict=True)
        ]
    )


def agents(rows: Iterable[tuple[str, int, str]]) -> RenderableType:
    """Draw the coding agents on this machine; a row has store, bytes of sessions, folder."""
    stores, numbers, folders = zip(*rows, strict=True)
    return Grid(
        [
            Column("on this machine", [Text(store, "cyan") for store in stores]),
            Column("size", [Text(size(number)) for number in numbers], right=True),
            Column("folder", [cell(folder) for folder in folders], shrinks=True),
        ]
    )


class _Kinds:
    """The kinds of store: a table if the terminal is wide enough, else a paragraph per kind."""

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


def config_settings(file: ConfigFile, found: list[SettingRow]) -> RenderableType:
    """Draw the path of the configuration file, then a row per setting with its source."""
    head = Text(visible(file.path), "bold")
    if not file.exists:
        head.append("\ndoes not exist; create it with: memctl config init", "not bold dim")
    places = [(row.source == "environment" and row.where) or row.source for row in found]
    columns = [
        Column("setting", [Text(visible(row.key)) for row in found], shrinks=True),
        Column("value", [_value(row.value) for row in found], shrinks=True),
        Column("from", [Text(visible(place), "dim") for place in places]),
    ]
    return Stack(head, Text(), Grid(columns))


def _value(value: Any) -> Text:
    if value is None:
        return Text("none", "dim")
    return Text(visible(value if isinstance(value, str) else json.dumps(value)))


def config_checks(found: list[CheckRow]) -> RenderableType:
    """Draw a line per configured store and model: ok, or the error with its hint."""
    if not found:
        return Text("no stores and no summarizers are configured", "dim")
    widths = [max(len(visible(getattr(row, key))) for row in found) for key in ("what", "name")]
    return Stack(*_check_lines(found, widths))


def _check_lines(found: list[CheckRow], widths: list[int]) -> Iterable[Text]:
    for row in found:
        line = Text.assemble(
            ("ok      ", "green") if row.ok else ("failed  ", "bold red"),
            (row.what.ljust(widths[0]) + "  ", "dim"),
            (visible(row.name).ljust(widths[1]) + "  ", "bold"),
            visible(row.kind or ""),
        )
        yield line
        error = row.error
        said = [("", error.message), ("hint: ", error.hint)] if error else []
        for label, text in [*said, ("", row.note)]:
            if text:
                yield Text(f"        {label}{visible(text)}", "red" if error else "dim")
