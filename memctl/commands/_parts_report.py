"""The report of a run in parts, in every format, from the sum of their reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict, replace
from rich.console import Group, RenderableType
from rich.text import Text

from memctl.errors import Conflict, Different, Failure, MemctlError, Unhealthy
from memctl.model import Embedding, Finding, MemoryInfo, MemoryKey
from memctl.ops.change.apply import ChangeCounts, ChangeReport
from memctl.ops.doctor.check import Diagnosis, unhealthy
from memctl.ops.doctor.findings import KINDS
from memctl.ops.holds import all_held, nothing_but_held
from memctl.ops.inspect import Catalogue
from memctl.output import diagnosis, tables
from memctl.output.printout import Printout
from memctl.reports.change import CompressReport, UndoReport
from memctl.reports.doctor import DoctorReport, FindingRow, RepairedRow
from memctl.reports.inspect import (
    InspectByReport,
    InspectedMemory,
    InspectMessagesReport,
    InspectReport,
)
from memctl.reports.report import Divisible, FailureRow
from memctl.reports.verify import VerifyReport
from memctl.text.numbers import count


def merged_report(report: Any, of: int, engine: str, seconds: float) -> Printout:
    """Return the report of a command that ran in parts.

    ``report`` is that of ``memctl.parts.merge``, ``of`` the number of parts, ``engine`` the name of
    what ran them, and ``seconds`` the wall time of all.
    """

    def about(label: str = "", body: str = "") -> Text:
        text = tables.divided(label, body, report.parts, of, engine, seconds)
        if report.job:
            text.append(f"\nundo it with: memctl undo {report.job}", "not bold dim")
        return text

    def table() -> RenderableType:
        match report:
            case InspectReport() | InspectByReport():
                return Group(_contents(report), Text(), about())
            case VerifyReport():
                return Group(tables.comparison(report), about())
            case DoctorReport():
                return Group(*_health(report), Text(), about())
            case UndoReport() if not of:
                return Text(f"{_label(report)}\nnothing to undo")
        return tables.with_failures(about(_label(report), _facts(report)), _failures(report))

    inspects = isinstance(report, InspectReport | InspectByReport | InspectMessagesReport)
    of_run = not inspects and not getattr(report, "dry_run", False)
    return Printout(lambda: report, table, of_run)


def of_job(empty: UndoReport, report: Divisible) -> UndoReport:
    """Return the report of the undo of a job; ``empty`` is that of a job without parts to undo."""
    if not isinstance(report, UndoReport):
        return replace(empty, parts=report.parts)
    report.undoes = empty.undoes
    return report


def summed_up(error: MemctlError, report: Any) -> MemctlError:
    """Return the error of the whole for what parts have found, with the sum of what they found."""
    if isinstance(error, Unhealthy):
        error = unhealthy(report.store.url, _diagnosis(report))
    elif isinstance(error, Different):
        number = report.differences_total or len(report.differences)
        error = Different(f"{count(number, 'difference')} between the two stores")
    elif isinstance(error, Conflict) and hasattr(report, "target") and _failures(report):
        why = f"{report.target} has different messages"
        if not hasattr(report, "source"):
            key, failure = _failures(report)[0]
            why = f"{key}: {failure.message}"
        left = count(report.memories.failed, "memory")
        error = Conflict(f"{left} left unchanged: {why}", error.hint)
    return error


def held_error(report: Any) -> MemctlError | None:
    """Return the error of a run if all that its parts selected is held; else None."""
    failures = _failures(report)
    if not all_held(failures):
        return None
    did = sum(getattr(report.memories, name, 0) for name in ("written", "unchanged", "skipped"))
    return None if did else nothing_but_held(failures)


def planned_changes(report: Any) -> ChangeReport:
    """Return the plan of a command that changes a store, from the sum of dry runs."""
    messages = report.messages
    restored = getattr(messages, "restored", 0)
    selected = report.memories.selected
    counts = ChangeCounts(selected, messages.deleted, messages.marked, restored=restored)
    rows = report.plan or ()
    return ChangeReport(
        planned=counts,
        planned_by_memory={_key(row): row.messages for row in rows},
        staying={_key(row): row.stay for row in rows if row.stay is not UNSET},
    )


def repairs(report: DoctorReport) -> list[Finding]:
    """Return what doctor has repaired or, in the sum of dry runs, would repair."""
    return [Finding(row.code, _place(row), row.count, detail="") for row in report.repaired or ()]


def _label(report: Any) -> str:
    """Return the names of the stores of a run, such as ``prod → new``."""
    names = (getattr(report, name, None) for name in ("source", "target", "file"))
    return " → ".join(name for name in names if name)


def _facts(report: Any) -> str:
    """Return what a copy or a change did, in one line."""
    if not hasattr(report, "memories"):
        return ""
    memories, messages = asdict(report.memories), asdict(report.messages)
    would = "would be " if report.dry_run else ""
    done = {"written": f"{would}written" if "written" in messages else f"{would}changed"}
    facts = [
        f"{number:,} {done.get(name, name)}"
        for name, number in memories.items()
        if name != "selected" and number
    ]
    said = ": ".join(filter(None, [count(memories["selected"], "memory"), ", ".join(facts)]))
    more = [count(messages["selected"], "message")]
    more += [
        f"{messages[name]:,} {would}{name}"
        for name in ("deleted", "marked", "restored")
        if messages.get(name)
    ]
    if (verified := getattr(report, "verified", UNSET)) is not UNSET:
        more.append("verified" if verified else "not verified")
    cost = getattr(
        report.model if isinstance(report, CompressReport) else _embedded(report), "cost", None
    )
    if cost is not None:
        more.append(f"cost {cost:.4g}")
    return f"{said}     {', '.join(more)}"


def _embedded(report: Any) -> Any:
    return getattr(report, "embedded", None)


def _key(row: Any) -> MemoryKey:
    return MemoryKey(row.user, row.session, row.path or "")


def _failures(report: Any) -> list[tuple[MemoryKey, Failure]]:
    rows: Iterable[FailureRow] = getattr(report, "failures", None) or ()
    return [(_key(row), Failure(row.code, row.message)) for row in rows]


def _contents(report: InspectReport | InspectByReport) -> RenderableType:
    """Draw the totals and memories of ``inspect``, or its groups."""
    if isinstance(report, InspectByReport):
        return tables.groups(report.by, report.groups)
    store = report.store
    infos = [_info(row) for row in report.memories]
    drawn = tables.catalogue(
        store.url,
        store.what,
        Catalogue(report.totals, infos),
        None,
        embedding=Embedding(*asdict(store.embedding).values()) if store.embedding else None,
    )
    hidden = report.totals.memories - len(infos)
    more = Text(f"and {count(hidden, 'memory')} more: --limit 0 shows all", "dim")
    return Group(drawn, more) if hidden else drawn


def _info(row: InspectedMemory) -> MemoryInfo:
    """Return the facts of a memory; the roles are in the totals."""
    names = "messages", "bytes", "marks", "unread", "first", "last", "summary", "ttl"
    found = MemoryInfo(_key(row), **{name: getattr(row, name) for name in names})
    found.title, found.project = row.title or "", row.project or ""
    return found


def _health(report: DoctorReport) -> Iterable[RenderableType]:
    """Draw the repairs and findings of ``doctor``."""
    if report.repaired is not UNSET:
        failed, dry_run = report.healthy is UNSET, bool(report.dry_run)
        yield diagnosis.repairs(repairs(report), None, None, dry_run=dry_run, failed=failed)
        yield Text()
    if report.healthy is not UNSET:
        yield diagnosis.findings(report.store.url, _diagnosis(report))


def _diagnosis(report: DoctorReport) -> Diagnosis:
    faults = [_finding(row) for row in report.findings]
    about = report.memories or 0, report.messages or 0, faults
    return Diagnosis(report.store.kind, "message", *about)


def _finding(row: FindingRow) -> Finding:
    what = KINDS[row.code].what
    detail = row.message.removeprefix(what).removeprefix(": ")
    return Finding(row.code, _place(row), row.count, tuple(row.ids), detail, row.remedy)


def _place(row: FindingRow | RepairedRow) -> MemoryKey | None:
    return None if row.user is None else _key(row)
