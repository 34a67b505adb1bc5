"""The invariants that hold after every command, whatever it was given."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from memctl.errors import exit_codes
from tests.fuzz.command import Memctl, Outcome, innermost, valued_options
from tests.support.schemas import check as check_schema

# Nothing here sends a signal, closes a pipe, or runs twice at once.
CODES = {code for code, _, _ in exit_codes()} - {1, 75, 130, 141, 143}
NOTHING_DONE = {2, 3, 4, 8, 9}
"""The exit codes that promise that nothing was written."""
MEMORY_KILOBYTES = 320 << 10
"""Kilobytes that a command may take besides the 80 MB of Python and its imports."""
STATE_FILES = re.compile(r"memctl(/(receipts(/[\w.+-]+)?|runs(/[\w.+-]+(/[\w.-]+)?)?)?)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_NO_REPORT = frozenset({"help", "--help", "-h", "--version", "--show-completion"})

Snapshot = dict[str, tuple[int, bytes]]


class Broken(Exception):
    """An invariant does not hold: which one, and what was there instead."""

    def __init__(self, rule: str, detail: str = "") -> None:
        super().__init__(f"{rule}: {detail}" if detail else rule)
        self.rule = rule
        self.detail = detail


def snapshot(folder: Path) -> Snapshot:
    """Return every file below the folder: its kind and mode, and its bytes or where it points."""
    found: Snapshot = {}
    _look(str(folder), "", found)
    return found


def _look(folder: str, prefix: str, found: Snapshot) -> None:
    with os.scandir(folder) as entries:  # pathlib takes as long as some commands
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            content = b""
            if stat.S_ISREG(mode):
                with open(entry.path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(entry.path))
            found[prefix + entry.name] = mode, content
            if stat.S_ISDIR(mode):
                _look(entry.path, f"{prefix}{entry.name}/", found)


def names_below(folder: str, prefix: str = "") -> Iterator[str]:
    """Yield the names of all that is below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from names_below(entry.path, f"{prefix}{entry.name}/")


def difference(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Return what was added, removed or changed, in a line."""
    parts = [f"new {key!r}" for key in after.keys() - before.keys()]
    parts += [f"gone {key!r}" for key in before.keys() - after.keys()]
    for key in before.keys() & after.keys():
        if before[key] != after[key]:
            parts.append(f"changed {key!r}: {_apart(before[key], after[key])}")
    return "; ".join(sorted(parts))[:1500]


def _apart(before: Any, after: Any) -> str:
    """Both values from shortly before the place where they begin to differ."""
    first, second = repr(before), repr(after)
    same = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    start = max(0, same - 60)
    return f"{first[start : start + 200]} -> {second[start : start + 200]}"


def check_end(outcome: Outcome) -> None:
    """Check how a command ended, and what it said of that.

    Raises:
        Broken: it crashed, or ended in a way that is not documented.
    """
    if outcome.crash is not None:
        name = type(outcome.crash).__name__
        raise Broken(f"unforeseen {name} in {innermost(outcome.crash)}", str(outcome.crash))
    if outcome.behind:
        last = outcome.behind.strip().splitlines()[-1]
        raise Broken(f"behind the back: {last[:80]}", outcome.behind)
    if outcome.kilobytes > MEMORY_KILOBYTES:
        raise Broken(f"memory above {MEMORY_KILOBYTES >> 10} MB", f"{outcome.kilobytes >> 10} MB")
    if outcome.code not in CODES:
        raise Broken(f"exit code {outcome.code}", outcome.stderr)
    if "Traceback (most recent call last)" in outcome.stderr:
        raise Broken("a traceback on stderr", outcome.stderr)
    lines = _COLOUR.sub("", outcome.stderr).splitlines()
    ends = ("memctl: error:", "memctl: warning:") if _warns(outcome) else "memctl: error:"
    errors = [line for line in lines if line.startswith(ends)]
    said = outcome.stderr + outcome.stdout.decode("utf-8", "replace")
    if outcome.code == 2 and said.startswith("Usage: "):
        return  # nothing was asked for: the help says what there is
    if len(errors) != (outcome.code != 0) and not _in_json(outcome):
        raise Broken(
            f"{len(errors)} lines of an error with exit code {outcome.code}", outcome.stderr
        )


def _warns(outcome: Outcome) -> bool:
    """Return whether ``doctor`` found warnings alone, which are no error."""
    return outcome.code == 6 and "doctor" in outcome.arguments and "error:" not in outcome.stderr


def _in_json(outcome: Outcome) -> bool:
    return "--log-format" in outcome.arguments


def check_output(outcome: Outcome, *, schema: bool) -> None:
    """Check that reports are what --format says, and that no text controls a terminal.

    ``schema`` compares a report in JSON with its schema, too, which takes its time.

    Raises:
        Broken: they are not, or it does.
    """
    if _controls(outcome.stderr, outcome):
        raise Broken("control characters on stderr", repr(outcome.stderr))
    words = outcome.arguments
    if _exports_to_stdout(words) or "-" in words:
        return  # what is there is data
    if outcome.code == 0 and not _NO_REPORT.isdisjoint(words):
        return
    form = "json" if _asks_for_json(words) else _value(words, "--format")
    text = outcome.stdout.decode("utf-8", "backslashreplace")
    try:
        outcome.stdout.decode()
    except UnicodeDecodeError as error:
        raise Broken("stdout is not UTF-8", str(error)) from error
    match form:
        case "json":
            if not text.isascii():
                raise Broken("JSON that is not ASCII", repr(text))
            _check_json(outcome, text, schema)
        case "ndjson":
            for line in text.splitlines():
                if not isinstance(_strict(line), dict):
                    raise Broken("a line of NDJSON is no object", line)
        case "csv":
            rows = list(csv.reader(io.StringIO(text), strict=True))
            if len({len(row) for row in rows}) > 1:
                raise Broken("rows of CSV of several lengths", text)
        case _:
            if _controls(text, outcome):
                raise Broken("control characters on stdout", repr(text))


def _asks_for_json(words: Sequence[str]) -> bool:
    """Return whether --json is an option there, not the value of one."""
    return any(
        word == "--json" and last not in valued_options() for last, word in pairwise(["", *words])
    )


def _controls(text: str, outcome: Outcome) -> bool:
    if "always" in outcome.arguments:
        text = _COLOUR.sub("", text)
    return bool(_CONTROL.search(text))


def _exports_to_stdout(words: list[str]) -> bool:
    return "export" in words and "-o" not in words and "--output" not in words


def _value(words: list[str], option: str) -> str:
    places = [at for at, word in enumerate(words[:-1]) if word == option]
    return words[places[-1] + 1] if places else "table"


def _check_json(outcome: Outcome, text: str, schema: bool) -> None:
    if not text:
        if outcome.code != 2:  # else the command line was not understood so far
            raise Broken("no report in JSON", outcome.stderr)
        return
    report = _strict(text)
    if not isinstance(report, dict) or "schema" not in report:
        raise Broken("a report without its schema", text)
    if ("error" in report) != (outcome.code != 0):
        raise Broken(f"a report {'with' if 'error' in report else 'without'} an error", text)
    if schema and outcome.code == 0:
        try:
            check_schema(report)
        except Exception as error:
            raise Broken("a report that is not as its schema says", str(error)) from error


def _strict(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Broken("stdout is not JSON", f"{error}: {text}") from error
    except RecursionError:
        return {"schema": "too deep for this reader"}


def check_leftovers(memctl: Memctl) -> None:
    """Check what is left in the folders for temporary files and for runs.

    Raises:
        Broken: something is that should not be.
    """
    left = [path.name for path in memctl.temporary.iterdir()]
    if left:
        raise Broken("files left in TMPDIR", ", ".join(left))
    for name in names_below(str(memctl.state)):
        last = name.rpartition("/")[2]
        if not STATE_FILES.fullmatch(name) or last in ("running", "run.json.part"):
            raise Broken("files left in the state folder", name)


def check_same(rule: str, before: Any, after: Any) -> None:
    """Check that nothing has changed.

    Raises:
        Broken: something has.
    """
    if before == after:
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        before, after = {"all": before}, {"all": after}
    raise Broken(rule, difference(before, after))


def check_counts(name: str, report: Mapping[str, Any], more: int) -> None:
    """Check that a report counts the messages by which the rows of the store are more.

    Raises:
        Broken: it does not.
    """
    if name == "erase":
        counts = {"deleted": sum(store["messages"] for store in report.get("stores", []))}
    else:
        counts = report["messages"]
    told = counts.get("written", 0) + counts.get("restored", 0) - counts["deleted"]
    if told != more:
        rule = f"{name} reports another number of messages than it changed"
        raise Broken(rule, f"{more} rows, and {json.dumps(counts)}")
