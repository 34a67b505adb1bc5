"""Rows of CSV on stdout."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from memctl.text.spreadsheet import disarmed


def write_csv(rows: list[dict[str, Any]]) -> None:
    """Write a header line and a line of CSV for each row to stdout."""
    written = CsvRows(columns(rows))
    for row in rows:
        written.add(row)


def columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the fields of all rows, each once; the longest row sets the order."""
    return list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))


class CsvRows:
    """Writes CSV rows below a header line to stdout; lists, objects and booleans become JSON."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """``names`` are the columns; by default, the fields of the first row."""
        self._names = names
        self._writer: csv.DictWriter[str] | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Write the next row; before the first row, the header line."""
        if self._writer is None:
            names = self._names or list(row)
            self._writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    if isinstance(value, str):
        # UTF-8 cannot encode lone surrogates.
        return disarmed(value.encode("utf-8", "backslashreplace").decode())
    return value  # type: ignore[no-any-return]
