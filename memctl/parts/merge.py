"""One report out of those of all parts: their sum, and how each part ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from memctl.errors import MemctlError, exit_codes
from memctl.ops.doctor.findings import ORDER
from memctl.parts.part import PartResult
from memctl.reports.doctor import DoctorReport, FindingRow, RepairedRow
from memctl.reports.inspect import InspectedMemory, InspectReport
from memctl.reports.report import Divisible, Error, PartRow, PartsReport
from memctl.reports.schema import classes_of
from memctl.text.numbers import count
from memctl.text.words import natural

MOST_ROWS = 1_000
"""The largest number of rows in the long lists of a report; ``failures_total`` has them all."""
_LONG = ("failures", "differences", "plan")
_CONSIDERABLE = 100_000
"""The least number of messages for a warning that one part has most of the messages."""
_OF_PART = ("file", "bytes", "run", "undoes", "quarantine")
"""The fields of a report that differ between parts; the row of each part has its own."""
_STORES = ("source", "target", "url", "file")
"""The names of stores and files, in which the parts of a run on a fleet differ."""
_CODES = {number: name for number, name, _ in reversed(exit_codes())}


class Merged(Struct):
    """The report of all parts.

    ``untimed`` is the number of messages that a selection by time leaves out because they have no
    time.
    """

    report: Divisible
    warnings: list[str] = field(default_factory=list)
    untimed: int = 0


def merge(
    command: str,
    results: Iterable[PartResult],
    *,
    sort: str = "messages",
    limit: int | None = None,
    names: Mapping[str, str] | None = None,
    stores: Sequence[str] = (),
) -> Merged:
    """Return the report of a run out of those of its parts.

    ``sort`` and ``limit`` are those of the rows of ``inspect``.  For parts of a fleet, ``stores``
    has the names of its stores, and ``names`` the name of the fleet in place of the texts
    ``source``, ``target`` and ``url``.
    """
    ended = sorted(results, key=lambda result: result.shard)
    warnings = _warnings(ended)

    def differ(name: str, texts: list[str]) -> str:
        said = ", ".join(dict.fromkeys(texts))
        if name in _STORES:
            return said
        warnings.append(f"the parts differ in {name}: {said}")
        return texts[0]

    reports = [_report(command, result) for result in ended if result.began]
    report: Divisible = PartsReport(command=command)
    if reports:
        report = type(reports[0]).sum_of(reports, differ)
        _finish(report, ended, names or {}, sort, limit)
    report.parts = [_part(result, stores) for result in ended]
    untimed, report.untimed = report.untimed or 0, UNSET
    return Merged(report, [*warnings, *_uneven(ended)], untimed)


def _report(command: str, result: PartResult) -> Divisible:
    """Return the report of a part, with ``{shard}`` in the names of files that each part has."""
    data = {**(result.report or {})}
    if "store" in data:
        data["store"] = {**data["store"]}
    for place in (data, data.get("store", {})):
        for name in _STORES:
            if isinstance(text := place.get(name), str):
                place[name] = text.replace(result.shard.file_name, "{shard}")
    for name in ("warnings", "error"):
        data.pop(name, None)
    for form in (one for one in classes_of(command) if issubclass(one, Divisible)):
        with suppress(msgspec.ValidationError):  # the report has another form
            return msgspec.convert(data, form)
    raise MemctlError(f"part {result.shard} reports what memctl {command} does not", None)


def _finish(
    report: Any,
    results: Sequence[PartResult],
    names: Mapping[str, str],
    sort: str,
    limit: int | None,
) -> None:
    """Add to the sum of the reports what is not a sum."""
    for name, text in names.items():
        place = report.store if name == "url" and hasattr(report, "store") else report
        if hasattr(place, name):
            setattr(place, name, text)
    for name in ("verified", "healthy"):
        if (value := getattr(report, name, UNSET)) is not UNSET:
            setattr(report, name, value and _everywhere(name, results))
    for name in _LONG:
        rows = getattr(report, name, UNSET)
        if rows is not UNSET and len(rows) > MOST_ROWS:
            setattr(report, name, rows[:MOST_ROWS])
            setattr(report, f"{name}_total", len(rows))
    if isinstance(report, InspectReport):
        by_name = sorted(report.memories, key=lambda row: natural(_key(row)))
        report.memories = sorted(by_name, key=_ORDERS[sort], reverse=sort == "last")
        del report.memories[limit or len(report.memories) :]
    elif isinstance(report, DoctorReport):
        report.findings.sort(key=_order)
        if report.repaired is not UNSET:
            report.repaired.sort(key=_order)


def _everywhere(name: str, results: Sequence[PartResult]) -> bool:
    """Return whether no part lacks a value.

    A part that had nothing to do has no value, and has ended with exit code 0.
    """
    all_said = all(name in (result.report or {}) for result in results)
    ended = all_said or not any(result.exit for result in results)
    return ended and len(results) == results[0].shard.of


def _order(row: FindingRow | RepairedRow) -> tuple[object, ...]:
    """Return the place of a row among those of ``doctor``."""
    names = row.user or "", row.session or "", row.path or ""
    return ORDER[row.code], row.user is not None, *names


def _key(row: InspectedMemory) -> tuple[str, ...]:
    return row.user, row.session, row.path or ""


_ORDERS: dict[str, Callable[[InspectedMemory], Any]] = {
    "messages": lambda row: -(row.bytes if row.messages is None else row.messages),
    "bytes": lambda row: -row.bytes,
    "user": lambda _: 0,
    "last": lambda row: row.last or "",
}
"""The orders of ``inspect`` for memories that are sorted by their names; see ``ops.inspect``."""


def _part(result: PartResult, stores: Sequence[str]) -> PartRow:
    """Return the row of a part in the list ``parts`` of the report."""
    report = result.report or {}
    row = PartRow(
        shard=str(result.shard),
        exit=result.exit,
        attempts=result.attempts,
        seconds=result.seconds,
        host=result.host,
        messages=result.messages,
        **{name: report[name] for name in _OF_PART if name in report},
    )
    if stores:
        row.store = stores[result.shard.number * len(stores) // result.shard.of]
    if error := report.get("error"):
        row.error = Error(**error)
    elif result.exit:
        code = _CODES.get(result.exit, "unavailable")
        row.error = Error(code, *result.reason)
    return row


def _warnings(results: Sequence[PartResult]) -> list[str]:
    """Return each warning of the parts once, with the parts that said it."""
    said: dict[str, list[PartResult]] = {}
    for result in results:
        report = result.report or {}
        untimed = f"{report.get('untimed', 0):,} "
        for text in report.get("warnings", ()):
            if not (text.startswith(untimed) and "without a time: " in text):  # told of the sum
                said.setdefault(text, []).append(result)
    return [
        f"{text} (part {parts[0].shard})"
        if len(parts) == 1
        else f"{text} ({len(parts):,} of {count(parts[0].shard.of, 'part')})"
        for text, parts in said.items()
    ]


def _uneven(results: Sequence[PartResult]) -> list[str]:
    """Return a warning if one part has over half of the messages; two parts have half anyway."""
    whole = sum(result.messages for result in results)
    if len(results) < 3 or whole < _CONSIDERABLE:
        return []
    return [
        f"part {result.shard} has {result.messages / whole:.0%} of the messages, and more parts "
        "would not divide it: a session is never divided"
        for result in results
        if result.messages * 2 > whole
    ]
