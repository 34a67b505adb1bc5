"""The tables of ``doctor``: findings and repairs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import UNSET
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.text import Text

from memctl.location import visible
from memctl.model import Finding
from memctl.ops.doctor.findings import KINDS, RepairMethod, Severity
from memctl.reports.doctor import FindingRow, RepairedRow
from memctl.text.numbers import count

if TYPE_CHECKING:  # a command imports the operations that it runs
    from memctl.ops.doctor.check import Diagnosis


SHOWN_OF_A_KIND = 3
"""The maximum number of memories to name for each kind of finding."""

SEVERITY_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}

_MARGIN = 4


def finding_row(finding: Finding) -> FindingRow:
    """Return a finding of ``doctor`` as a row of its report."""
    kind = KINDS[finding.code]
    key = finding.key
    return FindingRow(
        code=finding.code,
        severity=kind.severity.value,
        user=key.user if key else None,
        session=key.session if key else None,
        path=(key and key.part) or UNSET,
        count=finding.count,
        ids=list(finding.examples),
        message=f"{kind.what}: {finding.detail}" if finding.detail else kind.what,
        meaning=kind.meaning,
        remedy=finding.remedy or kind.remedy,
        repairable=finding.repairable and kind.repair is not RepairMethod.NONE,
    )


def repaired_row(finding: Finding) -> RepairedRow:
    """Return a repair by ``doctor`` as a row of its report."""
    row = finding_row(finding)
    return RepairedRow(
        code=row.code, user=row.user, session=row.session, path=row.path, count=row.count
    )


def repairs(
    faults: list[Finding], run: str | None, quarantine: str | None, *, dry_run: bool, failed: bool
) -> RenderableType:
    """Draw the repairs by ``doctor``, a line per kind of finding.

    ``quarantine`` is the file with the damaged data, and ``run`` the id for ``undo``; each is None
    if there is none.  With ``dry_run``, draw the planned repairs.  ``failed`` is True if some
    repair failed; if nothing was repaired, the text then does not say that there was nothing to
    repair.
    """
    done = "would be repaired" if dry_run else "repaired"
    if not faults:
        return Text("nothing was repaired" if failed else "nothing to repair", "bold")
    text = Text(done, "bold green")
    for code, some in groupby(faults, key=lambda finding: finding.code):
        number = sum(finding.count for finding in some)
        text.append(f"\n{' ' * _MARGIN}{code}  {KINDS[code].what}: {number:,}", "not bold default")
    if quarantine is not None:
        text.append(f"\ndamaged data were moved to {visible(quarantine)}", "not bold default")
    if run is not None:
        text.append(f"\nundo it with: memctl undo {run}", "not bold dim default")
    return text


def repair_plan(faults: list[Finding]) -> RenderableType:
    """Draw the findings that ``doctor`` would repair, a paragraph per kind."""
    kinds = groupby(faults, key=lambda finding: finding.code)
    return stacked([Stack(*_finding_kind(code, list(some))) for code, some in kinds])


def stacked(parts: list[RenderableType]) -> RenderableType:
    """Stack the parts of a report, with a blank line between two parts."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [Text(), part] if spaced else [part]
    return Stack(*spaced)


def findings(label: str, found: Diagnosis, repair: str = "") -> RenderableType:
    """Draw whether a store is healthy, then each kind of finding with its meaning and repair.

    ``repair`` is the command that repairs what can be repaired; empty to leave it out.
    """
    parts: list[RenderableType] = [_findings_head(label, found)]
    for code, faults in groupby(found.faults, key=lambda finding: finding.code):
        parts += [Text(), *_finding_kind(code, list(faults))]
    if repair and any(finding_row(finding).repairable for finding in found.faults):
        parts += [Text(), Text(f"repair with: {visible(repair)}", "dim")]
    return Stack(*parts)


class _Indented:
    """A text with a margin on the left, wrapped at the width of the terminal."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._text.wrap(console, max(options.max_width - _MARGIN, 1)):
            line.rstrip()
            yield Text(" " * _MARGIN).append_text(line)


def _findings_head(label: str, found: Diagnosis) -> Text:
    text = Text(visible(label), "bold")
    text.append(
        f"\n{count(found.memories, 'memory')}, {count(found.messages, found.noun)} checked",
        "not bold dim",
    )
    facts = [
        count(number, severity.value) for severity in Severity if (number := found.count(severity))
    ]
    state = "healthy" if found.healthy else "not healthy"
    style = "green" if found.healthy else "red"
    text.append(f"\n{': '.join([state, ', '.join(facts)] if facts else [state])}", style)
    return text


def _finding_kind(code: str, faults: list[Finding]) -> Iterable[RenderableType]:
    kind = KINDS[code]
    yield Text.assemble(
        (kind.severity.value, f"bold {SEVERITY_STYLES[kind.severity]}"),
        (f"  {kind.what}: {sum(finding.count for finding in faults):,}", "bold"),
        (f"  {code}", "dim"),
    )
    said = finding_advice(faults[0])
    yield _Indented(Text(f"{said['means']}; {said['fix']}"))
    places = Text(", ").join(map(_finding_memory, faults[:SHOWN_OF_A_KIND]))
    if (hidden := len(faults) - SHOWN_OF_A_KIND) > 0:
        places.append(f", and {count(hidden, 'memory')} more: --format ndjson lists all", "dim")
    yield _Indented(places)


def finding_advice(finding: Finding) -> dict[str, str]:
    """Return the meaning of a finding, and what the user can do, each under its name."""
    kind = KINDS[finding.code]
    return {"means": kind.meaning, "fix": finding.remedy or kind.remedy}


def _finding_memory(finding: Finding) -> Text:
    """Return the name of the memory with a finding, with details and ids in parentheses."""
    text = Text(visible(str(finding.key)) if finding.key else "the store", "cyan")
    said = [visible(finding.detail)] if finding.detail else []
    if finding.examples:
        more = ", …" if finding.count > len(finding.examples) else ""
        said.append(", ".join(visible(id) for id in finding.examples) + more)
    elif finding.count > 1:
        said.append(f"{finding.count:,}")
    return text.append(f" ({'; '.join(said)})", "not cyan") if said else text
