"""A report before it has a form, its forms for programs, and their JSON Schemas."""

from __future__ import annotations

import csv
import difflib
import json
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from memctl import jsonio
from memctl.errors import MemctlError, UsageError
from memctl.model import MemoryInfo

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(slots=True)
class Report:
    """The report of a command, ready for every format.

    ``data`` is the JSON object without schema, warnings and error; ``rows`` are flat records for
    NDJSON and CSV; ``table`` is for people, None where there is nothing to show.  It is left out
    with ``--quiet`` where ``of_run`` is true, and the run succeeds: nobody has asked for it.
    """

    command: str
    data: Callable[[], dict[str, Any]]
    rows: Callable[[], list[dict[str, Any]]]
    table: Callable[[], RenderableType | None]
    of_run: bool = False


def write_json(
    report: Report, more: dict[str, Any], warnings: list[str], error: MemctlError | None
) -> None:
    """Write one object, as the contract of the command line has it; ``more`` follows the data."""
    data: dict[str, Any] = {"schema": f"memctl/{report.command}/1", **report.data(), **more}
    data["warnings"] = warnings
    if error is not None:
        data["error"] = _error(error)
    json.dump(data, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")


class Listing:
    """A report whose rows are written as they come: one JSON object, whole however the run ends."""

    def __init__(self, command: str, head: dict[str, Any], name: str) -> None:
        """``head`` comes before the list called ``name``; ``tail`` after it, when it is closed."""
        self._head = {"schema": f"memctl/{command}/1", **head}
        self._name = name
        self._rows = 0
        self.tail: dict[str, Any] = {}

    def add(self, row: Iterable[str]) -> None:
        """Write the next row, given as pieces of JSON."""
        self._begin()
        sys.stdout.write(",\n" if self._rows else "\n")
        sys.stdout.writelines(row)
        self._rows += 1

    def _begin(self) -> None:
        if not self._rows:
            sys.stdout.write(f"{json.dumps(self._head)[:-1]}, {json.dumps(self._name)}: [")

    def close(self, warnings: list[str], error: MemctlError | None) -> None:
        """Write what follows the rows."""
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
        yield json.dumps(jsonio.loads(message))


def _pieces(message: bytes) -> Iterator[str]:
    # Other than ASCII stands in texts only, and line feeds stand between values only.
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(message), _PIECE):
        piece = decoder.decode(message[start : start + _PIECE])
        if not piece.isascii():
            piece = _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], piece)
        yield piece.translate(_ON_ONE_LINE)


def write_ndjson(rows: list[dict[str, Any]]) -> None:
    """Write one object a line."""
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")


def write_csv(rows: list[dict[str, Any]]) -> None:
    """A header line and a line a row."""
    written = CsvRows(columns(rows))
    for row in rows:
        written.add(row)


def columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of all fields of rows, in order: not every row has a ``path``."""
    return list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))


class CsvRows:
    """Rows as they come, below a header line; other values than text or numbers as JSON."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """``names`` are the columns; without them, those of the first row."""
        self._names = names
        self._writer: csv.DictWriter[str] | None = None

    def add(self, row: dict[str, Any]) -> None:
        """The next row."""
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


_FOLDER = files("memctl") / "schemas"


def schema_names() -> list[str]:
    """The commands whose reports have a schema; and log, for the messages on stderr."""
    return sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir())


def schema_text(name: str) -> str:
    """The schema of a command's report (JSON Schema 2020-12).

    Raises:
        UsageError: it has none.
    """
    known = schema_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"there is no schema named {name!r}",
            f"did you mean {near[0]!r}?" if near else f"schemas: {', '.join(known)}",
        )
    return (_FOLDER / f"{name}.json").read_text("utf-8")
