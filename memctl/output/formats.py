"""Reports for programs: JSON, NDJSON and CSV."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

from memctl.errors import MemctlError
from memctl.model import MemoryInfo
from memctl.output.report import Report


def write_json(report: Report, warnings: list[str], error: MemctlError | None) -> None:
    """One object, as the contract of the command line has it."""
    data: dict[str, Any] = {"schema": f"memctl/{report.command}/1", **report.data()}
    data["warnings"] = warnings
    if error is not None:
        data["error"] = {"code": error.code, "message": error.message, "hint": error.hint}
    json.dump(data, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")


def write_ndjson(rows: list[dict[str, Any]]) -> None:
    """One object a line."""
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")


def write_csv(rows: list[dict[str, Any]]) -> None:
    """A header line and a line a row; what is no text or number is written as JSON."""
    if not rows:
        return
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    if isinstance(value, str):
        # Lone surrogates have no form in UTF-8.
        return value.encode("utf-8", "backslashreplace").decode()
    return value  # type: ignore[no-any-return]


def memory_row(info: MemoryInfo) -> dict[str, Any]:
    """A memory as ``inspect`` reports it."""
    row: dict[str, Any] = {
        "user": info.key.user,
        "session": info.key.session,
        "messages": info.messages,
        "bytes": info.bytes,
        "marks": info.marks,
        "first": info.first,
        "last": info.last,
        "summary": info.summary,
        "ttl": info.ttl,
    }
    if info.key.part:
        row["path"] = info.key.part
    return row
