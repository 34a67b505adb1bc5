"""The last report of a store, and what changed since."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from memctl.errors import BadData, UsageError
from memctl.reports.statistics import FoundSince, ReportReport, Since
from memctl.storekit.files import system_errors

_DATA = re.compile(rb'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


class _Totals(Struct):
    users: int
    memories: int
    messages: int
    bytes: int


class _Store(Struct):
    kind: str
    url: str | UnsetType = UNSET


class _Tokens(Struct):
    sent: int


class _Finding(Struct):
    code: str
    count: int


class LastReport(Struct):
    """The parts of the last report that are compared."""

    store: _Store
    time: str
    selection: str
    totals: _Totals
    tokens: _Tokens | UnsetType = UNSET
    findings: list[_Finding] | UnsetType = UNSET


def read_last_report(path: Path) -> LastReport | None:
    """Read the last report, a page or JSON; return None if the file does not exist.

    Raises:
        BadData: the file is no report of ``memctl report``.
        Unavailable: the operating system refuses to read the file.
    """
    with system_errors(path, "read"):
        if not path.exists():
            return None
        text = path.read_bytes()
    if (page := _DATA.search(text)) is not None:
        text = page[1]
    try:
        return msgspec.json.decode(text, type=LastReport)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadData(
            f"{path} is no report of memctl: {error}", "name a page, or what report --json printed"
        ) from error


def changes_since(last: LastReport, report: ReportReport) -> Since:
    """Return the changes between the last report and a new one.

    Raises:
        UsageError: the last report is about something else.
    """
    for what, same in (
        ("store", last.store.url == report.store.url),
        ("kind of store", last.store.kind == report.store.kind),
    ):
        if not same:
            raise UsageError(
                f"the last report is of another {what}", "name the last report of this store"
            )
    tokens: int | UnsetType = UNSET
    if last.tokens is not UNSET and report.tokens is not UNSET:
        tokens = report.tokens.sent - last.tokens.sent
    findings: list[FoundSince] | UnsetType = UNSET
    if last.findings is not UNSET and report.findings is not UNSET:
        found = {row.code: row.count for row in report.findings}
        for row in last.findings:
            found[row.code] = found.get(row.code, 0) - row.count
        findings = [FoundSince(code, number) for code, number in found.items() if number]
    now, before = report.totals, last.totals
    return Since(
        time=last.time,
        users=now.users - before.users,
        memories=now.memories - before.memories,
        messages=now.messages - before.messages,
        bytes=now.bytes - before.bytes,
        tokens=tokens,
        findings=findings,
        selection=UNSET if last.selection == report.selection else last.selection,
    )
