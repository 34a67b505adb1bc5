"""What ``doctor`` found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.location import visible
from memctl.model import Finding
from memctl.ops.doctor.check import Diagnosis
from memctl.ops.doctor.findings import KINDS, Repair, Severity
from memctl.output.numbers import count

SHOWN_MEMORIES = 5
"""How many memories are named for each kind of finding."""

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}
_MARGIN = 4


def row(fault: Finding) -> dict[str, Any]:
    """A finding as programs get it."""
    kind = KINDS[fault.code]
    key = fault.key
    found: dict[str, Any] = {
        "code": fault.code,
        "severity": kind.severity.value,
        "user": key.user if key else None,
        "session": key.session if key else None,
    }
    if key and key.part:
        found["path"] = key.part
    return found | {
        "count": fault.count,
        "ids": list(fault.examples),
        "message": f"{kind.what}: {fault.detail}" if fault.detail else kind.what,
        "meaning": kind.meaning,
        "remedy": kind.remedy,
        "repairable": kind.repair is not Repair.NONE,
    }


def repaired_row(fault: Finding) -> dict[str, Any]:
    """What was repaired as programs get it; of no user where the store did it as a whole."""
    found = row(fault)
    names = ("code", "user", "session", "path", "count")
    return {name: found[name] for name in names if name in found}


def repaired(faults: list[Finding], run: str | None, *, dry_run: bool) -> RenderableType:
    """What was repaired, a line a kind, and how it is taken back."""
    done = "would be repaired" if dry_run else "repaired"
    if not faults:
        return Text("nothing to be repaired", "bold")
    text = Text(done, "bold green")
    for code, some in groupby(faults, key=lambda fault: fault.code):
        number = sum(fault.count for fault in some)
        text.append(f"\n{' ' * _MARGIN}{code}  {KINDS[code].what}: {number:,}", "not bold default")
    if run is not None:
        text.append(f"\nmemctl undo {run} takes it back", "not bold dim default")
    return text


def together(parts: list[RenderableType]) -> RenderableType:
    """The parts with a blank line between them."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [Text(), part] if spaced else [part]
    return Stack(*spaced)


def table(label: str, found: Diagnosis) -> RenderableType:
    """How the store is, then each kind of finding with what it means and how it is mended."""
    parts: list[RenderableType] = [_head(label, found)]
    for code, faults in groupby(found.faults, key=lambda fault: fault.code):
        parts += [Text(), *_kind(code, list(faults))]
    return Stack(*parts)


class _Indented:
    """A text with a margin, wrapped where the terminal ends."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._text.wrap(console, max(options.max_width - _MARGIN, 1)):
            line.rstrip()
            yield Text(" " * _MARGIN).append_text(line)


def _head(label: str, found: Diagnosis) -> Text:
    text = Text(visible(label), "bold")
    text.append(
        f"\n{count(found.memories, 'memory')}, {count(found.messages, 'message')} examined",
        "not bold dim",
    )
    facts = [
        count(number, severity.value) for severity in Severity if (number := found.count(severity))
    ]
    state = "healthy" if found.healthy else "not healthy"
    style = "green" if found.healthy else "red"
    text.append(f"\n{': '.join([state, ', '.join(facts)] if facts else [state])}", style)
    return text


def _kind(code: str, faults: list[Finding]) -> Iterable[RenderableType]:
    kind = KINDS[code]
    title = Text.assemble(
        (kind.severity.value, f"bold {_STYLES[kind.severity]}"),
        "  ",
        (code, "bold"),
        f"  {kind.what}: {sum(fault.count for fault in faults):,}",
    )
    yield title
    for fault in faults[:SHOWN_MEMORIES]:
        yield _Indented(_memory(fault))
    hidden = len(faults) - SHOWN_MEMORIES
    if hidden > 0:
        more = f"and {count(hidden, 'memory')} more: --format ndjson names all"
        yield _Indented(Text(more, "dim"))
    for name, said in (("means", kind.meaning), ("mend ", kind.remedy)):
        yield _Indented(Text.assemble((f"{name}  ", "dim"), said))


def _memory(fault: Finding) -> Text:
    where = visible(str(fault.key)) if fault.key else "the store"
    text = Text.assemble((where, "cyan"), f"  {fault.count:,}")
    if fault.examples:
        ids = ", ".join(visible(id) for id in fault.examples)
        text.append(f"  {ids}{', …' if fault.count > len(fault.examples) else ''}", "dim")
    if fault.detail:
        text.append(f"  {visible(fault.detail)}")
    return text
