"""Reports for programs: JSON, NDJSON and CSV."""

from __future__ import annotations

import csv
import json
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Any

from memctl import codec
from memctl.errors import MemctlError
from memctl.model import MemoryInfo
from memctl.output.report import Report


def write_json(report: Report, warnings: list[str], error: MemctlError | None) -> None:
    """One object, as the contract of the command line has it."""
    data: dict[str, Any] = {"schema": f"memctl/{report.command}/1", **report.data()}
    data["warnings"] = warnings
    if error is not None:
        data["error"] = _error(error)
    json.dump(data, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")


class Listing:
    """A report whose rows are written as they come: one JSON object, whole however the run ends."""

    def __init__(self, command: str, head: dict[str, Any], name: str) -> None:
        """``head`` comes before the list called ``name``; ``tail`` behind it, when it is closed."""
        self._head = {"schema": f"memctl/{command}/1", **head}
        self._name = name
        self._rows = 0
        self.tail: dict[str, Any] = {}

    def add(self, row: Iterable[str]) -> None:
        """The next row, as pieces of JSON."""
        self._begin()
        sys.stdout.write(",\n" if self._rows else "\n")
        sys.stdout.writelines(row)
        self._rows += 1

    def _begin(self) -> None:
        if not self._rows:
            sys.stdout.write(f"{json.dumps(self._head)[:-1]}, {json.dumps(self._name)}: [")

    def close(self, warnings: list[str], error: MemctlError | None) -> None:
        """Writes what comes behind the rows."""
        self._begin()
        tail = self.tail | {"warnings": warnings}
        if error is not None:
            tail["error"] = _error(error)
        sys.stdout.write(f"\n], {json.dumps(tail)[1:]}\n")


_PIECE = 1 << 20
_NOT_ASCII = re.compile("[^\\x00-\\x7f]+")
_ON_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


def _error(error: MemctlError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def message_json(message: bytes) -> Iterator[str]:
    """The JSON of a message on one line, in ASCII: in pieces, for it may be of any size."""
    if len(message) > _PIECE:
        yield from _pieces(message)
    elif message.isascii() and b"\n" not in message and b"\r" not in message:
        yield message.decode("ascii")
    else:
        yield json.dumps(codec.loads(message))


def _pieces(message: bytes) -> Iterator[str]:
    # Other than ASCII stands in texts only, and line feeds stand between values only.
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(message), _PIECE):
        piece = decoder.decode(message[start : start + _PIECE])
        if not piece.isascii():
            piece = _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], piece)
        yield piece.translate(_ON_ONE_LINE)


def write_ndjson(rows: list[dict[str, Any]]) -> None:
    """One object a line."""
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")


def write_csv(rows: list[dict[str, Any]]) -> None:
    """A header line and a line a row."""
    written = CsvRows()
    for row in rows:
        written.add(row)


class CsvRows:
    """Rows as they come, below a header line; what is no text or number is written as JSON."""

    def __init__(self) -> None:
        self._writer: csv.DictWriter[str] | None = None

    def add(self, row: dict[str, Any]) -> None:
        """The next row."""
        if self._writer is None:
            self._writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow({name: _cell(value) for name, value in row.items()})


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
