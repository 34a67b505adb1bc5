"""The end of a run: a report for programs or a table for people."""

from __future__ import annotations

import json
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from memctl.errors import MemctlError
from memctl.json import jsonio
from memctl.reports.report import Error, Report

if TYPE_CHECKING:
    from rich.console import RenderableType


class Printout(Struct):
    """The output of a run at its end.

    ``report`` returns the report as it is then.
    ``table`` returns the table for people; None if there is nothing to show.  ``of_run`` is True if
    the user runs the command for its effect, not for the report.  With ``--quiet``, the table of
    such a command is left out, unless the command fails.
    """

    report: Callable[[], Report]
    table: Callable[[], RenderableType | None]
    of_run: bool = False


def write_json(data: dict[str, Any], warnings: list[str], error: MemctlError | None) -> None:
    """Write a report as one JSON object to stdout, with the warnings and the error of the run."""
    data = data | {"warnings": warnings} | _error(error)
    json.dump(data, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")


def _error(error: MemctlError | None) -> dict[str, Any]:
    return {} if error is None else {"error": msgspec.to_builtins(Error.of(error))}


class Listing:
    """A JSON report that is written row by row; ``close`` always completes the object."""

    def __init__(self, command: str, head: dict[str, Any], name: str) -> None:
        """``head`` has the fields before the list, and ``name`` is the name of the list.

        ``close`` writes the fields of ``tail`` after the list.
        """
        self._head = {"schema": f"memctl/{command}/1", **head}
        self._name = name
        self._rows = 0
        self.tail: dict[str, Any] = {}

    def add(self, row: Iterable[str]) -> None:
        """Write the next row of the list, given as pieces of JSON text."""
        self._begin()
        sys.stdout.write(",\n" if self._rows else "\n")
        sys.stdout.writelines(row)
        self._rows += 1

    def _begin(self) -> None:
        if not self._rows:
            sys.stdout.write(f"{json.dumps(self._head)[:-1]}, {json.dumps(self._name)}: [")

    def close(self, warnings: list[str], error: MemctlError | None) -> None:
        """Close the list, and add the warnings and the error, if any, as fields of the object."""
        self._begin()
        tail = self.tail | {"warnings": warnings} | _error(error)
        sys.stdout.write(f"\n], {json.dumps(tail)[1:]}\n")


_PIECE = 1 << 20
_NOT_ASCII = re.compile("[^\\x00-\\x7f]+")


def message_json(message: bytes) -> Iterator[str]:
    """Yield the JSON text of a message in pieces; together, they are one line of ASCII."""
    if len(message) > _PIECE:
        yield from _pieces(message)
    elif message.isascii() and b"\n" not in message and b"\r" not in message:
        yield message.decode("ascii")
    else:
        yield json.dumps(jsonio.loads(message))


def _pieces(message: bytes) -> Iterator[str]:
    # Only strings contain non-ASCII characters, and line feeds occur only between values.
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(message), _PIECE):
        piece = decoder.decode(message[start : start + _PIECE])
        if not piece.isascii():
            piece = _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], piece)
        yield piece.replace("\n", " ").replace("\r", " ")


def write_ndjson(rows: list[dict[str, Any]]) -> None:
    """Write each row as a line of JSON to stdout."""
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
